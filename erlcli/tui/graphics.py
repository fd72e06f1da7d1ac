"""Pictures that the terminal draws itself, by kitty's protocol or as sixels, where it is known to.

Terminals are told by their environment. Asking them would cost a round trip, and the answer would come in between the
keys that Textual reads; textual_image asks while it is imported, so it is imported here without a terminal to ask.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import os
import struct
import sys
import termios
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.segment import Segment
from textual.strip import Strip

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["kitty", "sixel", "blocks"]
CHOICE = "ERL_GRAPHICS"  # kitty, sixel or blocks: for terminals that are not told rightly
DEFAULT_CELL = (10, 20)  # pixels
CHUNK = 4096  # characters of one message of kitty's protocol


def kind(environ: Mapping[str, str]) -> Kind:
    """How the terminal of this environment shows pictures best."""
    chosen = environ.get(CHOICE, "")
    if chosen in ("kitty", "sixel", "blocks"):
        return chosen  # type: ignore[return-value]  # mypy doesn't narrow by `in`
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if environ.get("TMUX") or environ.get("STY") or term.startswith(("screen", "tmux")):
        return "blocks"  # multiplexers pass no pictures on
    if "KITTY_WINDOW_ID" in environ or term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    iterm = program == "iTerm.app" or environ.get("LC_TERMINAL") == "iTerm2"
    konsole = environ.get("KONSOLE_VERSION", "")
    modern_konsole = konsole.isdigit() and int(konsole) >= 220_400
    named = term.startswith(("foot", "wezterm", "mlterm", "contour")) or program in ("WezTerm", "contour")
    return "sixel" if iterm or modern_konsole or named else "blocks"


def cell_size() -> tuple[int, int]:
    """Width and height of a cell in pixels, from the kernel; a usual one where that doesn't know."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            data = fcntl.ioctl(stream.fileno(), termios.TIOCGWINSZ, bytes(8)) if stream else bytes(8)
        except (OSError, ValueError):  # no terminal, or a closed one
            continue
        lines, columns, width, height = struct.unpack("HHHH", data)
        if lines and columns and width >= columns and height >= lines:
            return width // columns, height // lines
    return DEFAULT_CELL


@contextlib.contextmanager
def _nobody_to_ask(cell: tuple[int, int]) -> Iterator[None]:
    """While textual_image is imported: no terminal, and the cell's size where it looks for it then."""
    names = ("TEXTUAL_CELL_WIDTH", "TEXTUAL_CELL_HEIGHT")
    before, stdout = {name: os.environ.get(name) for name in names}, sys.__stdout__
    os.environ.update(zip(names, map(str, cell), strict=True))
    sys.__stdout__ = io.StringIO()  # type: ignore[misc, assignment]  # enough for those who ask whether it is a terminal
    try:
        yield
    finally:
        sys.__stdout__ = stdout  # type: ignore[misc]
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def prepare(cell: tuple[int, int]) -> None:
    """Import what draws pictures, for cells of so many pixels. Takes a moment; meant for a thread."""
    with _nobody_to_ask(cell):
        import textual_image.widget  # noqa: F401 - for those below


def sixel_widget() -> Any:  # noqa: ANN401 - a widget without types
    """textual_image's widget for sixels, empty; after `prepare`."""
    from textual_image.widget import SixelImage

    return SixelImage()


class KittyPicture:
    """One picture of a film in a terminal with kitty's protocol: sent once, shown by cells that stand for it.

    Args:
        picture: of any size; the terminal scales it.
        number: of it in the terminal, from 1 to 2**24 - 1.
        columns: cells that it takes.
        lines: cells that it takes.
    """

    def __init__(self, picture: Image, number: int, columns: int, lines: int) -> None:
        from textual_image.renderable import TGPImage  # by `prepare` before

        self.number, self.columns, self.lines = number, columns, lines
        self._picture = picture
        self._cells = TGPImage(picture, width=columns, height=lines)
        self._cells.terminal_image_id = number  # it is taken for sent: whatever is sent goes through Textual's driver

    def message(self) -> str:
        """What makes the terminal keep the picture and know its cells."""
        data = io.BytesIO()
        self._picture.save(data, "PNG", compress_level=1)
        rest = base64.b64encode(data.getvalue()).decode()
        parts = []
        while rest:
            chunk, rest = rest[:CHUNK], rest[CHUNK:]
            parts.append(f"\x1b_Gi={self.number},f=100,q=2,m={int(bool(rest))};{chunk}\x1b\\")
        return "".join(parts) + f"\x1b_Ga=p,U=1,i={self.number},c={self.columns},r={self.lines},q=2\x1b\\"

    def farewell(self) -> str:
        """What makes the terminal forget it."""
        return f"\x1b_Ga=d,d=I,i={self.number},q=2\x1b\\"

    def strips(self, console: Console) -> list[Strip]:
        """The cells that stand for it, a strip a line."""
        options = console.options.update_dimensions(self.columns, self.lines)
        segments = (part for part in self._cells.__rich_console__(console, options) if isinstance(part, Segment))
        return [Strip([Segment(part.text.rstrip("\n"), part.style)], self.columns) for part in segments]
