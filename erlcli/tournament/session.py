"""A tournament from its directory: recipe, members, local slots and orchestrator put together."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from erlcli.engine.failures import explain_os_error
from erlcli.engine.supervisor import Outcome
from erlcli.errors import ErlError
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.tournament.backends.local import LocalBackend
from erlcli.tournament.members import MemberStore
from erlcli.tournament.orchestrator import PROCESS, Orchestrator

HEADER = "# Resolved: `erl tournament` of this file repeats the tournament.\n"


def conduct(layout: RunLayout, lock: RunLock, names: Sequence[str], tick: Callable[[], None] = lambda: None) -> Outcome:
    """Run a tournament to its end on this machine.

    Args:
        layout: its directory, with a recipe.
        lock: of it, held by this process.
        names: of the slots; those that it had last where there are none.
        tick: called some ten times a second.

    Returns:
        How it ended; what went wrong is in `errors/orchestrator.json`, too.
    """
    layout.error(PROCESS).unlink(missing_ok=True)
    for request in layout.control.iterdir():
        shutil.rmtree(request) if request.is_dir() else request.unlink()
    try:
        recipe = load_tournament(layout.recipe)
        backend = LocalBackend(layout, lock.fd, recipe.base.engine.hang_seconds)
        outcome = Orchestrator(layout, recipe, backend, MemberStore(layout.root, recipe)).run(names, tick)
    except ErlError as error:
        outcome = Outcome(error.exit_code, "failed", error)
    except OSError as error:
        known = explain_os_error(error, layout)
        if known is None:
            raise
        outcome = Outcome(known.exit_code, "failed", known)
    if outcome.error is not None:
        write_json(layout.error(PROCESS), outcome.error.to_json())
    return outcome


def main(arguments: list[str]) -> int:
    """Run a tournament without a terminal: ROOT LOCK_FD [SLOT ...]."""
    root, lock, *names = arguments
    layout = RunLayout(Path(root))
    return conduct(layout, RunLock.inherited(layout.lock, int(lock)), names).exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
