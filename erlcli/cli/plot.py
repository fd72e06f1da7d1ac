"""`erl plot`: learning curves of one run or several as a picture."""

from __future__ import annotations

import difflib
import enum
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from erlcli.errors import RecipeError
from erlcli.runs.layout import open_run
from erlcli.runs.view import RunView

SUFFIXES = (".png", ".svg")


class Across(str, enum.Enum):
    """The horizontal axis."""

    steps = "steps"
    time = "time"


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[
        Path | None,
        typer.Option(help="A .png or .svg file; default: plots/ in the run, ./learning_curves.png for several."),
    ] = None,
    x: Annotated[Across, typer.Option(help="Env steps, or time of training.")] = Across.steps,
    smooth: Annotated[int, typer.Option(min=1, help="Rows that training curves are averaged over.")] = 1,
    metric: Annotated[
        str | None, typer.Option(help="Another column, e.g. loss/value or eval/length_mean; default: the returns.")
    ] = None,
    group: Annotated[
        bool, typer.Option("--group", help="One curve, mean and 95% CI, for runs that differ in their seed alone.")
    ] = False,
) -> None:
    """Draw learning curves.

    Thin lines are training returns, thick ones evaluations with the 95% confidence band of their mean.
    """
    views = [RunView(open_run(run)) for run in runs]
    path = _checked(out) if out is not None else _default(views, metric)
    for view in views:
        view.refresh()
    from erlcli.engine.plot import Options, metric_names, save

    names = metric_names(views)
    views = _with_data(views)
    if metric is not None and metric not in names:
        close = [name for name in names if metric.lower() in name.lower()][:3]
        close = close or difflib.get_close_matches(metric, names, n=3, cutoff=0.5)
        raise RecipeError(
            f"--metric {metric}: no such column",
            expected=", ".join(names),
            found=metric,
            remedy=f"did you mean {' or '.join(close)}?" if close else "one of those",
        )
    try:
        save(views, path, Options(x.value, smooth, metric, group))
    except OSError as error:
        raise RecipeError(
            f"{path}: can't be written", expected="a writable place", found=str(error), remedy="another --out"
        ) from None
    print(path)


def _checked(path: Path) -> Path:
    if path.suffix.lower() not in SUFFIXES or path.is_dir():
        raise RecipeError(
            f"--out {path}: not a picture's name",
            expected="a name that ends in .png or .svg",
            found="a folder" if path.is_dir() else path.suffix or "no suffix",
            remedy=f"--out {path / 'learning_curve.png' if path.is_dir() else path.with_suffix('.png')}",
        )
    return path


def _default(views: Sequence[RunView], metric: str | None) -> Path:
    """The file that the run itself keeps where the same is drawn, another one for another metric."""
    name = "learning_curve" if metric is None else metric.replace("/", "_")
    if len(views) == 1:
        return views[0].layout.plots / f"{name}.png"
    return Path("learning_curves.png" if metric is None else f"{name}.png")


def _with_data(views: Sequence[RunView]) -> list[RunView]:
    """The views that have anything to draw; the others are named."""
    full = [view for view in views if view.metrics.rows or view.evals.rows]
    if not full:
        raise RecipeError(
            f"{', '.join(str(view.layout.root) for view in views)}: no data yet",
            expected="at least one row in metrics.jsonl or evals.jsonl",
            found="none",
            remedy="wait for the first rollouts; erl ps shows whether the run is alive",
        )
    for view in views:
        if view not in full:
            print(f"{view.layout.root}: no data yet, left out", file=sys.stderr)
    return full
