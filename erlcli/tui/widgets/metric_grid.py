"""Small curves of many metrics, and their last values on one line where there is no room for curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from textual.strip import Strip

from erlcli.tui.axes import extent, roomy, short
from erlcli.tui.figure import terminal_mode
from erlcli.tui.palette import Palette
from erlcli.tui.raster import Canvas, Cells
from erlcli.tui.widgets.lines import Lines, Part, clip, strip

NARROWEST, LOWEST, GAP = 22, 4, 3  # cells


@dataclass(frozen=True, eq=False)
class Mini:
    """A metric.

    Attributes:
        name: in the metric rows.
        x: (P,) steps, ascending.
        y: (P,) values.
    """

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]

    @property
    def value(self) -> str:
        """The newest one."""
        return short(float(self.y[-1])) if len(self.y) else "-"


def metric_label(name: str) -> str:
    """A metric's name for people: its group is told only where it is a part of the name."""
    group, _, rest = name.partition("/")
    words = (rest or group).replace("_", " ").replace("variance", "var")
    return f"{words} loss" if group == "loss" and rest != "grad_norm" else words


class Metrics(Lines):
    """What both ways to show metrics share."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.minis: tuple[Mini, ...] = ()

    def update_from(self, minis: Sequence[Mini]) -> None:
        """Show these, in this order."""
        new = tuple(minis)
        same = len(new) == len(self.minis) and all(
            a.name == b.name and a.x is b.x and a.y is b.y for a, b in zip(new, self.minis, strict=True)
        )
        if not same:
            self.minis = new
            self.redraw()


class MetricLine(Metrics):
    """The last values on one line: as many as fit."""

    DEFAULT_CSS = "MetricLine { height: 1; padding: 0 1; }"

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Whole pairs of name and value only."""
        parts: list[Part] = []
        for mini in self.minis:
            label, value = metric_label(mini.name), mini.value
            width -= len(label) + len(value) + 1
            if width < 0:
                break
            parts += [(label + " ", palette.muted), (value, palette.bright), ("  ", palette.plain)]
            width -= 2
        return [strip(*parts)]


class MetricGrid(Metrics):
    """A small curve each, in as many rows and columns as fit."""

    DEFAULT_CSS = "MetricGrid { height: 1fr; width: 1fr; }"

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Each with its name and its last value above it."""
        if not self.minis or width < 4 or height < 2:
            return []
        columns, rows = arrange(len(self.minis), width, height)
        shown = self.minis[: columns * rows]
        reach = extent(mini.x for mini in shown) or (0.0, 1.0)
        scale = max(len(text) for mini in shown for text in _scale(extent([mini.y])))  # so that all curves are as wide
        lines: list[Strip] = []
        for row in range(rows):
            tall = height * (row + 1) // rows - height * row // rows
            blocks: list[list[Strip]] = []
            for column, mini in enumerate(shown[row * columns : (row + 1) * columns]):
                start, stop = ((width + GAP) * i // columns for i in (column, column + 1))
                block = _block(
                    mini, stop - start - GAP, tall - (rows > 1), reach, scale, row * columns + column, palette
                )
                gap = strip((" " * (GAP if column < columns - 1 else 0), palette.plain))
                blocks.append([Strip([*line, *gap]) for line in block])
            lines += [Strip([piece for line in parts for piece in line]) for parts in zip(*blocks, strict=True)]
            lines += [Strip([])] * (rows > 1)
        return lines


def arrange(number: int, width: int, height: int) -> tuple[int, int]:
    """Columns and rows for `number` small curves: all of them where they fit, and no hole larger than needed."""
    most_columns = max(1, (width + GAP) // (NARROWEST + GAP))
    most_rows = max(1, height // LOWEST)
    rows = min(most_rows, -(-number // most_columns))
    columns = min(most_columns, -(-number // rows))
    return columns, rows


def _block(
    mini: Mini, width: int, height: int, reach: tuple[float, float], wide: int, color: int, palette: Palette
) -> list[Strip]:
    """One curve under its name; the lowest and the highest value at its right, `wide` cells, where there is room."""
    value = mini.value
    label = clip(metric_label(mini.name), max(0, width - len(value) - 1))
    gap = " " * max(0, width - len(label) - len(value))
    lines = [strip((label, palette.muted), (gap, palette.plain), (value, palette.bright))]
    rows = height - 1
    bounds = extent([mini.y])
    if rows < 1 or bounds is None:
        return lines + [strip((" " * width, palette.plain))] * max(0, rows)
    wide = wide + 1 if rows >= 2 and width >= 20 else 0
    cells = curve(mini, width - wide, rows, reach, bounds)
    top, bottom = _scale(bounds)
    for row in range(rows):
        text = top if row == 0 else bottom if row == rows - 1 else ""
        lines.append(strip((cells.text(row), palette.series(color)), (f"{text:>{wide}}" * (wide > 0), palette.faint)))
    return lines


def _scale(bounds: tuple[float, float] | None) -> tuple[str, str]:
    """The highest and the lowest value as text; nothing for a constant, whose value is told already."""
    return ("", "") if bounds is None or bounds[0] == bounds[1] else (short(bounds[1]), short(bounds[0]))


def curve(mini: Mini, width: int, height: int, reach: tuple[float, float], bounds: tuple[float, float]) -> Cells:
    """The curve alone."""
    x = reach if reach[1] > reach[0] else (reach[0] - 0.5, reach[0] + 0.5)
    canvas = Canvas(max(1, width), height, x=x, y=roomy(*bounds, margin=0.02), mode=terminal_mode())
    canvas.line(mini.x, mini.y, 0)
    return canvas.cells()
