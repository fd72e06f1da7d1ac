"""New members: founders drawn from the search space, children of those on the leaderboard, clones and siblings.

Each is a row of the journal, whose draws depend on the tournament's seed and the row's number alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from erlcli.errors import RecipeError
from erlcli.recipe.founders import Turn
from erlcli.recipe.space import Settings
from erlcli.recipe.tournament import TournamentRecipe
from erlcli.runs.jsonl import Row
from erlcli.tournament.draws import derive, random_of, seed_of, state_of
from erlcli.tournament.ledger import Ledger

TRIES = 200  # draws until settings fit each other


def founder(ledger: Ledger, recipe: TournamentRecipe, *, founding: bool) -> Row:
    """A member without a parent.

    Args:
        ledger: settled.
        recipe: of the tournament.
        founding: whether it is one of those that the tournament begins with.

    Raises:
        RecipeError: the search space has next to no settings that fit each other.
    """
    random = random_of(seed_of(recipe), ledger.board.seq + 1)
    turn = Turn(ledger.founded, recipe.section.members, derive(seed_of(recipe), "founders")) if founding else None
    for trial in range(TRIES):
        if turn is not None and trial == TRIES // 2:
            turn = replace(turn, shares=False)
        settings = recipe.space.sample(random, turn)
        if recipe.accepts(settings):
            facts = {"founder": founding, "algorithm": recipe.space.algorithm_of(settings)}
            return spawn(ledger, recipe, None, settings, **facts)
    try:
        recipe.member(settings, 0)
    except RecipeError as error:
        raise RecipeError(
            f"{recipe.source}: tournament.search: {TRIES} draws, and none gave a recipe that works",
            expected=error.expected,
            found=f"last of all, {error.message}: {error.found}",
            remedy="narrow the ranges until they fit each other",
        ) from None
    raise AssertionError("unreachable: the settings were refused a moment ago")


def child(ledger: Ledger, recipe: TournamentRecipe) -> Row:
    """The child of the selection that is pending."""
    pending = ledger.pending
    if pending is None:
        raise ValueError("nobody was selected")
    parent = ledger.board.members[pending.parent]
    second = ledger.board.members[pending.second] if pending.second is not None else None
    random = random_of(seed_of(recipe), ledger.board.seq + 1)
    settings = dict(parent.parameters)
    for _ in range(TRIES):
        tried = dict(parent.parameters)
        if second is not None:
            tried = recipe.space.cross(tried, second.parameters, random)
        tried = recipe.space.mutate(tried, random, recipe.mutation)
        if recipe.accepts(tried):
            settings = tried
            break
    return spawn(ledger, recipe, parent.id, settings)


def clone(ledger: Ledger, recipe: TournamentRecipe, parent: str) -> Row:
    """A member with another's weights and settings, and a seed of its own; a unit of one."""
    return spawn(ledger, recipe, parent, dict(ledger.board.members[parent].parameters), pods=1)


def spawn(ledger: Ledger, recipe: TournamentRecipe, parent: str | None, settings: Settings, **facts: Any) -> Row:  # noqa: ANN401
    """The row of a new member.

    Args:
        ledger: settled.
        recipe: of the tournament.
        parent: id of whose checkpoint it starts from; None for a founder.
        settings: its own.
        facts: that differ from what a new member usually has.
    """
    name, seq, seed = ledger.name_next(), ledger.board.seq + 1, seed_of(recipe)
    row: Row = {"event": "spawn", "member": name, "parent": parent}
    before: dict[str, Any] = {}
    if parent is not None:
        member = ledger.board.members[parent]
        before = dict(member.parameters)
        row |= {"algorithm": member.algorithm, "steps": _steps(ledger, parent)}
    else:
        row |= {"steps": 0}
    return row | {
        "changes": {key: value for key, value in settings.items() if key not in before or before[key] != value},
        "seed": derive(seed, "member", name),
        "unit": name,
        "pods": recipe.section.pods_per_member,
        "generation": ledger.generation,
        "random_state": state_of(seed, seq),
        **facts,
    }


def _steps(ledger: Ledger, parent: str) -> int:
    """Steps of the checkpoint that a child gets: the one its parent was scored with, which is held for it."""
    entry = ledger.alive.get(parent)
    if entry is not None and entry.scored >= 0:
        return entry.scored
    return ledger.board.members[parent].steps


def sibling(ledger: Ledger, recipe: TournamentRecipe, unit: str) -> Row:
    """Another pod of a unit: the same in all but its seed."""
    first = ledger.board.members[ledger.units[unit].members[0]]
    entry = ledger.alive[first.id]
    parent = first.parent.id if first.parent is not None else None
    settings = dict(first.parameters)
    row = spawn(ledger, recipe, parent, settings, unit=unit, pods=ledger.units[unit].pods, founder=entry.founder)
    return row | {"algorithm": first.algorithm, "steps": first.born_steps, "generation": entry.generation}
