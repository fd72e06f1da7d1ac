"""Lines of words at the top of a screen: what it is about on the left, how it stands on the right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, Part, spread

Word = tuple[str, str]  # a text and its tone, as in tables
Line = tuple[Sequence[Word], Sequence[Word]]  # its left and its right end
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
    """Words are dropped from the left end's tail so that the right end fits, but not more than half of them."""

    def parts(words: Sequence[Word]) -> list[Part]:
        return [(word, style_of(palette, tone)) for word, tone in words]

    room = width - 2 - sum(cell_len(word) for word, _ in right)
    keep = len(left)
    while keep > len(left) / 2 and sum(cell_len(word) for word, _ in left[:keep]) > room:
        keep -= 1
    fits = sum(cell_len(word) for word, _ in left[:keep]) <= room
    return spread(parts(left[:keep] if fits else left), parts(right if fits else ()), width, palette.plain)
