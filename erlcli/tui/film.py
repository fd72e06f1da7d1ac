"""Films as a terminal can show them: pictures scaled to so many cells, and their half blocks.

Dimension letters: F pictures, H height, W width, in pixels; a cell is one pixel wide and two high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

if TYPE_CHECKING:
    from PIL.Image import Image

UPPER = "▀"
LARGEST = 4096  # pixels each way that a film may have
MOST = 1000  # pictures
DEPTH = 0xFC  # bits of a colour that are told apart: fewer styles, longer runs


@dataclass(frozen=True)
class Clip:
    """A film, scaled.

    Attributes:
        columns: cells that it takes.
        lines: cells that it takes.
        pixels: (F, 2 * lines, columns, 3) uint8; (0, 0, 0, 3) where the terminal draws pictures itself.
        pictures: F of them, for such a terminal.
        starts: (F,) when each is shown, in seconds.
        seconds: of the whole film.
    """

    columns: int
    lines: int
    pixels: NDArray[np.uint8]
    pictures: tuple[Image, ...]
    starts: NDArray[np.float64]
    seconds: float

    def at(self, second: float, hold: float) -> int:
        """The number of the picture that is shown `second` after the start of a loop with a pause at its end."""
        within = second % (self.seconds + hold)
        return max(int(np.searchsorted(self.starts, within, side="right")) - 1, 0)


def fitted(size: tuple[int, int], columns: int, lines: int, cell: tuple[int, int] = (1, 2)) -> tuple[int, int]:
    """Cells that a picture takes within `columns` x `lines`, in its own proportions.

    Args:
        size: of the picture in pixels, (width, height).
        columns: at most.
        lines: at most.
        cell: width and height of a cell, in any unit.
    """
    scale = min(columns * cell[0] / size[0], lines * cell[1] / size[1])
    wide, high = round(size[0] * scale / cell[0]), round(size[1] * scale / cell[1])
    return min(max(wide, 1), columns), min(max(high, 1), lines)


def load(path: Path, columns: int, lines: int, cell: tuple[int, int] | None = None) -> Clip:
    """Read a film and scale it. Takes a moment; meant for a thread.

    Args:
        path: an animated WebP.
        columns: at most so many cells.
        lines: at most so many cells.
        cell: in pixels, for a terminal that draws pictures itself; None for half blocks.

    Raises:
        OSError: there is no such film, or it can't be read.
        ValueError: it is larger than any that a run makes.
    """
    from PIL import Image

    pictures, durations = [], []
    with Image.open(path, formats=("WEBP",)) as film:
        if max(film.size) > LARGEST or getattr(film, "n_frames", 1) > MOST:
            raise ValueError(f"{path.name}: {film.width} x {film.height} pixels")
        wide, high = fitted(film.size, columns, lines, cell or (1, 2))
        size = (wide, 2 * high) if cell is None else film.size
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            picture = film.convert("RGB")
            durations.append(float(film.info.get("duration", 100)) / 1000.0)
            pictures.append(picture.resize(size, Image.Resampling.BOX) if size != picture.size else picture)
    ends = np.cumsum(durations)
    half = cell is None
    pixels = np.stack([np.asarray(p) for p in pictures]) if half else np.zeros((0, 0, 0, 3), np.uint8)
    return Clip(wide, high, pixels, () if half else tuple(pictures), ends - durations, float(ends[-1]))


def half_blocks(picture: NDArray[np.uint8]) -> Iterator[Strip]:
    """The lines of cells that show a picture of (2 * lines, columns, 3), equal neighbours in one segment."""
    reduced = (picture & DEPTH).astype(np.int64)
    colors = (reduced[..., 0] << 16) | (reduced[..., 1] << 8) | reduced[..., 2]  # (2 * lines, columns)
    columns = colors.shape[1]
    for upper, lower in zip(colors[::2], colors[1::2], strict=True):
        changes = np.flatnonzero((upper[1:] != upper[:-1]) | (lower[1:] != lower[:-1])) + 1
        bounds = [0, *changes.tolist(), columns]
        above, below = upper[bounds[:-1]].tolist(), lower[bounds[:-1]].tolist()
        yield Strip(
            [
                Segment((UPPER if a != b else " ") * (bounds[i + 1] - bounds[i]), _style(a, b))
                for i, (a, b) in enumerate(zip(above, below, strict=True))
            ],
            columns,
        )


@lru_cache(maxsize=16384)
def _style(above: int, below: int) -> Style:
    return Style(color=f"#{above:06x}", bgcolor=f"#{below:06x}")


def changed_lines(one: NDArray[Any], other: NDArray[Any]) -> list[int]:
    """Lines of cells in which two pictures of (2 * lines, columns, 3) differ."""
    rows = (one != other).any(axis=(1, 2))
    return [int(y) for y in np.flatnonzero(rows[::2] | rows[1::2])]
