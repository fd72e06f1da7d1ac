"""Curves as terminal cells: numbers go in, a glyph and the number of the curve it belongs to come out of every cell.

A cell holds a small grid of dots: 2 x 4 as a braille character, 2 x 2 as a quadrant block where the font has no
braille. All drawing is done on whole arrays, so that a million points cost a few milliseconds.

Shapes: H, W cells; a cell is `DOTS[mode]` dots wide and high; P points of a curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Mode = Literal["braille", "quadrant"]
Floats = npt.NDArray[np.float64]
DOTS: dict[Mode, tuple[int, int]] = {"braille": (2, 4), "quadrant": (2, 2)}  # across, down
NOBODY = -1

# Weight of each dot inside its cell, by row and column, as Unicode numbers the braille patterns ...
_BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint32)
# ... and in reading order for quadrants, whose characters Unicode has in no order at all.
_QUADRANT = np.array([[1, 2], [4, 8]], dtype=np.uint32)
_GLYPHS: dict[Mode, npt.NDArray[np.uint32]] = {
    "braille": np.arange(0x2800, 0x2900, dtype=np.uint32),
    "quadrant": np.array([ord(glyph) for glyph in " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"], dtype=np.uint32),
}
_WEIGHTS: dict[Mode, npt.NDArray[np.uint32]] = {"braille": _BRAILLE, "quadrant": _QUADRANT}
_FAR = 1e6  # dots; whatever is further out is as far out, and no overflow


@dataclass(frozen=True)
class Cells:
    """What to print.

    Attributes:
        glyphs: (H, W) code points; a space where there is nothing.
        owner: (H, W) the number of the curve whose glyph it is, or `NOBODY`.
        tint: (H, W) the number of the curve whose band lies behind it, or `NOBODY`.
    """

    glyphs: npt.NDArray[np.uint32]
    owner: npt.NDArray[np.int16]
    tint: npt.NDArray[np.int16]

    def text(self, row: int) -> str:
        """The characters of one row, W of them."""
        return bytes(self.glyphs[row].astype("<u4").tobytes()).decode("utf-32-le")


class Canvas:
    """A rectangle of cells over a rectangle of numbers. What is drawn later covers what was drawn before.

    Args:
        width: in cells, at least 1.
        height: in cells, at least 1.
        x: the numbers at the centres of the leftmost and of the rightmost dot.
        y: the same from the lowest to the highest dot.
        mode: which characters to draw with.
    """

    def __init__(
        self, width: int, height: int, *, x: tuple[float, float], y: tuple[float, float], mode: Mode = "braille"
    ) -> None:
        self.width, self.height, self.mode = width, height, mode
        across, down = DOTS[mode]
        self.columns, self.lines = width * across, height * down
        self._x, self._y = x, y
        self._bits = np.zeros((height, width), dtype=np.uint32)
        self._marks = np.zeros((height, width), dtype=np.uint32)
        self._owner = np.full((height, width), NOBODY, dtype=np.int16)
        self._tint = np.full((height, width), NOBODY, dtype=np.int16)
        self._down = np.arange(self.lines)[:, None]

    def column_of(self, x: npt.ArrayLike) -> Floats:
        """Where numbers lie, in dots from the left; 0 is the centre of the first dot."""
        return _scale(np.asarray(x, dtype=np.float64), *self._x, self.columns)

    def line_of(self, y: npt.ArrayLike) -> Floats:
        """Where numbers lie, in dots from the top; 0 is the centre of the first dot."""
        return self.lines - 1 - _scale(np.asarray(y, dtype=np.float64), *self._y, self.lines)

    def line(self, x: npt.ArrayLike, y: npt.ArrayLike, owner: int) -> None:
        """Draw a curve: in every column of dots, from the lowest to the highest value that it takes there.

        So it has no gaps, and a spike of one row among a million is seen.

        Args:
            x: (P,) ascending.
            y: (P,); points that are not finite are passed over.
            owner: number of the curve.
        """
        across, values = self._finite(x, y)
        if not across.size or across[-1] < -0.5 or across[0] >= self.columns - 0.5:
            return
        first = max(0, int(np.floor(across[0] + 0.5)))
        last = max(first, min(self.columns - 1, int(np.ceil(across[-1] - 0.5))))
        edges = np.arange(first, last + 2) - 0.5
        lines = self.line_of(values)
        at_edges = np.interp(edges, across, lines)
        high = np.minimum(at_edges[:-1], at_edges[1:])  # the smaller line number is the higher one
        low = np.maximum(at_edges[:-1], at_edges[1:])
        starts = np.searchsorted(across, edges)
        filled = np.flatnonzero(starts[1:] > starts[:-1])
        if filled.size:
            inside = lines[: starts[-1]]
            high[filled] = np.minimum(high[filled], np.minimum.reduceat(inside, starts[filled]))
            low[filled] = np.maximum(low[filled], np.maximum.reduceat(inside, starts[filled]))
        self._spans(first, high, low, owner)

    def _finite(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Columns and values of what can be seen, with one more point on either side for the way there."""
        across, values = self.column_of(x), np.asarray(y, dtype=np.float64)
        finite = np.isfinite(values) & np.isfinite(across)
        if not finite.all():
            across, values = across[finite], values[finite]
        start = max(0, int(np.searchsorted(across, -0.5)) - 1)
        stop = int(np.searchsorted(across, self.columns - 0.5, side="right")) + 1
        return across[start:stop], values[start:stop]

    def _spans(self, column: int, high: Floats, low: Floats, owner: int) -> None:
        """Draw a vertical span a column, from `column` on.

        A span ends where the next one begins, so each takes the dots whose lower edge it passes, and no dot twice.
        """
        top = np.floor(high + 0.5).astype(np.int64)
        bottom = np.maximum(np.ceil(low + 0.5).astype(np.int64) - 1, top)
        dots = np.zeros((self.lines, self.columns), dtype=bool)
        dots[:, column : column + len(top)] = (self._down >= top) & (self._down <= bottom)
        self._dots(dots, owner)

    def _dots(self, dots: npt.NDArray[np.bool_], owner: int) -> None:
        """Set (lines, columns) dots; a cell that another curve has drawn in before becomes this one's alone."""
        across, down = DOTS[self.mode]
        weights = _WEIGHTS[self.mode]
        split = dots.reshape(self.height, down, self.width, across)
        bits = np.zeros((self.height, self.width), dtype=np.uint32)
        for i in range(down):
            for j in range(across):
                bits += split[:, i, :, j] * weights[i, j]
        mine = bits > 0
        self._bits = np.where(mine, np.where(self._owner == owner, self._bits | bits, bits), self._bits)
        self._marks[mine] = 0
        self._owner[mine] = owner

    def points(self, x: npt.ArrayLike, y: npt.ArrayLike, owner: int, glyph: str) -> None:
        """Put a character where each point is; points outside are not shown.

        Args:
            x: (P,) in any order.
            y: (P,).
            owner: number of the curve.
            glyph: one character, one cell wide.
        """
        across, down = DOTS[self.mode]
        column, line = self.column_of(x), self.line_of(y)
        inside = (column >= -0.5) & (column < self.columns - 0.5) & (line >= -0.5) & (line < self.lines - 0.5)
        cells = (
            np.floor((line[inside] + 0.5) / down).astype(np.int64),
            np.floor((column[inside] + 0.5) / across).astype(np.int64),
        )
        self._marks[cells] = ord(glyph)
        self._bits[cells] = 0
        self._owner[cells] = owner

    def band(self, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, owner: int) -> None:
        """Tint the cells that lie, by half of their height or more, between two curves.

        Args:
            x: (P,) ascending.
            low: (P,) lower edge.
            high: (P,) upper edge.
            owner: number of the curve that the band belongs to.
        """
        across, down = DOTS[self.mode]
        column, bottom, top = self.column_of(x), self.line_of(low), self.line_of(high)
        finite = np.isfinite(column) & np.isfinite(bottom) & np.isfinite(top)
        column, bottom, top = column[finite], bottom[finite], top[finite]
        if len(column) < 2:
            return
        centres = np.arange(self.width) * across + (across - 1) / 2
        upper = np.interp(centres, column, top, left=np.nan, right=np.nan)
        lower = np.interp(centres, column, bottom, left=np.nan, right=np.nan)
        edges = np.arange(self.height)[:, None] * down - 0.5  # of cells, from the top, in dots
        overlap = np.minimum(lower, edges + down) - np.maximum(upper, edges)
        self._tint[overlap >= down / 2] = owner  # NaN compares as false: nothing beyond the ends

    def level(self, y: float, owner: int) -> None:
        """Draw a dashed horizontal line: two dots on, two dots off.

        Args:
            y: where; nothing is drawn where that is outside.
            owner: number of the line.
        """
        line = int(np.rint(self.line_of(y)))
        if 0 <= line < self.lines:
            dots = np.zeros((self.lines, self.columns), dtype=bool)
            dots[line] = np.arange(self.columns) // 2 % 2 == 0
            self._dots(dots, owner)

    def cells(self) -> Cells:
        """What was drawn."""
        glyphs = np.where(self._bits > 0, _GLYPHS[self.mode][self._bits], np.uint32(ord(" ")))
        return Cells(np.where(self._marks > 0, self._marks, glyphs), self._owner, self._tint)


def _scale(values: Floats, low: float, high: float, count: int) -> Floats:
    """Numbers from `low` to `high` as dots from 0 to `count` - 1; the middle one where they are the same."""
    if high == low:
        return np.where(values == low, (count - 1) / 2, np.where(values < low, -_FAR, _FAR))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled: Floats = np.clip((values - low) / (high - low) * (count - 1), -_FAR, _FAR)
    return scaled
