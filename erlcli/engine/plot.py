"""Learning curves as pictures.

Dimension letters: K points of a curve, R runs of a group, G points of the grid that they share.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erlcli.engine.groups import Group, by_recipe, env_name, labels
from erlcli.errors import RecipeError
from erlcli.runs.curve import is_number
from erlcli.runs.text import score
from erlcli.runs.view import Curve, RunView

# Okabe and Ito's colours, which people with any colour vision tell apart; more runs take them again, dashed.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
TRAINING, EVALUATION = "episode/return", "eval/return_mean"
NO_METRICS = {"attempt", "steps", "version", "time/wall"}  # columns that say where a row belongs
GRID = 200  # points that grouped runs are compared at
SAMPLES = 2000  # of the bootstrap over runs
UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What is drawn, and how.

    Attributes:
        x: env steps, or seconds of training.
        smooth: rows that training curves are averaged over; evaluations are left as they are.
        metric: a column instead of the returns: a name of `metrics.jsonl`, or one of `evals.jsonl` behind `eval/`.
        group: runs of the same recipe but for the seed become one curve, their mean.
    """

    x: Literal["steps", "time"] = "steps"
    smooth: int = 1
    metric: str | None = None
    group: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns that are drawn."""
        return (TRAINING, EVALUATION) if self.metric is None else (self.metric,)


@dataclass(frozen=True)
class Line:
    """A curve, with or without a band.

    Attributes:
        x: (K,) steps or seconds.
        y: (K,).
        low: (K,) lower bound of the 95 % confidence band.
        high: (K,) upper bound.
    """

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour: the lines of a run or of a group, by metric."""

    label: str
    lines: dict[str, Line]


def metric_names(views: Sequence[RunView]) -> list[str]:
    """All columns that any of the runs has."""
    names: set[str] = set()
    for prefix, curve in _curves(views):
        for row in curve.rows:
            names |= {prefix + key for key, value in row.items() if is_number(value)}
    return sorted(name for name in names if name.removeprefix("eval/") not in NO_METRICS)


def _curves(views: Sequence[RunView]) -> list[tuple[str, Curve]]:
    return [pair for view in views for pair in (("", view.metrics), ("eval/", view.evals))]


def line_of(view: RunView, metric: str, options: Options) -> Line | None:
    """A run's curve of a metric; None where it has no such number."""
    evaluated = metric.startswith("eval/")
    name, curve = metric.removeprefix("eval/"), view.evals if evaluated else view.metrics
    across = "steps" if options.x == "steps" else "time/seconds"
    rows = [row for row in curve.rows if is_number(row.get(name)) and is_number(row.get(across))]
    if not rows:
        return None
    x, y = (np.asarray([row[key] for row in rows], dtype=np.float64) for key in (across, name))
    if not evaluated:
        return Line(x, smoothed(y, options.smooth))
    bands = [row.get(name.removesuffix("_mean") + "_ci") for row in rows]
    if not all(isinstance(band, list) and len(band) == 2 and all(map(is_number, band)) for band in bands):
        return Line(x, y)
    low, high = np.asarray(bands, dtype=np.float64).T
    return Line(x, y, low, high)


def smoothed(values: Floats, width: int) -> Floats:
    """Means over `width` neighbours around each value, over fewer at the ends: no lag, no lost points."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - (width - 1) // 2, 0), np.minimum(index + width // 2 + 1, len(values))
    means: Floats = (total[last] - total[first]) / (last - first)
    return means


def series_of(views: Sequence[RunView], options: Options) -> list[Series]:
    """What there is to draw, in the order of the runs.

    Raises:
        RecipeError: runs of one group have no steps in common.
    """
    if options.group:
        groups = by_recipe(views)
    else:
        groups = [Group(label, [view]) for label, view in zip(labels(views), views, strict=True)]
    found = []
    for group in groups:
        count = len(group.views)
        label = group.name if count == 1 else f"{group.name}, {count} runs"
        lines: dict[str, Line] = {}
        for metric in options.metrics:
            each = lines_of(group, metric, options)
            if each:
                lines[metric] = each[0] if len(each) == 1 else mean_of(each, label)
        found.append(Series(label, lines))
    return found


def lines_of(group: Group, metric: str, options: Options) -> list[Line]:
    """The curves of those runs of a group that have the metric."""
    return [line for view in group.views if (line := line_of(view, metric, options)) is not None]


def mean_of(lines: Sequence[Line], label: str) -> Line:
    """The mean of R runs where all of them have values, with its bootstrap 95 % confidence band over the runs.

    Raises:
        RecipeError: there is no such place.
    """
    first, last = shared(lines)
    if first > last:
        raise RecipeError(
            f"{label}: its runs have no steps in common yet",
            expected="runs that got equally far",
            found=f"one that starts at {first:g} and one that ends at {last:g}",
            remedy="wait for the slowest, or plot without --group",
        )
    grid = np.linspace(first, last, GRID if last > first else 1)
    curves = np.stack([np.interp(grid, line.x, line.y) for line in lines])  # (R, G)
    weights = np.random.default_rng(0).multinomial(len(lines), [1 / len(lines)] * len(lines), SAMPLES)
    low, high = np.percentile(weights @ curves / len(lines), [2.5, 97.5], axis=0)  # of (SAMPLES, G)
    return Line(grid, curves.mean(0), low, high)


def shared(lines: Sequence[Line]) -> tuple[float, float]:
    """From where to where all lines have values; the first above the last where there is no such place."""
    return max(float(line.x[0]) for line in lines), min(float(line.x[-1]) for line in lines)


def save(views: Sequence[RunView], path: Path, options: Options | None = None) -> None:
    """Draw the runs' curves into a PNG or SVG file, replaced atomically.

    Training returns are thin lines, evaluations thick ones with the 95 % confidence band of their mean.

    Args:
        views: refreshed, at least one.
        path: its suffix names the format.
        options: what is drawn; None for the returns over steps.

    Raises:
        RecipeError: runs of one group have no steps in common.
        OSError: the file can't be written.
    """
    options = options or Options()
    series = series_of(views, options)
    unit, name = _unit(series) if options.x == "time" else (1.0, "env steps")
    with canvas() as figure:
        axes = figure.add_subplot()
        _dress(axes, views, series, options, name)
        for index, one in enumerate(series):
            dash = DASHES[index // len(COLORS) % len(DASHES)]
            draw_series(axes, one, COLORS[index % len(COLORS)], dash, unit, alone=len(series) == 1)
        if options.metric is None:
            draw_targets(axes, [view.status.get("target_return") for view in views])
            if len(views) == 1:
                _mark_best(axes, views[0], options, unit)
        axes.set_xlim(left=0)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=min(len(series) + 1, 4), frameon=False)
        save_figure(figure, path)


@contextlib.contextmanager
def canvas(inches: tuple[float, float] = (8, 4.5)) -> Iterator[Any]:
    """A matplotlib figure that needs no display, in the style of all pictures here."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=inches, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib's Figure
    """Write a PNG or SVG file, replaced atomically.

    Characters that matplotlib's font lacks are boxes in a PNG, without a word about each.

    Raises:
        OSError: the file can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from")
            figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _unit(series: Sequence[Series]) -> tuple[float, str]:
    """Seconds in the unit that suits the longest line, and the axis's name."""
    longest = max((float(line.x[-1]) for one in series for line in one.lines.values()), default=0.0)
    _, seconds, name = next(entry for entry in UNITS if longest >= entry[0])
    return seconds, f"training time ({name})"


