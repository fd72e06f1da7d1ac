"""What a tournament that has ended came up against, and what would let it train on."""

from __future__ import annotations

from erlcli.recipe.tournament import TournamentRecipe
from erlcli.tournament import evolve
from erlcli.tournament.ledger import Ledger


def raised(ledger: Ledger, recipe: TournamentRecipe) -> list[str]:
    """The limits that are reached, each as a setting `key=value` that doubles it.

    Args:
        ledger: of a tournament that is over.
        recipe: of it.
    """
    budget, total = recipe.section.budget, recipe.base.train.total_steps
    settings: list[str] = []
    alive = ledger.alive.values()
    at_their_end = bool(alive) and all(evolve.is_done(entry, recipe) for entry in alive)
    if at_their_end:
        settings.append(f"train.total_steps={_doubled(total, min(entry.steps for entry in alive))}")
    used = ledger.spent_steps >= recipe.budget_steps or evolve.reached(ledger, recipe)
    if used and not (at_their_end and budget.steps == "auto"):  # which grows with that of the lineages
        settings.append(f"tournament.budget.steps={_doubled(recipe.budget_steps, ledger.spent_steps)}")
    if budget.seconds is not None and ledger.active_seconds >= budget.seconds:
        settings.append(f"tournament.budget.seconds={_doubled(budget.seconds, ledger.active_seconds):g}")
    return settings


def _doubled(limit: float, used: float) -> float:
    """Twice a limit, or as often as it takes to be above what is used already."""
    while (limit := 2 * limit) <= used:
        pass
    return limit
