"""What a tournament's `status.json` says."""

from __future__ import annotations

import os
import time

from erlcli.engine.supervisor import Outcome
from erlcli.recipe.tournament import TournamentRecipe
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.tournament import evolve
from erlcli.tournament.ledger import Ledger


def status_row(layout: RunLayout, recipe: TournamentRecipe, ledger: Ledger, state: str) -> Row:
    """How far a tournament is.

    Args:
        layout: its directory.
        recipe: of it.
        ledger: what its journal says.
        state: what it is at, or how it ended; `ending` says the rest of that.
    """
    base = recipe.base
    return {
        "kind": "tournament",
        "state": state,
        "pid": os.getpid(),
        "time": time.time(),
        "name": layout.root.name,
        "env": base.env.id,
        "backend": base.env.backend,
        "algorithm": None,
        "mode": recipe.section.mode,
        "steps": ledger.spent_steps,
        "seconds": round(ledger.active_seconds, 3),
        "total_steps": recipe.budget_steps,
        "target_return": base.train.target_return,
        "target_reached": evolve.reached(ledger, recipe),
        "slices": ledger.completed,
        "exit_code": None,
        "error": None,
    }


def ending(outcome: Outcome) -> Row:
    """The keys that say how it ended."""
    return {
        "state": outcome.state,
        "pid": os.getpid(),
        "time": time.time(),
        "exit_code": outcome.exit_code,
        "error": str(outcome.error) if outcome.error is not None else None,
    }
