"""`erl compare` of tournaments, such as one and the control without evolution."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from erlcli.cli.output import count, seconds
from erlcli.errors import RecipeError
from erlcli.runs.text import score

MOST = 4  # columns that fit beside the words
LABEL, COLUMN = 19, 15


def compare(
    tournaments: Sequence[Path], target: float | None, top: int
) -> tuple[dict[str, Any], Callable[[Path], None]]:
    """Figures of tournaments, as `engine.comparison.compare` has them, and what draws them into a file.

    Args:
        tournaments: the others are compared with the first.
        target: return whose first champion counts; None for the recipe's.
        top: best members whose interquartile mean is taken.

    Raises:
        RecipeError: there are too many, or one has no champion yet.
    """
    if len(tournaments) > MOST:
        raise RecipeError(f"erl compare: {len(tournaments)} tournaments", expected=f"at most {MOST} at a time",
                          found=str(len(tournaments)), remedy="name fewer")  # fmt: skip
    from erlcli.engine import comparison, plot_comparison
    from erlcli.engine.plot_tournament import Story

    stories = [Story.read(tournament) for tournament in tournaments]
    for tournament, story in zip(tournaments, stories, strict=True):
        if story.notice is not None:
            print(story.notice, file=sys.stderr)
        if not story.progress.best:
            raise RecipeError(
                f"{tournament}: no champion yet",
                expected="a member that was confirmed on fresh episodes",
                found=f"{len(story.progress.scores)} evaluations",
                remedy="wait for it; erl ps shows whether the tournament is alive",
            )
    made = comparison.compare(stories, target, top)
    for tournament, row in zip(tournaments, made["tournaments"], strict=True):
        row["run"] = str(tournament)
    return made, lambda picture: plot_comparison.tournaments(stories, picture)


def report(made: dict[str, Any]) -> list[str]:
    """The figures for people, in 80 columns."""
    rows: list[dict[str, Any]] = made["tournaments"]
    environments = ", ".join(dict.fromkeys(row["env"] for row in rows))
    lines = [environments, "", _line("", [_fit(row["name"]) for row in rows])]

    def add(label: str, values: Sequence[str]) -> None:
        lines.append(_line(label, values))

    add("mode", [row["mode"] for row in rows])
    add("members", [f"{row['members']:,}" for row in rows])
    add("slices", [f"{row['slices']:,}" for row in rows])
    add("env steps", [count(row["steps"]) for row in rows])
    add("time", [seconds(row["seconds"]) for row in rows])
    add("best champion", [score(row["best"]) for row in rows])
    add("  at env steps", [count(row["best_steps"]) for row in rows])
    add("  after", [seconds(row["best_seconds"]) for row in rows])
    add("area", ["-" if row["area"] is None else score(row["area"]) for row in rows])
    add(f"IQM of best {made['top']}", ["-" if row["top_iqm"] is None else score(row["top_iqm"]) for row in rows])
    if made["target"] is not None:
        goal = f"{made['target']:g}"
        add(f"{goal} at steps", [_or_never(row["target_steps"], count) for row in rows])
        add(f"{goal} after", [_or_never(row["target_seconds"], seconds) for row in rows])
    lines += ["", *(line for row in rows[1:] for line in _verdict(rows[0], row, made["target"]))]
    return lines


def _or_never(value: float | None, words: Any) -> str:  # noqa: ANN401 - a function of a number
    return "not reached" if value is None else str(words(value))


def _fit(name: str) -> str:
    """A name in a column's width: both ends, since those of one recipe's tournaments differ in their numbers."""
    width = COLUMN - 1
    return name if len(name) <= width else f"{name[: width - 7]}…{name[-6:]}"


def _line(label: str, values: Sequence[str]) -> str:
    return (f"{label:<{LABEL}.{LABEL}}" + "".join(f" {value[: COLUMN - 1]:>{COLUMN - 1}}" for value in values)).rstrip()


def _verdict(first: dict[str, Any], row: dict[str, Any], target: float | None) -> list[str]:
    """A sentence about one against the first."""
    against, other = row["against_first"], f"{first['name']:.60}"
    if target is not None and against["target_steps"] is not None:
        steps, time = against["target_steps"], against["target_seconds"]
        took = f" and {time:.0%} of the time" if time is not None else ""
        said = f"reached {target:g} with {steps:.0%} of the env steps{took} of"
    elif target is not None and row["target_steps"] is None and first["target_steps"] is not None:
        said = f"did not reach {target:g}, unlike"
    elif target is not None and row["target_steps"] is not None:
        said = f"reached {target:g}, unlike"
    else:
        gain = against["best"]
        said = f"has its best champion {score(abs(gain))} {'above' if gain >= 0 else 'below'} that of"
    return [f"{row['name']:.79}", f"  {said}", f"  {other}"]
