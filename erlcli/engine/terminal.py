"""Pictures in a terminal, drawn with its characters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from erlcli.engine.video import Frame

Depth = Literal["truecolor", "256", "ascii"]
RAMP = " .:-=+*#%@"  # from dark to bright, for terminals without colour
CUBE = np.asarray([0, 95, 135, 175, 215, 255])  # levels of each channel in the 256 colours


def color_depth(environ: Mapping[str, str], encoding: str) -> Depth:
    """What a terminal can show: characters alone under NO_COLOR or without UTF-8, else as many colours as it says."""
    if environ.get("NO_COLOR") or not encoding.lower().replace("-", "").startswith("utf8"):
        return "ascii"
    direct = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or environ.get("TERM", "").endswith(
        "direct"
    )
    return "truecolor" if direct else "256"


def as_text(frame: Frame, columns: int, rows: int, depth: Depth) -> list[str]:
    """A frame as at most `rows` lines of at most `columns` characters, its proportions kept.

    A cell is about twice as tall as wide. In colour it shows two pixels, one above the other: the upper half block in
    the colour of the one on the colour of the other.
    """
    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    across = max(1, min(columns, round(width * scale)))
    down = max(1, min(rows, round(height * scale / 2)))
    if depth == "ascii":
        gray = _resized(frame, down, across) @ np.asarray([0.299, 0.587, 0.114])
        return ["".join(RAMP[i] for i in line) for line in (gray / 256 * len(RAMP)).astype(int).tolist()]
    pixels = _resized(frame, 2 * down, across).round().astype(np.int64)
    codes = (pixels << np.asarray([16, 8, 0])).sum(2) if depth == "truecolor" else _nearest_of_256(pixels)
    cells = zip(codes[0::2].tolist(), codes[1::2].tolist(), strict=True)
    return [_half_blocks(upper, lower, depth) for upper, lower in cells]


def _resized(frame: Frame, down: int, across: int) -> NDArray[np.float64]:
    """(down, across, 3): means over areas where it shrinks, repeated pixels where it grows."""
    image = frame.astype(np.float64)
    for axis, size in ((0, down), (1, across)):
        length = image.shape[axis]
        starts = np.arange(size) * length // size
        if size >= length:
            image = image.take(starts, axis)
        else:
            counts = np.diff(np.append(starts, length)).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
            image = np.add.reduceat(image, starts, axis) / counts
    return image


def _nearest_of_256(pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """(H, W, 3) to the index of the nearest of the 216 colours of the cube and the 24 grays."""
    steps = np.searchsorted((CUBE[1:] + CUBE[:-1]) / 2, pixels)
    gray = np.clip((pixels.mean(2) - 3) // 10, 0, 23).astype(np.int64)
    off_cube = ((CUBE[steps] - pixels) ** 2).sum(2)
    off_gray = ((8 + 10 * gray[..., None] - pixels) ** 2).sum(2)
    nearest: NDArray[np.int64] = np.where(off_gray < off_cube, 232 + gray, 16 + steps @ np.asarray([36, 6, 1]))
    return nearest


def _half_blocks(upper: list[int], lower: list[int], depth: Depth) -> str:
    """One line of cells; a colour is named only where it changes."""
    parts: list[str] = []
    top = bottom = -1
    for above, below in zip(upper, lower, strict=True):
        if above != top:
            parts.append(f"\x1b[38;{_color(above, depth)}m")
        if below != bottom:
            parts.append(f"\x1b[48;{_color(below, depth)}m")
        top, bottom = above, below
        parts.append("▀")
    return "".join(parts) + "\x1b[0m"


def _color(code: int, depth: Depth) -> str:
    return f"2;{code >> 16};{code >> 8 & 255};{code & 255}" if depth == "truecolor" else f"5;{code}"


class Screen:
    """A terminal's second screen for the time of the `with` block; the first comes back whatever happens.

    Args:
        stream: the terminal.
        depth: what it can show.
        size: asks for its size, at every frame.
    """

    def __init__(self, stream: TextIO, depth: Depth, size: Callable[[], os.terminal_size]) -> None:
        self.stream, self.depth, self._size = stream, depth, size
        self._shown: tuple[object, ...] = ()

    def __enter__(self) -> Screen:
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")  # second screen, no cursor, empty
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\x1b[0m\x1b[?25h\x1b[?1049l")

    def show(self, frame: Frame, status: str) -> None:
        """Draw a frame, and a line of text below it."""
        size = self._size()
        lines = as_text(frame, size.columns, max(1, size.lines - 1), self.depth)
        if size.lines > 1:
            lines.append(status[: max(0, size.columns - 1)])
        shape = (size, frame.shape)
        clear = "\x1b[2J" if shape != self._shown else ""
        self._shown = shape
        # Each line ends with the rest of it erased; the last has no line feed, which would scroll.
        self._write(f"{clear}\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines))

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
