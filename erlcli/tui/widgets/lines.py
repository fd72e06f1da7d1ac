"""The base of widgets that draw whole lines: all of them at once, and again only after a change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from erlcli.tui.palette import Palette, palette_of

Part = tuple[str, Style]


class Lines(Widget):
    """Subclasses implement `draw` and call `redraw` when what it would draw has changed."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._drawn: list[Strip] | None = None
        self._drawn_size = Size(0, 0)

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """The widget's lines, from the top; missing ones are blank, others are cut to the width.

        Args:
            width: in cells, at least 1.
            height: in cells, at least 1.
            palette: to draw with.
        """
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again before the next paint."""
        self._drawn = None
        self.refresh()

    def notify_style_update(self) -> None:
        """Another theme, or another ground."""
        self._drawn = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """Textual's question for a line of the content."""
        width, height = self.size
        if self._drawn is None or self._drawn_size != self.size:
            palette = palette_of(self)
            self._drawn_size = self.size
            drawn = self.draw(width, height, palette) if width and height else []
            self._drawn = [strip.adjust_cell_length(width, palette.plain) for strip in drawn[:height]]
        return self._drawn[y] if y < len(self._drawn) else Strip.blank(width, palette_of(self).plain)


def strip(*parts: Part) -> Strip:
    """A line of pieces of text, each in its style."""
    return Strip([Segment(text, style) for text, style in parts if text])


def spread(left: Sequence[Part], right: Sequence[Part], width: int, style: Style) -> Strip:
    """A line with something at either end; the right end goes first where there is no room for both."""
    start, end = strip(*left), strip(*right)
    gap = width - start.cell_length - end.cell_length
    if gap < 1:
        return start
    return Strip([*start, Segment(" " * gap, style), *end])


def clip(text: str, width: int) -> str:
    """`text` in at most `width` characters, with an ellipsis where something is missing."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 0 else ""
