"""A tournament from its directory: recipe, members, slots and orchestrator put together."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from erlcli.engine import forks
from erlcli.engine.failures import explain_os_error
from erlcli.engine.supervisor import Outcome
from erlcli.errors import ErlError
from erlcli.recipe.tournament import TournamentRecipe, load_tournament
from erlcli.runs.journal import FILE, fold
from erlcli.runs.jsonl import read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.tournament import slots
from erlcli.tournament.backends.base import Backend
from erlcli.tournament.backends.local import LocalBackend
from erlcli.tournament.backends.settings import RaySettings
from erlcli.tournament.ledger import Ledger
from erlcli.tournament.members import MemberStore
from erlcli.tournament.orchestrator import PROCESS, Orchestrator
from erlcli.tournament.status import ending, status_row

HEADER = "# Resolved: `erl tournament` of this file repeats the tournament.\n"


def conduct(layout: RunLayout, lock: RunLock, names: Sequence[str], tick: Callable[[], None] = lambda: None) -> Outcome:
    """Run a tournament to its end, on this machine or on the cluster that it has settings for.

    Args:
        layout: its directory, with a recipe.
        lock: of it, held by this process.
        names: of the slots; where there are none, those that it had last. One that never had any gets all there are
            on this machine, or all that a cluster has room for.
        tick: called some ten times a second.

    Returns:
        How it ended; what went wrong is in `errors/orchestrator.json`, too.
    """
    layout.error(PROCESS).unlink(missing_ok=True)
    layout.clear()
    recipe: TournamentRecipe | None = None
    try:
        recipe = load_tournament(layout.recipe)
        backend, names = _backend(layout, lock, recipe, names)
        outcome = Orchestrator(layout, recipe, backend, MemberStore(layout.root, recipe)).run(names, tick)
    except ErlError as error:
        outcome = Outcome(error.exit_code, "failed", error)
    except OSError as error:
        known = explain_os_error(error, layout)
        if known is None:
            raise
        outcome = Outcome(known.exit_code, "failed", known)
    if outcome.error is not None:
        _tell(layout, recipe, outcome, outcome.error)
    return outcome


def _tell(layout: RunLayout, recipe: TournamentRecipe | None, outcome: Outcome, error: ErlError) -> None:
    """Leave it to readers why a tournament failed, perhaps before it could begin."""
    with contextlib.suppress(OSError):  # where the disk is what failed, its owner tells
        write_json(layout.error(PROCESS), error.to_json())
        row = read_json(layout.status)
        if row is None and recipe is not None:
            row = status_row(layout, recipe, Ledger(), outcome.state)
        write_json(layout.status, (row or {}) | ending(outcome))


def _backend(
    layout: RunLayout, lock: RunLock, recipe: TournamentRecipe, names: Sequence[str]
) -> tuple[Backend, Sequence[str]]:
    """Slots, and their names where they are not those that the tournament had last."""
    hang_seconds, settings = recipe.base.engine.hang_seconds, RaySettings.of(layout)
    rows = read(layout.root / FILE)
    fresh = not names and not any(row.get("event") == "slots" for row in rows)  # it ended before it had any
    if settings is None:
        if fresh:
            names = slots.choose(None, None, 1, slots.gpus(), len(slots.cores()))
        return LocalBackend(layout, lock.fd, hang_seconds), names
    forks.dismiss()  # slots are on the cluster's nodes
    settings.check()
    from erlcli.tournament.backends.ray import RayBackend

    backend = RayBackend(layout, settings, hang_seconds, len(names or fold(rows).slots))
    try:
        return backend, backend.fill() if fresh else names
    except BaseException:
        backend.close()
        raise


def main(arguments: list[str]) -> int:
    """Run a tournament without a terminal: ROOT LOCK_FD [SLOT ...]."""
    forks.adopt()
    root, lock, *names = arguments
    layout = RunLayout(Path(root))
    outcome = conduct(layout, RunLock.inherited(layout.lock, int(lock)), names)
    if outcome.error is not None:
        print(outcome.error, file=sys.stderr)  # into the log, for whoever waits for a start that does not come
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
