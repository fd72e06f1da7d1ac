"""Lines of words at the top of a screen: what it is about on the left, how it stands on the right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, Part, clip, spread

Word = tuple[str, str]  # a text and its tone, as in tables
Line = tuple[Sequence[Word], Sequence[Word]]  # its left and its right end
LONG_NAME, SHORT_NAME = 24, 8  # cells that a name keeps before other words go, and after
STATE_TONES = {
    "starting": "accent", "running": "good", "evaluating": "good", "stopping": "warn", "paused": "warn",
    "interrupted": "warn", "parked": "warn", "finished": "muted", "champion": "bright", "failed": "bad",
    "diverged": "bad", "dead": "bad",
}  # fmt: skip


def state_tone(state: str) -> str:
    """The tone of a state's word; muted for all that neither trains nor is in trouble."""
    return STATE_TONES.get(state, "muted")


def style_of(palette: Palette, tone: str) -> Style:
    """The style of a tone."""
    named = {"good": "success", "warn": "warning", "bad": "error", "accent": "accent"}
    if tone in named:
        return palette.named(named[tone])
    return {"muted": palette.muted, "faint": palette.faint, "bright": palette.bright}.get(tone, palette.plain)


class Banner(Lines):
    """See the module's docstring; as many lines as its height, the first ones first."""

    DEFAULT_CSS = "Banner { height: 1; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[Line, ...] = ()

    def show(self, *lines: Line) -> None:
        """Show these lines; draws only if they differ."""
        if lines != self._lines:
            self._lines = lines
            self.redraw()

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return "\n".join("".join(word for word, _ in (*left, *right)) for left, right in self._lines)

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """The lines."""
        return [_line(left, right, width, palette) for left, right in self._lines[:height]]


def _line(left: Sequence[Word], right: Sequence[Word], width: int, palette: Palette) -> Strip:
    """The left end gives way to the right one, which goes only where even that doesn't help."""

    def parts(words: Sequence[Word]) -> list[Part]:
        return [(word, style_of(palette, tone)) for word, tone in words]

    room = width - 2 - _cells(right)
    shown = _fitting(left, room)
    fits = _cells(shown) <= room
    return spread(parts(shown if fits else left), parts(right if fits else ()), width, palette.plain)


def _fitting(words: Sequence[Word], room: int) -> list[Word]:
    """A long name is clipped first; then words go from the tail, but not more than half; then the name again."""
    words = _clipped(words, room, LONG_NAME)
    keep = len(words)
    while keep > len(words) / 2 and _cells(words[:keep]) > room:
        keep -= 1
    return _clipped(words[:keep], room, SHORT_NAME)


def _clipped(words: Sequence[Word], room: int, least: int) -> list[Word]:
    """The longest word made as short as `room` asks for, though not below `least` cells."""
    shown = list(words)
    if (excess := _cells(shown) - room) > 0:
        at = max(range(len(shown)), key=lambda place: len(shown[place][0]))
        word, tone = shown[at]
        if len(word) > least:
            shown[at] = (clip(word, max(least, len(word) - excess)), tone)
    return shown


def _cells(words: Sequence[Word]) -> int:
    return sum(cell_len(word) for word, _ in words)
