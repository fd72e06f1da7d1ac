"""What a chart shows, worked out down to characters: curves, axes and legend. No widgets here.

Shapes: P points of a curve; H, W cells of the plot itself, without axes and legend.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from erlcli.tui.axes import Axis, clock_labels, clock_ticks, extent, labels, roomy, smooth, ticks
from erlcli.tui.raster import Canvas, Cells, Mode

Floats = npt.NDArray[np.float64]
TARGET = 20_000  # owner numbers that no curve has
MARK = 20_001


@dataclass(frozen=True, eq=False)
class Series:
    """A curve.

    Attributes:
        name: for the legend.
        x: (P,) ascending.
        y: (P,).
        color: number of its colour, see `theme.series_color`.
        low: (P,) lower edge of its band, e.g. of a confidence interval; None for no band.
        high: (P,) upper edge.
        points: whether every point gets a marker, as for evaluations.
        noisy: whether it may be smoothed.
        text: its one value in the legend, where the number that it is drawn at says it badly; None for the number.
    """

    name: str
    x: Floats
    y: Floats
    color: int = 0
    low: Floats | None = None
    high: Floats | None = None
    points: bool = False
    noisy: bool = False
    text: str | None = None

    def same(self, other: Series) -> bool:
        """Whether it looks the same."""
        return (
            (self.name, self.color, self.points, self.noisy, self.text)
            == (other.name, other.color, other.points, other.noisy, other.text)
            and _equal(self.x, other.x)
            and _equal(self.y, other.y)
            and _equal(self.low, other.low)
            and _equal(self.high, other.high)
        )

    def value_at(self, x: float) -> float | None:
        """The value of the point that is nearest to `x`; None beyond its ends."""
        if not len(self.x) or not self.x[0] <= x <= self.x[-1]:
            return None
        right = int(np.searchsorted(self.x, x))
        left = max(0, right - 1)
        return float(self.y[left if x - self.x[left] <= self.x[right] - x else right])


def _equal(a: Floats | None, b: Floats | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or np.array_equal(a, b, equal_nan=True)


@dataclass(frozen=True)
class Mark:
    """A point to find at a glance, e.g. the best evaluation."""

    x: float
    y: float
    color: int = 0


@dataclass
class Figure:
    """Everything that a chart shows.

    Attributes:
        series: the curves; later ones cover earlier ones.
        target: a value to reach, as a dashed line.
        marks: points to find at a glance.
        axis: what x counts.
        smoothing: width of the moving average of noisy curves, as a share of the x axis; 0 for none.
        window: the part of the x axis that is shown; None for all of it.
        cursor: the x whose values the legend tells; None for the last ones.
    """

    series: tuple[Series, ...] = ()
    target: float | None = None
    marks: tuple[Mark, ...] = ()
    axis: Axis = "steps"
    smoothing: float = 0.0
    window: tuple[float, float] | None = None
    cursor: float | None = None
    _smooth: dict[int, tuple[Series, float, Floats]] = field(default_factory=dict, repr=False)

    @property
    def reach(self) -> tuple[float, float] | None:
        """The first and the last x of all curves."""
        return extent(series.x for series in self.series)

    @property
    def view(self) -> tuple[float, float]:
        """The shown part of the x axis."""
        low, high = self.window or self.reach or (0.0, 1.0)
        if high > low:
            return low, high
        return (0.0, high) if high > 0 else (low - 0.5, high + 0.5)  # one point: seen from the start of the run

    def smoothed(self, index: int) -> Floats:
        """(P,) values of curve `index` as drawn."""
        series = self.series[index]
        if not self.smoothing or not series.noisy:
            return series.y
        low, high = self.reach or (0.0, 0.0)
        scale = self.smoothing * (high - low)
        known = self._smooth.get(index)
        if known is None or known[0] is not series or known[1] != scale:
            known = self._smooth[index] = (series, scale, smooth(series.x, series.y, scale))
        return known[2]

    def value(self, index: int) -> float | None:
        """What the legend tells of curve `index`: the value at the cursor, or the last one."""
        series, y = self.series[index], self.smoothed(index)
        if self.cursor is None:
            return float(y[-1]) if len(y) else None
        return Series("", series.x, y).value_at(self.cursor)

    def _levels(self) -> Iterable[Floats]:
        """All values on the y axis inside the view."""
        low, high = self.view
        for index, series in enumerate(self.series):
            shown = slice(*np.searchsorted(series.x, (low, high)) + np.array((-1, 1)))
            shown = slice(max(0, shown.start), shown.stop)  # and a point beyond each end: the curve leads there
            yield self.smoothed(index)[shown]
            for edge in (series.y if series.noisy else None, series.low, series.high):
                if edge is not None:
                    yield edge[shown]
        if self.target is not None:
            yield np.array([self.target])

    @property
    def height(self) -> tuple[float, float]:
        """The range of the y axis."""
        return roomy(*(extent(self._levels()) or (0.0, 1.0)))


@dataclass(frozen=True)
class Plot:
    """A figure at a size.

    Attributes:
        cells: (H, W) the plot itself.
        left: H labels of the y axis, all as wide; empty strings for no axis.
        bottom: the line of labels below, as wide as everything; None for no line.
        canvas: tells where a number lies.
        cursor: the column of cells under the cursor.
    """

    cells: Cells
    left: Sequence[str]
    bottom: str | None
    canvas: Canvas
    cursor: int | None

    @property
    def gutter(self) -> int:
        """Cells to the left of the plot."""
        return len(self.left[0]) if self.left else 0


def plot(figure: Figure, width: int, height: int, *, mode: Mode, axes: bool = True) -> Plot:
    """Draw a figure.

    Args:
        figure: what.
        width: of everything, in cells, at least 1.
        height: of everything, in cells, at least 1.
        mode: which characters to draw with.
        axes: whether to have axes, where there is room.
    """
    has_bottom = axes and height >= 5 and width >= 20
    rows = height - has_bottom
    low, high = figure.height
    marks = ticks(low, high, max(2, rows // 3)) if axes and rows >= 3 and width >= 20 else []
    words = labels(marks)
    gutter = max(map(len, words), default=-2) + 2
    canvas = Canvas(max(1, width - gutter), rows, x=figure.view, y=(low, high), mode=mode)
    _draw(canvas, figure)
    left = [f"{'':{gutter - 2}} │" if gutter else "" for _ in range(rows)]
    down = canvas.lines // rows
    for value, word in zip(marks, words, strict=True):
        left[int((float(canvas.line_of(value)) + 0.5) // down)] = f"{word:>{gutter - 2}} ┤"
    bottom = " " * gutter + _bottom(canvas, figure, mode) if has_bottom else None
    cursor = None
    if figure.cursor is not None:
        column = int((float(canvas.column_of(figure.cursor)) + 0.5) // 2)
        cursor = column if 0 <= column < canvas.width else None
    return Plot(canvas.cells(), left, bottom, canvas, cursor)


def _draw(canvas: Canvas, figure: Figure) -> None:
    for index, series in enumerate(figure.series):
        if series.low is not None and series.high is not None:
            canvas.band(series.x, series.low, series.high, 2 * index)
    if figure.target is not None:
        canvas.level(figure.target, TARGET)
    for index, series in enumerate(figure.series):
        if figure.smoothing and series.noisy:
            canvas.line(series.x, series.y, 2 * index + 1)
    dot, diamond = "•◆" if canvas.mode == "braille" else "o#"
    for index, series in enumerate(figure.series):
        canvas.line(series.x, figure.smoothed(index), 2 * index)
        if series.points and len(series.x) <= canvas.width // 2:  # more would hide the line
            canvas.points(series.x, series.y, 2 * index, dot)
    for mark in figure.marks:
        canvas.points([mark.x], [mark.y], MARK + mark.color, diamond)


def _bottom(canvas: Canvas, figure: Figure, mode: Mode) -> str:
    """The labels below the plot, each centred under its place where that fits."""
    low, high = figure.view
    clock = figure.axis == "seconds"
    values = (clock_ticks if clock else ticks)(low, high, max(2, canvas.width // 12))
    line = [" "] * canvas.width
    free = 0
    for value, word in zip(values, (clock_labels if clock else labels)(values), strict=True):
        centre = int((float(canvas.column_of(value)) + 0.5) // 2)
        start = min(max(centre - len(word) // 2, 0), canvas.width - len(word))
        if start >= free:
            line[start : start + len(word)] = word
            free = start + len(word) + 2
    return "".join(line)


def terminal_mode() -> Mode:
    """Braille, except on the Linux console, whose font has none."""
    return "quadrant" if os.environ.get("TERM") == "linux" else "braille"