def _dress(axes: Any, views: Sequence[RunView], series: Sequence[Series], options: Options, across: str) -> None:  # noqa: ANN401
    """Titles, names, grid and frame."""
    kinds = [(env_name(view.env), view.algorithm) for view in views]
    alike = [names[0] for names in zip(*kinds, strict=True) if len(set(names)) == 1 and names[0]]
    explained = "thick: evaluation with 95% CI, thin: training" if options.metric is None else ""
    if len(series) == 1:
        explained = series[0].label
    elif len(series) < len(views):
        explained = "means and 95% CI over runs" + (", thin: training" if options.metric is None else "")
    dress(axes, "  ".join(alike), explained, across, options.x)
    axes.set_ylabel("return" if options.metric is None else options.metric)
    if not any(one.lines for one in series):
        axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", color="0.5")


def dress(axes: Any, title: str, explained: str, label: str, across: str) -> None:  # noqa: ANN401 - matplotlib's Axes
    """Titles, grid and frame.

    Args:
        axes: to dress.
        title: on the left.
        explained: on the right, smaller.
        label: of the horizontal axis.
        across: `steps` for short numbers there.
    """
    from matplotlib.ticker import EngFormatter

    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_title(explained, loc="right", fontsize=9, color="0.4")
    axes.set_xlabel(label)
    if across == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("0.6")
    axes.tick_params(color="0.6")


def draw_series(axes: Any, series: Series, color: str, dash: str, unit: float, *, alone: bool) -> None:  # noqa: ANN401
    """One colour's lines; its name goes to the most important of them."""
    both = len(series.lines) > 1
    for metric, line in series.lines.items():
        thin = both and metric == TRAINING
        names = {TRAINING: "training (last 100 episodes)", EVALUATION: "evaluation (mean, 95% CI)"}
        label = names.get(metric) if alone else (None if thin else series.label)
        style: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.5 if alone else 0.35} if thin else {"linewidth": 1.8}
        marker = "o" if len(line.x) == 1 else None
        x = line.x / unit
        axes.plot(x, line.y, dash, color=color, label=label, marker=marker, markersize=4, **style)
        if line.low is not None and line.high is not None and not thin:
            axes.fill_between(x, line.low, line.high, color=color, alpha=0.2 if alone else 0.15, linewidth=0)


def draw_targets(axes: Any, targets: Sequence[Any]) -> None:  # noqa: ANN401 - matplotlib's Axes
    """Dashed lines at the returns that were to be reached; what is no number is passed over."""
    levels = sorted({float(target) for target in targets if is_number(target)})
    for index, target in enumerate(levels):
        axes.axhline(target, color="0.45", linestyle=(0, (5, 4)), linewidth=1, zorder=1)
        below = index == 0 < len(levels) - 1  # so that two that are close don't cover each other
        axes.annotate(
            f"target {target:g}", (0.01, target), xycoords=axes.get_yaxis_transform(), xytext=(0, -3 if below else 3),
            textcoords="offset points", va="top" if below else "baseline", fontsize=8, color="0.35",
        )  # fmt: skip


def _mark_best(axes: Any, view: RunView, options: Options, unit: float) -> None:  # noqa: ANN401
    best = view.best
    across = "steps" if options.x == "steps" else "time/seconds"
    if best is None or not is_number(best.get(across)):
        return
    x, y = best[across] / unit, best["return_mean"]
    axes.plot([x], [y], "o", color=COLORS[0], markersize=6, markeredgecolor="white", zorder=5)
    left = x > 0.2 * axes.get_xlim()[1]  # the side where there is room
    axes.annotate(
        f"best {score(y)}", (x, y), xytext=(-6 if left else 6, 6), textcoords="offset points",
        ha="right" if left else "left", fontsize=8, color=COLORS[0],
    )  # fmt: skip
