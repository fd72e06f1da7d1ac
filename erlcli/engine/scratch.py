"""Training in a directory that is thrown away: for proofs and measurements, with real learner processes."""

from __future__ import annotations

from collections.abc import Callable

from erlcli.engine.child import describe_exit
from erlcli.engine.failures import reported
from erlcli.engine.learners import Learners
from erlcli.errors import ErlError
from erlcli.recipe.load import load
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock

ATTEMPT = 1


def run_learner(layout: RunLayout, until: int, tick: Callable[[], bool]) -> None:
    """Run the recipe's learners, without supervisor and evaluator, until a version or until told to stop.

    Args:
        layout: with a recipe, and perhaps a checkpoint to start from.
        until: version to end at.
        tick: called some ten times a second; False ends the learners at once.

    Raises:
        ErlError: what a learner failed of.
    """
    lock = RunLock.acquire(layout.lock)
    learners = Learners.of(layout, load(layout.recipe), lock.fd)
    try:
        learners.start(ATTEMPT, until)
        while (left := learners.wait(0.1)) is None:
            if not tick():
                return
    finally:
        learners.end()
        lock.release()
    if left.code:
        raise reported(left.name, layout) or ErlError(f"the {left.name} {describe_exit(left.code)}")
