"""Learning curves of several runs over each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count, plural, score, seconds, task
from erlcli.runs.view import FOLLOWED_ROWS, RunView
from erlcli.tui.axes import Axis
from erlcli.tui.figure import Floats, Series
from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.back import go_back
from erlcli.tui.widgets.banner import Banner, state_tone
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.table import Table

MOST = 8  # curves, each of a colour of its own; more can't be told apart


@dataclass(frozen=True)
class Standing:
    """How a run stands, as the table shows it.

    Attributes:
        path: of the run.
        color: number of its curve's colour.
        name: of the run.
        state: its state's word.
        best: best return of a full evaluation; None before one.
        best_steps: at which steps that was.
        steps: done.
        elapsed: seconds of training.
        rate: steps a second, over the whole run.
    """

    path: str
    color: int
    name: str
    state: str
    best: float | None = None
    best_steps: int | None = None
    steps: int = 0
    elapsed: float | None = None
    rate: float | None = None


@dataclass(frozen=True, eq=False)
class Curves:
    """Both curves of a run, over steps and over seconds: arrays (P,) of equal length."""

    steps: Floats
    seconds: Floats
    values: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass
class Contender:
    """A run of the comparison, read in the reader's thread."""

    path: Path
    name: str
    color: int
    view: RunView = field(init=False)
    standing: Standing = field(init=False)
    training: Curves | None = None
    evaluations: Curves | None = None
    _stamp: object = None

    def __post_init__(self) -> None:
        self.view = RunView(RunLayout(self.path), max_rows=FOLLOWED_ROWS)
        self.standing = Standing(str(self.path), self.color, self.name, "")

    def read(self) -> bool:
        """Take in what is new; whether there was anything."""
        view = self.view
        if not view.refresh() and self.evaluations is not None:
            return False
        rows, best = view.metrics.rows, view.best
        stamp = (view.metrics.version, view.evals.version)
        if stamp != self._stamp:  # not at every heartbeat
            self._stamp = stamp
            self.training = curves_of(rows, "episode/return")
            self.evaluations = curves_of(view.evals.rows, "return_mean", "return_ci")
        self.standing = Standing(
            path=str(self.path),
            color=self.color,
            name=self.name,
            state=view.state,
            best=_number(best.get("return_mean")) if best else None,
            best_steps=int(best["steps"]) if best else None,
            steps=view.steps,
            elapsed=view.elapsed,
            rate=view.mean_rate,
        )
        return True

    def series(self, *, evaluations: bool, axis: Axis) -> Series | None:
        """Its curve; None where there are no points yet."""
        curves = self.evaluations if evaluations else self.training
        if curves is None or not len(curves.values):
            return None
        x = curves.steps if axis == "steps" else curves.seconds
        return Series(
            self.name, x, curves.values, self.color, curves.low, curves.high, points=evaluations, noisy=not evaluations
        )


def _number(value: Any) -> float | None:  # noqa: ANN401 - from JSON
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        return None
    return float(value)


def curves_of(rows: Sequence[Row], name: str, interval: str | None = None) -> Curves:
    """The rows that have a number under `name`.

    Args:
        rows: of metrics.jsonl or evals.jsonl, ordered by steps.
        name: of the values.
        interval: name of a pair [low, high] around each.
    """
    points: list[tuple[float, float, float, float, float]] = []
    for row in rows:
        value = _number(row.get(name))
        if value is None:
            continue
        ends = row.get(interval) if interval else None
        low, high = ends if isinstance(ends, list) and len(ends) == 2 else (value, value)
        low, high = _number(low), _number(high)
        points.append(
            (
                row["steps"],
                _number(row.get("time/seconds")) or 0.0,
                value,
                value if low is None else low,
                value if high is None else high,
            )
        )
    table = np.array(points, dtype=np.float64).reshape(-1, 5)
    steps, elapsed, values, lows, highs = table.T
    return Curves(steps, elapsed, values, lows if interval else None, highs if interval else None)


def _or_dash(show: Callable[[Any], str], value: float | None) -> str:
    return "-" if value is None else show(value)


