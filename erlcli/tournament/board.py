"""Who has a place on the leaderboard, and by which score: pure functions of the ledger, as all of `evolve`."""

from __future__ import annotations

from dataclasses import asdict

from erlcli.recipe.tournament import TournamentRecipe
from erlcli.runs.jsonl import Row
from erlcli.tournament.ledger import Entry, Ledger, sample_of

FRESH = ("confirm", "again")  # evaluations with seeds that nobody has played before


def board(ledger: Ledger, recipe: TournamentRecipe) -> list[Entry]:
    """Those that have a place on the leaderboard, the best first."""
    return ledger.ranked()[: recipe.leaderboard]


def evaluation(entry: Entry, kind: str, facts: Row) -> Row:
    """The row of an evaluation: all episodes that were played with these weights count.

    Args:
        entry: that was evaluated.
        kind: of the task.
        facts: steps, mean, std, episodes and ci.
    """
    new, steps = sample_of(facts), int(facts["steps"])
    row: Row = {"event": "evaluate", "member": entry.id, "kind": kind if kind in FRESH else "slice", "steps": steps}
    if kind not in FRESH or entry.sample is None or entry.scored != steps:
        return row | {"mean": new.mean, "std": new.std, "episodes": new.episodes, "ci": list(facts["ci"])}
    whole, fresh = entry.sample + new, new if entry.fresh is None else entry.fresh + new
    return row | asdict(whole) | {"ci": list(whole.ci), "fresh": asdict(fresh) | {"ci": list(fresh.ci)}}


def succession(ledger: Ledger, recipe: TournamentRecipe) -> Row | None:
    """A member gives up its place to a child that is not clearly worse, or after too many that are.

    A place is held by the best moment of a member, which its children rarely repeat within a slice. If it had to be
    beaten, the board would fill with such moments, and no lineage would ever get any further. So a child takes its
    parent's place as soon as the upper bound of its score reaches the parent's mean: what counts is that it learnt on.
    And a parent of which `patience` children fell clearly short is a moment that nothing leads on from.
    """
    for entry in ledger.ranked():
        if entry.running or entry.begun or entry.needs_score:
            continue
        parent = _ancestor(entry, ledger)
        if parent is not None and parent.sample is not None and entry.upper >= parent.sample.mean:
            if not parent.running and not parent.begun:
                return retire(parent, f"{entry.id} goes on from it")
            continue
        failed = sum(child.score is not None for child in entry.member.children) // recipe.section.pods_per_member
        if failed >= recipe.section.patience:
            return retire(entry, f"{failed} children could not keep up with it")
    return None


def _ancestor(entry: Entry, ledger: Ledger) -> Entry | None:
    """The nearest that is still in the race, those of its own unit left out."""
    for member in entry.member.lineage[-2::-1]:
        found = ledger.alive.get(member.id)
        if found is not None and found.unit != entry.unit:
            return found
    return None


def retire(entry: Entry, reason: str) -> Row:
    """The row that takes a member out of the race."""
    return {"event": "retire", "member": entry.id, "reason": reason}
