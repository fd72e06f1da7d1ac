"""Training in a directory that is thrown away: for proofs and measurements, with a real learner process."""

from __future__ import annotations

from collections.abc import Callable

from erlcli.engine.child import Child, describe_exit
from erlcli.engine.failures import reported
from erlcli.errors import ErlError
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock

ATTEMPT = 1


def run_learner(layout: RunLayout, until: int, tick: Callable[[], bool]) -> None:
    """Run a learner, without supervisor and evaluator, until a version or until told to stop.

    Args:
        layout: with a recipe, and perhaps a checkpoint to start from.
        until: version to end at.
        tick: called some ten times a second; False ends the learner at once.

    Raises:
        ErlError: what the learner failed of.
    """
    lock = RunLock.acquire(layout.lock)
    arguments = [str(layout.root), str(ATTEMPT), str(lock.fd), str(until)]
    learner = Child.spawn("learner", "erlcli.engine.learner", arguments, layout.output("learner"), inherit=(lock.fd,))
    try:
        while (code := learner.wait(0.1)) is None:
            if not tick():
                return
    finally:
        learner.end()
        lock.release()
    if code:
        raise reported("learner", layout) or ErlError(f"the learner {describe_exit(code)}")
