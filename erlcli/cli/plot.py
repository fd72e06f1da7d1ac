"""`erl plot`: learning curves of runs as a picture; scores, lineage and hyper-parameters of a tournament as three."""

from __future__ import annotations

import difflib
import enum
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from erlcli.errors import RecipeError, unwritable
from erlcli.runs.layout import open_run
from erlcli.runs.text import quoted
from erlcli.runs.view import RunView

SUFFIXES = (".png", ".svg")


class Across(str, enum.Enum):
    """The horizontal axis."""

    steps = "steps"
    time = "time"


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or one tournament.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png or .svg file; default: plots/ in the run, ./learning_curves.png for several. "
            "A tournament's three pictures are named after it: FILE-scores.png."
        ),
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
    """Draw learning curves, or the pictures of a tournament.

    Thin lines are training returns, thick ones evaluations with the 95% confidence band of their mean.
    Of a tournament: its scores and best champion, the family tree, and the values that hyper-parameters got.
    """
    if any((run / "journal.jsonl").is_file() for run in runs):
        _plot_tournament(runs, out, x, only_of_runs=smooth != 1 or metric is not None or group)
        return
    views = [RunView(open_run(run)) for run in runs]
    path = checked(out) if out is not None else _default(views, metric)
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
        raise unwritable(path, error, expected="a writable place", remedy="another --out") from None
    print(path)


def _plot_tournament(runs: Sequence[Path], out: Path | None, x: Across, *, only_of_runs: bool) -> None:
    if len(runs) > 1:
        raise RecipeError(
            "erl plot: several paths, and a tournament among them",
            expected="runs, or one tournament",
            found=", ".join(map(str, runs[:3])),
            remedy="erl compare overlays tournaments; members/ID of one are runs",
        )
    if only_of_runs:
        raise RecipeError(
            "--smooth, --metric and --group: not for a tournament",
            expected="--out and --x",
            found=str(runs[0]),
            remedy=f"erl plot {quoted(runs[0])}/members/* takes them",
        )
    given = checked(out) if out is not None else None

    def name(picture: str) -> Path:
        if given is not None:
            return given.with_name(f"{given.stem}-{picture}{given.suffix}")
        return runs[0] / "plots" / f"{picture}.png"

    from erlcli.engine.plot_tournament import Story, plot_all

    story = Story.read(runs[0])
    if story.notice is not None:
        print(story.notice, file=sys.stderr)
    if not story.progress.scores:
        raise RecipeError(
            f"{runs[0]}: no scores yet",
            expected="a member that was evaluated",
            found=f"{len(story.progress.board.members)} members without a score",
            remedy="wait for the first slice; erl ps shows whether the tournament is alive",
        )
    try:
        for path in plot_all(story, name, x.value):
            print(path)
    except OSError as error:
        where = name("scores").parent
        raise unwritable(where, error, expected="a writable place", remedy="another --out") from None


def checked(path: Path) -> Path:
    """A picture's path.

    Raises:
        RecipeError: it is none.
    """
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
