"""`erl compare` of runs, in groups."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from erlcli.cli.output import count
from erlcli.errors import RecipeError
from erlcli.runs.layout import open_run
from erlcli.runs.text import decimals, score
from erlcli.runs.view import RunView

if TYPE_CHECKING:
    from erlcli.engine.groups import Group

Row = dict[str, Any]
Named = tuple[str | None, RunView]  # a run, and the name that its group was given
FEW = 5  # runs, below which a bootstrap interval is too narrow to go by
NAME = 23


def compare(
    arguments: Sequence[str],
    by: Literal["recipe", "algorithm"],
    score: Literal["final", "best"],
    target: float | None,
) -> tuple[Row, Callable[[Path], None]]:
    """Figures of groups of runs, as `engine.comparison_runs.compare` has them, and what draws them into a file.

    Args:
        arguments: RUN or NAME=RUN, RUN a path or a pattern of paths.
        by: what makes runs without a NAME a group.
        score: what counts of a run.
        target: return to be reached; None for the recipes'.

    Raises:
        RecipeError: something named is no run, or no run has a score yet.
    """
    named = _with_scores(_named(arguments), score)
    from erlcli.engine import comparison_runs, plot_comparison

    if not named:
        raise RecipeError(
            "erl compare: none of the runs has been evaluated yet",
            expected="at least one row in evals.jsonl" + (" of a full evaluation" if score == "best" else ""),
            found="none",
            remedy="wait for the first evaluation; erl ps shows whether the runs are alive",
        )
    groups = _groups(named, by)
    return comparison_runs.compare(groups, score, target), lambda picture: plot_comparison.runs(groups, picture)


def _named(arguments: Sequence[str]) -> list[Named]:
    """Every run once, refreshed, with the name of its group if it was given one."""
    found: dict[Path, Named] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not equals or Path(argument).exists():
            name, pattern = "", argument
        paths = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern)) or [pattern]
        for path in paths:
            layout = open_run(path)
            key = layout.root.resolve()
            if key in found:
                raise RecipeError(
                    f"{path}: named twice",
                    expected="every run once: a run that counts twice looks like two that agree",
                    found=argument,
                    remedy="leave it out once",
                )
            found[key] = (name or None, RunView(layout))
    for _, view in found.values():
        view.refresh()
    return list(found.values())


def _with_scores(named: Sequence[Named], score: Literal["final", "best"]) -> list[Named]:
    """The runs that have a score; the others are told."""
    from erlcli.engine.comparison_runs import score_of

    full = []
    for name, view in named:
        if score_of(view, score) is not None:
            full.append((name, view))
        else:
            print(f"{view.layout.root}: not evaluated yet, left out", file=sys.stderr)
    return full


def _groups(named: Sequence[Named], by: Literal["recipe", "algorithm"]) -> list[Group]:
    """The groups, in the order of the first run of each."""
    from erlcli.engine.groups import Group, by_algorithm, by_recipe

    names = dict.fromkeys(name for name, _ in named if name is not None)
    groups = [Group(name, [view for other, view in named if other == name]) for name in names]
    groups += (by_recipe if by == "recipe" else by_algorithm)([view for name, view in named if name is None])
    for name, times in Counter(group.name for group in groups).items():
        if times > 1:
            raise RecipeError(
                f"{name}: two groups of that name",
                expected="a name for each group",
                found=f"runs that you call {name}, and others that are called so by themselves",
                remedy=f"another NAME, or {name}=RUN for the others too",
            )
    order = {view.layout.root: place for place, (_, view) in enumerate(named)}
    return sorted(groups, key=lambda group: order[group.views[0].layout.root])


def report(made: Row) -> list[str]:
    """The figures for people, in 80 columns."""
    from erlcli.engine.groups import env_name

    what = "last evaluation" if made["score"] == "final" else "best full evaluation"
    lines = [f"Return of the {what}, IQM over runs with its 95% CI", ""]
    short = shorten([group["name"] for environment in made["environments"] for group in environment["groups"]])
    for environment in made["environments"]:
        head = ["runs", "IQM", "95% CI", "worst", *(["target"] if _targets(environment) else [])]
        lines += [f"{env_name(environment['env'])[:80]}", _line("", head)]
        lines += [_line(short[group["name"]], _cells(group)) for group in environment["groups"]]
        lines.append("")
    if made["all_environments"]:
        lines.append("All environments, scaled: 0 for the worst run of each, 1 for the best")
        for group in made["all_environments"]:
            cells = [str(group["runs"]), f"{group['iqm']:.3f}", _ci(group["iqm_ci"], 3)]
            lines.append(_line(short[group["name"]], cells))
        lines.append("")
    if made["against_first"]:
        first = made["environments"][0]["groups"][0]["name"]
        lines.append(f"Probability that a run does better than one of {short[first]}")
        lines += [f"{short[row['name']]:<{NAME}} {_verdict(row)}" for row in made["against_first"]]
        lines.append("")
    return lines + _notes(made)


def shorten(names: Sequence[str]) -> dict[str, str]:
    """Names that fit, each by the whole one: without their middles, or without what they begin with alike."""
    different = list(dict.fromkeys(names))
    tail = NAME - NAME // 2 - 1
    short = [name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[-tail:]}" for name in different]
    if len(set(short)) < len(different):
        start = max(len(os.path.commonprefix(different)) - 4, 1)  # noqa: RUF071 - letters are meant
        short = [name if len(name) <= NAME else f"…{name[start:]}"[:NAME] for name in different]
    return dict(zip(different, short, strict=True))


def _targets(environment: Row) -> bool:
    return any(group["target"] is not None for group in environment["groups"])


def _cells(group: Row) -> list[str]:
    cells = [
        str(len(group["runs"])),
        score(group["iqm"]),
        _ci(group["iqm_ci"], decimals(group["iqm"])),
        score(group["min"]),
    ]
    if group["target"] is None:
        return cells
    hits = [steps for steps in group["target_steps"] if steps is not None]
    reached = f"{len(hits)}/{len(group['runs'])}"
    return [*cells, f"{reached} {count(median(hits))}" if hits else reached]


def _ci(interval: Sequence[float] | None, digits: int) -> str:
    return "-" if interval is None else f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _line(name: str, cells: Sequence[str]) -> str:
    widths = (4, 9, 20, 9, 13)
    text = "".join(f" {cell:>{width - 1}}" for cell, width in zip(cells, widths, strict=False))
    return f"{name:<{NAME}}{text}".rstrip()


def _verdict(row: Row) -> str:
    if row["probability"] is None:
        return "-     no environment in common"
    interval = row["probability_ci"]
    said = ""
    if interval is not None and row["fewest_runs"] >= FEW:
        said = "better" if interval[0] > 0.5 else "worse" if interval[1] < 0.5 else "no clear difference"
    return f"{row['probability']:.2f}  {_ci(interval, 2):<14}{said}".rstrip()


def _notes(made: Row) -> list[str]:
    """What to keep in mind."""
    groups = [group for environment in made["environments"] for group in environment["groups"]]
    notes = []
    if min(len(group["runs"]) for group in groups) < FEW:
        notes.append(f"Fewer than {FEW} runs in a group: intervals are too narrow to go by, if there are any.")
    if live := sum(group["live"] for group in groups):
        notes.append(f"{live} of the runs {'is' if live == 1 else 'are'} not over yet.")
    if _targets_are_shown(made):
        notes.append("target: runs that an evaluation found there, and their median env steps.")
    return notes


def _targets_are_shown(made: Row) -> bool:
    return any(_targets(environment) for environment in made["environments"])
