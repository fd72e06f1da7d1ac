"""The styles that widgets draw with, made from the theme and from the ground that a widget lies on."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style
from textual.color import Color
from textual.widget import Widget

from erlcli.tui.theme import series_color


class Palette:
    """Styles on one ground; equal grounds share one palette.

    Args:
        dark: which variant of the series' colours.
        ground: the colour behind.
        colors: of the theme, by name: foreground, success, warning, error, accent, boost.
    """

    def __init__(self, dark: bool, ground: Color, colors: tuple[tuple[str, str], ...]) -> None:
        self.dark, self.ground = dark, ground
        self._colors = {name: Color.parse(value) for name, value in colors}
        self._styles: dict[tuple[object, ...], Style] = {}
        text = self._colors["foreground"]
        self.plain = self._style(text)
        self.muted = self._style(text.blend(ground, 0.45))
        self.faint = self._style(text.blend(ground, 0.72))
        self.bright = self._style(text.blend(Color.parse("#ffffff" if dark else "#000000"), 0.6), bold=True)

    def _style(self, color: Color, ground: Color | None = None, *, bold: bool = False) -> Style:
        return Style(color=color.rich_color, bgcolor=(ground or self.ground).rich_color, bold=bold or None)

    def named(self, name: str, *, bold: bool = False) -> Style:
        """Text in a colour of the theme: success, warning, error, accent."""
        key = (name, bold)
        if key not in self._styles:
            self._styles[key] = self._style(self._colors[name], bold=bold)
        return self._styles[key]

    def series(self, index: int, *, pale: bool = False, bold: bool = False) -> Style:
        """Text in the colour of a curve; `pale` for what lies behind it."""
        return self.cell(index, None, pale=pale, bold=bold)

    def cell(
        self, index: int | None, tint: int | None, *, lit: bool = False, pale: bool = False, bold: bool = False
    ) -> Style:
        """A cell of a chart.

        Args:
            index: number of the colour of what is drawn there; None for muted.
            tint: number of the colour of the band behind it; None for no band.
            lit: whether it is under the cursor.
            pale: whether what is drawn is in the background.
            bold: as text.
        """
        key = (index, tint, lit, pale, bold)
        if key not in self._styles:
            ground = self.ground
            if tint is not None:
                ground = ground.blend(Color.parse(series_color(tint, dark=self.dark)), 0.2)
            if lit:
                ground = ground.blend(self._colors["foreground"], 0.16)
            if index is None:
                color = self._colors["foreground"].blend(self.ground, 0.45)
            else:
                color = Color.parse(series_color(index, dark=self.dark)).blend(self.ground, 0.62 if pale else 0.0)
            self._styles[key] = self._style(color, ground, bold=bold)
        return self._styles[key]


_palette = lru_cache(maxsize=32)(Palette)
NAMES = ("foreground", "primary", "success", "warning", "error", "accent")


def palette_of(widget: Widget) -> Palette:
    """The palette for what `widget` draws."""
    variables = widget.app.theme_variables
    ground = widget.background_colors[1]
    return _palette(widget.app.current_theme.dark, ground, tuple((name, variables[name]) for name in NAMES))