COLUMNS: tuple[Column[Standing], ...] = (
    Column("", 2, lambda run, _: "━━", tone=lambda run: f"series {run.color}"),
    Column("run", 12, lambda run, _: run.name, lambda run: run.name, lambda run: "bright", grow=1, most=40),
    Column("state", 11, lambda run, _: run.state, lambda run: run.state, lambda run: state_tone(run.state), keep=4),
    Column("best", 8, lambda run, _: _or_dash(score, run.best), lambda run: run.best, right=True,
           falling=True, keep=1),
    Column("at", 7, lambda run, _: _or_dash(count, run.best_steps), lambda run: run.best_steps,
           lambda run: "muted", right=True, keep=5),
    Column("steps", 7, lambda run, _: count(run.steps), lambda run: run.steps, right=True, falling=True, keep=2),
    Column("steps/s", 8, lambda run, _: _or_dash("{:,.0f}".format, run.rate), lambda run: run.rate, right=True,
           falling=True, keep=3),
    Column("elapsed", 8, lambda run, _: seconds(run.elapsed), lambda run: run.elapsed, right=True, keep=6),
)  # fmt: skip


class CompareScreen(LiveScreen):
    """See the module's docstring.

    Args:
        paths: run directories; the first `MOST` are shown.
    """

    DEFAULT_CSS = """
    CompareScreen {
        & #curves {
            border: round $border-blurred;
            border-title-color: $foreground-muted;
            border-subtitle-color: $foreground-muted;
            height: 1fr;
        }
        & Table { height: auto; max-height: 50%; min-height: 3; }
        &.-flat Table, &.-tiny Table { display: none; }
        &.-tiny #curves { border: none; }
        &.-tiny Footer, &.-tiny Banner { display: none; }
    }
    """
    AUTO_FOCUS = "Table"
    BINDING_GROUP_TITLE = "Comparison"
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (6, "-flat"), (18, "-high")]  # noqa: RUF012 - as on Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "measure", "Evaluation/training"),
        Binding("x", "axis", "Steps/time"),
        Binding("escape", "back", "Back"),
        *(  # the table has the focus, and the chart its keys nevertheless
            Binding(binding.key, f"on_chart({binding.action!r})", binding.description, show=False,
                    key_display=binding.key_display)
            for binding in Chart.BINDINGS if isinstance(binding, Binding)
        ),
    ]  # fmt: skip

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        names = _short_names([path.absolute() for path in paths])
        pairs = list(zip(paths, names, strict=True))[:MOST]
        self._left_out = len(paths) - len(pairs)
        self.contenders = [Contender(path, name, color) for color, (path, name) in enumerate(pairs)]
        self.evaluations = True
        self.axis: Axis = "steps"
        self._banner = Banner()
        self._chart = Chart(id="curves")
        self._table: Table[Standing] = Table(COLUMNS, key=lambda run: run.path, order="best", empty="no runs")
        self._table.border_title = "runs"

    def compose(self) -> ComposeResult:
        """Curves above, figures below."""
        yield self._banner
        yield self._chart
        yield self._table
        yield Keys()

    def read(self) -> bool:
        """Read each run on."""
        return any([contender.read() for contender in self.contenders])

    def show(self) -> None:
        """Curves and figures."""
        shown = [c.series(evaluations=self.evaluations, axis=self.axis) for c in self.contenders]
        targets = {contender.view.target for contender in self.contenders}
        self._chart.show(
            [series for series in shown if series is not None],
            target=targets.pop() if len(targets) == 1 else None,  # different tasks have no common target
            axis=self.axis,
        )
        self._table.show_items([contender.standing for contender in self.contenders])
        what = "mean return of evaluations" if self.evaluations else "return of training episodes"
        self._chart.border_title = what
        self._chart.border_subtitle = "by steps" if self.axis == "steps" else "by time"
        left_out = [(f"  {self._left_out} more are left out", "warn")] if self._left_out else []
        tasks = sorted({task(contender.view.env) for contender in self.contenders})
        self._banner.show(
            (
                [("compare ", "muted"), (", ".join(tasks), "bright"), *left_out],
                [(plural(len(self.contenders), "run"), "muted")],
            )
        )

    def on_table_opened(self, message: Table.Opened) -> None:
        """Look at one of them."""
        from erlcli.tui.screens.run import RunScreen

        self.app.push_screen(RunScreen(RunLayout(Path(message.key))))

    def action_measure(self) -> None:
        """Switch between evaluations and training."""
        self.evaluations = not self.evaluations
        self.show()

    def action_axis(self) -> None:
        """Switch between steps and time."""
        self.axis = "seconds" if self.axis == "steps" else "steps"
        self.show()

    async def action_on_chart(self, action: str) -> None:
        """Zoom, pan, read values off, smooth."""
        await self.app.run_action(action, self._chart)

    def action_back(self) -> None:
        """Return to where it was opened from."""
        go_back(self)


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Names that tell the runs apart: the folder's, with its parent's where that occurs twice."""
    names = [path.name for path in paths]
    return [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for name, path in zip(names, paths, strict=True)
    ]
