"""What follows from a journal: pure functions of the ledger, whose draws depend on the seed and the row's number alone.

`settle` gives rows that follow whatever the slots are at, `assign` what a free slot is to do. Each gives one thing at a
time, and every prefix of a journal leads to a next thing: an orchestrator that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from erlcli.recipe.tournament import TournamentRecipe
from erlcli.runs.jsonl import Row
from erlcli.tournament.births import child, founder, sibling, spawn
from erlcli.tournament.board import board, retire, succession
from erlcli.tournament.draws import random_of, seed_of, state_of
from erlcli.tournament.ledger import Entry, Ledger
from erlcli.tournament.selection import draw, probabilities

SHOWN = 50  # candidates that a selection's row lists; the others follow from the rows before


@dataclass(frozen=True)
class Task:
    """What a slot is to do: train a slice and evaluate it, or only evaluate.

    Attributes:
        kind: `confirm` and `again` evaluate with fresh seeds: a contender for the crown, and who is to be a parent.
        member: id.
    """

    kind: Literal["slice", "evaluate", "confirm", "again"]
    member: str


def settle(ledger: Ledger, recipe: TournamentRecipe) -> Row | None:
    """The next row that follows from the journal alone; None where all has been said."""
    if ledger.finished:
        return None
    if ledger.incomplete is not None:
        return sibling(ledger, recipe, ledger.incomplete)
    if ledger.founded < recipe.section.members and not won(ledger, recipe):
        return founder(ledger, recipe, founding=True)
    if ledger.pending is not None:
        return child(ledger, recipe)
    if (row := _resolve_units(ledger, recipe)) is not None:
        return row
    best = contender(ledger)
    if best is not None and best.confirmed == best.scored:
        mean = best.fresh.mean if best.fresh is not None else best.member.score
        ci = best.fresh.ci if best.fresh is not None else best.member.ci
        facts = {"rank": 1, "steps": best.scored, "value": best.value, "mean": mean, "ci": ci and list(ci)}
        return {"event": "promote", "member": best.id, **facts}
    if recipe.section.mode == "tournament" and best is None:
        return succession(ledger, recipe) or _overflow(ledger, recipe)
    if recipe.section.mode == "generational":
        return _turnover(ledger, recipe)
    return None


def contender(ledger: Ledger) -> Entry | None:
    """The best member, if it is ranked above the champion; to be confirmed before it is promoted."""
    ranked = ledger.ranked()
    if not ranked or (ledger.crown is not None and (ranked[0].value or 0.0) <= ledger.crown.value):
        return None
    return ranked[0]


def is_done(entry: Entry, recipe: TournamentRecipe) -> bool:
    """Whether its lineage has used its budget."""
    return entry.ended or entry.steps >= recipe.base.train.total_steps


def goal(entry: Entry, ledger: Ledger, recipe: TournamentRecipe) -> float:
    """Slices that it is to train before others decide what becomes of it."""
    section = recipe.section
    if entry.fused:
        return 0
    if section.mode == "tournament":
        return section.burn_in if entry.founder else 1
    if section.mode == "generational":
        return 1 if section.pods_per_member > 1 else ledger.generation - entry.generation + 1
    return float("inf")


def may_launch(ledger: Ledger, recipe: TournamentRecipe) -> bool:
    """Whether the budget has room for another slice, with all that is begun."""
    limit = recipe.section.budget.seconds
    begun = sum(max((e.until or e.steps) - e.steps, 0) for e in ledger.alive.values() if e.begun)
    return ledger.spent_steps + begun < recipe.budget_steps and (limit is None or ledger.active_seconds < limit)


def reached(ledger: Ledger, recipe: TournamentRecipe) -> bool:
    """Whether the champion has the return that was to be reached."""
    target = recipe.base.train.target_return
    return target is not None and ledger.crown is not None and ledger.crown.mean >= target


def won(ledger: Ledger, recipe: TournamentRecipe) -> bool:
    """Whether the tournament is over by that: a budget that was raised afterwards is there to be used."""
    return reached(ledger, recipe) and (ledger.passed is None or recipe.budget_steps <= ledger.passed)


def hopeless(ledger: Ledger, recipe: TournamentRecipe) -> bool:
    """Whether nothing but failures comes any more."""
    return ledger.failed >= recipe.section.max_failures * max(recipe.section.members, 4)


def assign(ledger: Ledger, recipe: TournamentRecipe, busy: Set[str]) -> Task | Row | None:
    """What a free slot is to do.

    Args:
        ledger: settled.
        recipe: of the tournament.
        busy: members that a slot is at.

    Returns:
        A task; or a row that comes first, after which to settle and ask again; or None where there is nothing to do.
    """
    over = won(ledger, recipe) or hopeless(ledger, recipe)
    if ledger.finished or ledger.paused or over:
        return None
    idle = [entry for entry in ledger.alive.values() if not entry.running and entry.id not in busy]
    for entry in idle:
        if entry.needs_score:
            return Task("evaluate", entry.id)
    best = contender(ledger)
    if best is not None and best.confirmed != best.scored and best.id not in busy:
        return Task("confirm", best.id)
    begun = [entry for entry in idle if entry.begun]
    if begun:
        entry = min(begun, key=lambda entry: (entry.parked, -(entry.value or 0.0) * entry.parked, entry.served))
        return {"event": "revive", "member": entry.id} if entry.parked else Task("slice", entry.id)
    if not may_launch(ledger, recipe):
        return None
    held = best.id if best is not None else None
    waiting = [e for e in idle if e.id != held and e.slices < goal(e, ledger, recipe) and not is_done(e, recipe)]
    waiting.sort(key=lambda entry: (entry.slices if recipe.section.mode == "independent" else 0, entry.served))
    if recipe.section.mode == "pbt" and (row := _exploit(ledger, recipe, waiting, busy)) is not None:
        return row
    if waiting:
        return Task("slice", waiting[0].id)
    if recipe.section.mode == "tournament":
        row = breed(ledger, recipe, idle=not busy and not ledger.running())
        return _doubted(row, ledger, recipe, busy) or row
    return None


def _doubted(row: Row | None, ledger: Ledger, recipe: TournamentRecipe, busy: Set[str]) -> Task | None:
    """Who is to become a parent, if its score may be luck: it is played again first, and may not be chosen then."""
    if row is None or row["event"] != "select" or not recipe.section.evaluation.recheck:
        return None
    entry = ledger.alive[row["chosen"]]
    return Task("again", entry.id) if entry.fresh is None and entry.id not in busy else None


def breed(ledger: Ledger, recipe: TournamentRecipe, *, idle: bool) -> Row | None:
    """A parent from the leaderboard, or a member without one; None where a running member has to be waited for.

    Args:
        ledger: settled.
        recipe: of the tournament.
        idle: whether nothing is running that might become a parent.
    """
    seq = ledger.board.seq + 1
    random = random_of(seed_of(recipe), seq)
    ranked = [entry for entry in board(ledger, recipe) if not is_done(entry, recipe)]
    fresh = random.random() < recipe.section.mutation.fresh
    if fresh or (not ranked and idle and not ledger.alive):
        return founder(ledger, recipe, founding=False)
    if not ranked:
        return None  # they come, or all lineages are at their end
    weights = probabilities([entry.value or 0.0 for entry in ranked], recipe.section.selection)
    first = ranked[draw(weights, random)]
    second = None
    if random.random() < recipe.section.mutation.crossover:
        second = ranked[draw(weights, random)]
    shown = list(range(min(len(ranked), SHOWN)))
    row: Row = {
        "event": "select",
        "candidates": [ranked[i].id for i in shown],
        "scores": [ranked[i].value for i in shown],
        "probabilities": [round(weights[i], 6) for i in shown],
        "of": len(ranked),
        "chosen": first.id,
        "random_state": state_of(seed_of(recipe), seq),
    }
    if second is not None and second is not first:
        row["second"] = second.id
    return row


def _resolve_units(ledger: Ledger, recipe: TournamentRecipe) -> Row | None:
    """Fuse the pods of a unit that have all been scored, then keep the best of them and of what they were fused to."""
    if recipe.section.pods_per_member == 1:
        return None
    for name, unit in ledger.units.items():
        if unit.settled or not unit.members:
            continue
        pods = [ledger.alive[member] for member in unit.members]
        fused = ledger.alive.get(unit.fused) if unit.fused is not None else None
        if any(p.value is None or p.begun or p.needs_score or p.slices < goal(p, ledger, recipe) for p in pods):
            continue
        if unit.fused is None:
            first = pods[0]
            facts = {"unit": name, "pods": unit.pods, "generation": first.generation, "founder": first.founder}
            row = spawn(ledger, recipe, first.id, dict(first.member.parameters), **facts)
            return row | {"fused": [pod.id for pod in pods], "steps": max(pod.steps for pod in pods)}
        if fused is not None and fused.value is None:
            continue
        crew = [*([fused] if fused is not None else []), *pods]
        best = max(crew, key=lambda entry: entry.value or 0.0)
        worst = next(entry for entry in reversed(crew) if entry is not best)
        return retire(worst, f"its unit goes on as {best.id}")
    return None


def _overflow(ledger: Ledger, recipe: TournamentRecipe) -> Row | None:
    """The last of a leaderboard that has more members than places; a contender is heard first."""
    ranked, places = ledger.ranked(), recipe.leaderboard
    for entry in reversed(ranked[places:]):
        if entry.slices >= goal(entry, ledger, recipe) and not entry.running and not entry.begun:
            return retire(entry, f"no place among the {places} best")
    return None


def _exploit(ledger: Ledger, recipe: TournamentRecipe, waiting: Sequence[Entry], busy: Set[str]) -> Row | None:
    """pbt: whose turn it is gives way to a child of a better one, if it is among the worst."""
    section, ranked = recipe.section, ledger.ranked()
    if len(ledger.alive) < section.members:
        row = breed(ledger, recipe, idle=not busy and not ledger.running())
        if row is not None:
            return row
    if not waiting or waiting[0].value is None or waiting[0].slices < section.burn_in:
        return None
    entry, worst = waiting[0], int(section.selection.share * len(ranked))
    if entry not in ranked[len(ranked) - worst :] or (ranked[0].value or 0.0) <= (entry.value or 0.0):
        return None
    return retire(entry, f"among the worst {worst} of {len(ranked)}: replaced by a child of a better one")


def _turnover(ledger: Ledger, recipe: TournamentRecipe) -> Row | None:
    """generational: the barrier, and what comes after it, a row at a time."""
    section, now = recipe.section, ledger.generation
    alive = list(ledger.alive.values())
    several = section.pods_per_member > 1
    old = [entry for entry in alive if entry.generation < now]
    for entry in reversed(old):
        if entry.id not in ledger.survivors:
            return retire(entry, f"not among the best {len(ledger.survivors)} of generation {now - 1}")
    units = len({entry.unit for entry in alive})
    if now and units < section.members and any(not is_done(entry, recipe) for entry in alive):
        row = breed(ledger, recipe, idle=False)
        if row is not None:
            return row
    if several and old:  # a survivor's next pods start from it, then it leaves
        entry = old[0]
        if any(other.member.parent is entry.member and other.generation == now for other in alive):
            return retire(entry, "its pods go on with its settings")
        return spawn(ledger, recipe, entry.id, dict(entry.member.parameters))
    if not alive and ledger.founded >= section.members:
        return founder(ledger, recipe, founding=False)
    trained = all(
        not e.running and not e.begun and not e.needs_score and e.value is not None and ledger.is_settled(e)
        and (e.slices >= goal(e, ledger, recipe) or is_done(e, recipe))
        for e in alive
    )  # fmt: skip
    if not trained or not may_launch(ledger, recipe) or contender(ledger) is not None:
        return None
    ranked = [entry for entry in ledger.ranked() if not is_done(entry, recipe)]
    if not ranked:
        return None
    survivors = [entry.id for entry in ranked[: max(1, round(section.survivors * section.members))]]
    return {"event": "generation", "number": now + 1, "survivors": survivors}
