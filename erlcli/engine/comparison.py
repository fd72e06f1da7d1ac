"""Tournaments side by side: how good, how soon, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from erlcli.core.statistics import iqm
from erlcli.engine.plot_tournament import Story
from erlcli.runs.progress import Moment, Progress

Row = dict[str, Any]


def compare(stories: Sequence[Story], target: float | None, top: int) -> Row:
    """Figures of each tournament, and of the others against the first.

    Scores are those of champions, on fresh episodes. `area` is the mean of the best champion over the env steps, from
    the latest of all first champions to the end of the shortest tournament: what one had to choose from on the way.

    Args:
        stories: at least one, each with a champion.
        target: return whose first champion is looked for; None for that of the first recipe, if it has one.
        top: members in the race that are taken for `top_iqm`, the interquartile mean of their scores.

    Returns:
        JSON: `target`, `area_from` and `area_to` (env steps; None where they don't overlap), and `tournaments`, a list.
    """
    wanted = target if target is not None else stories[0].target
    curves = [story.progress.best_so_far() for story in stories]
    first, last = max(curve[0].steps for curve in curves), min(story.progress.steps for story in stories)
    shared = (first, last) if first < last else None
    rows = [_facts(story, wanted, top, shared) for story in stories]
    for row in rows[1:]:
        row["against_first"] = _ratios(rows[0], row)
    rows[0]["against_first"] = None
    return {
        "target": wanted,
        "area_from": None if shared is None else shared[0],
        "area_to": None if shared is None else shared[1],
        "top": top,
        "tournaments": rows,
    }


def _facts(story: Story, target: float | None, top: int, shared: tuple[int, int] | None) -> Row:
    progress = story.progress
    best = progress.best_so_far()[-1]
    hit = progress.reached(target) if target is not None else None
    scores = [member.score for member in progress.top(top) if member.score is not None]
    return {
        "name": story.name,
        "env": story.env,
        "mode": story.mode,
        "members": len(progress.board.members),
        "slices": progress.slices,
        "steps": progress.steps,
        "seconds": round(progress.seconds, 3),
        "best": best.mean,
        "best_member": best.member,
        "best_steps": best.steps,
        "best_seconds": round(best.seconds, 3),
        "area": None if shared is None else area(progress, *shared),
        "target_steps": None if hit is None else hit.steps,
        "target_seconds": None if hit is None else round(hit.seconds, 3),
        "top_iqm": float(iqm(np.asarray(scores))) if scores else None,
        "top_members": len(scores),
    }


def area(progress: Progress, first: int, last: int) -> float:
    """Mean of the best champion over the env steps [first, last]; the first champion is not later than `first`."""
    curve = progress.best_so_far()
    known = [moment for moment in curve if moment.steps <= first]
    points: list[Moment] = [known[-1], *(moment for moment in curve if first < moment.steps < last)]
    bounds = [first, *(moment.steps for moment in points[1:]), last]
    widths = np.diff(np.asarray(bounds, dtype=np.float64))
    return float(np.average([moment.mean for moment in points], weights=widths))


def _ratios(first: Row, other: Row) -> Row:
    """What the other needed of what the first needed; None where one of them did not get there."""

    def share(key: str) -> float | None:
        one, another = first[key], other[key]
        return another / one if one and another is not None else None

    area_gain = None if other["area"] is None else other["area"] - first["area"]
    return {
        "best": other["best"] - first["best"],
        "area": area_gain,
        "target_steps": share("target_steps"),
        "target_seconds": share("target_seconds"),
    }
