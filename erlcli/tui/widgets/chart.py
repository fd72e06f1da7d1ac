"""Curves over steps or time, with axes, legend, zoom and a cursor that reads values off."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from erlcli.runs.text import count, seconds
from erlcli.tui.axes import Axis, short
from erlcli.tui.figure import MARK, TARGET, Figure, Mark, Plot, Series, plot, terminal_mode
from erlcli.tui.palette import Palette
from erlcli.tui.raster import NOBODY
from erlcli.tui.widgets.lines import Lines, Part, clip, strip

ZOOM = 1.5  # a key press or a notch of the wheel
SMOOTHINGS = (0.0, 0.01, 0.03, 0.1)  # shares of the x axis
EMPTY = "no rows yet"


class Chart(Lines, can_focus=True):
    """See the module's docstring. `show` gives it what to draw; keys act on the chart that has the focus."""

    BINDING_GROUP_TITLE = "Curve"
    DEFAULT_CSS = "Chart { height: 1fr; width: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(True)", "Zoom in", key_display="+", show=False),
        Binding("minus", "zoom(False)", "Zoom out", key_display="-", show=False),
        Binding("0", "whole", "Whole curve", show=False),
        Binding("left", "cursor(-1)", "Read values off", show=False),
        Binding("right", "cursor(1)", "Read values off", show=False),
        Binding("shift+left", "pan(-0.2)", "Pan", show=False),
        Binding("shift+right", "pan(0.2)", "Pan", show=False),
        Binding("w", "smoothing", "Smoothing", show=False),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.figure = Figure(smoothing=SMOOTHINGS[1])
        self._plot: Plot | None = None
        self._hovering = False

    def show(
        self,
        series: Sequence[Series],
        *,
        target: float | None = None,
        marks: Sequence[Mark] = (),
        axis: Axis = "steps",
    ) -> None:
        """Show these curves; draws only where they differ from what is shown.

        Args:
            series: the curves; later ones cover earlier ones.
            target: a value to reach, as a dashed line.
            marks: points to find at a glance.
            axis: what x counts; another one than before resets zoom and cursor.
        """
        figure, new, marks = self.figure, tuple(series), tuple(marks)
        same = len(new) == len(figure.series) and all(a.same(b) for a, b in zip(new, figure.series, strict=True))
        if same and (target, marks, axis) == (figure.target, figure.marks, figure.axis):
            return
        end = figure.reach
        if axis != figure.axis:
            figure.window = figure.cursor = None
        figure.series, figure.target, figure.marks, figure.axis = new, target, marks, axis
        self._follow(end)
        self.redraw()

    def _follow(self, before: tuple[float, float] | None) -> None:
        """A zoomed view that showed the newest rows goes on to do so."""
        window, reach = self.figure.window, self.figure.reach
        if window and before and reach and window[1] >= before[1]:
            self.figure.window = (window[0] + reach[1] - window[1], reach[1])

    # What keys and mouse do

    def action_zoom(self, closer: bool) -> None:
        """Show less, or more, of the x axis, around the cursor or towards the newest rows."""
        self._zoom(1 / ZOOM if closer else ZOOM, self.figure.cursor)

    def _zoom(self, factor: float, at: float | None) -> None:
        reach = self.figure.reach
        if reach is None or reach[0] == reach[1]:
            return
        low, high = self.figure.view
        at = high if at is None else min(max(at, low), high)
        low, high = at - (at - low) * factor, at + (high - at) * factor
        if high - low >= (reach[1] - reach[0]) * 1e-6:  # closer than that floating point has no more to tell
            self._look(low, high)

    def _look(self, low: float, high: float) -> None:
        """Show this part of the x axis, or as near to it as there are data."""
        first, last = self.figure.reach or (low, high)
        span = min(high - low, last - first)
        low = min(max(low, first), last - span)
        self.figure.window = None if span >= last - first else (low, low + span)
        self.redraw()

    def action_whole(self) -> None:
        """Show everything."""
        self.figure.window = self.figure.cursor = None
        self.redraw()

    def action_pan(self, share: float) -> None:
        """Move the view by a share of its width."""
        low, high = self.figure.view
        self._look(low + share * (high - low), high + share * (high - low))

    def action_cursor(self, cells: int) -> None:
        """Move the cursor, and the view with it where it would leave it."""
        reach = self.figure.reach
        if reach is None or self._plot is None:
            return
        low, high = self.figure.view
        step = (high - low) / max(1, self._plot.canvas.width - 1)
        at = self.figure.cursor
        at = high if at is None else min(max(at + cells * step, reach[0]), reach[1])
        self.figure.cursor, self._hovering = at, False
        if not low <= at <= high:
            shift = at - (low if at < low else high)
            self._look(low + shift, high + shift)
        self.redraw()

    def action_smoothing(self) -> None:
        """Smooth noisy curves more, then not at all."""
        at = SMOOTHINGS.index(self.figure.smoothing)
        self.figure.smoothing = SMOOTHINGS[(at + 1) % len(SMOOTHINGS)]
        self.redraw()

    def forget_cursor(self) -> bool:
        """Take the cursor away; whether there was one."""
        had = self.figure.cursor is not None
        self.figure.cursor = None
        if had:
            self.redraw()
        return had

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Read values off under the mouse."""
        at = self._x_at(event)
        if at is not None and at != self.figure.cursor:
            self.figure.cursor, self._hovering = at, True
            self.redraw()

    def on_leave(self) -> None:
        """The mouse has gone."""
        if self._hovering:
            self.forget_cursor()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in where the mouse is."""
        event.stop()
        self._zoom(1 / ZOOM, self._x_at(event))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out where the mouse is."""
        event.stop()
        self._zoom(ZOOM, self._x_at(event))

    def _x_at(self, event: events.MouseEvent) -> float | None:
        offset = event.get_content_offset(self)
        if offset is None or self._plot is None or self.figure.reach is None:
            return None
        low, high = self.figure.view
        share = (offset.x - self._plot.gutter) / max(1, self._plot.canvas.width - 1)
        return min(max(low + share * (high - low), low), high) if share >= 0 else None

    # Drawing

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Legend, plot and axes, as far as there is room."""
        self._plot = None
        if self.figure.reach is None:
            middle = [Strip([])] * ((height - 1) // 2)
            return [*middle, strip((EMPTY.center(width), palette.muted))]
        legend = [self._legend(width, palette)] if height >= 3 else []
        self._plot = plot(self.figure, width, height - len(legend), mode=terminal_mode())
        return [*legend, *plot_strips(self._plot, self.figure, palette)]

    def _legend(self, width: int, palette: Palette) -> Strip:
        """Names and values: whole names, first words, or only as many curves as fit."""
        figure = self.figure
        parts: list[Part] = []
        if figure.cursor is not None:
            at = f"{count(figure.cursor)} steps" if figure.axis == "steps" else seconds(figure.cursor)
            parts.append((f"{at}  ", palette.named("accent", bold=True)))
            width -= len(at) + 2
        entries = [self._entry(index, palette) for index in range(len(figure.series))]
        if figure.target is not None:
            sign = ("╌╌", palette.named("success"))
            entries.append((sign, "target", (f"{figure.target:g}", palette.plain)))
        names = [clip(name, 24) for _, name, _ in entries]
        lengths = [len(sign[0]) + len(value[0]) + 4 for sign, _, value in entries]
        if sum(lengths) + sum(map(len, names)) - 2 > width:
            names = [name.split()[0] for name in names]
        for (sign, _, value), name, length in zip(entries, names, lengths, strict=True):
            width -= length + len(name)
            if width < -2:
                break
            parts += [sign, (f" {name} ", palette.muted), value, ("  ", palette.plain)]
        return strip(*parts)

    def _entry(self, index: int, palette: Palette) -> tuple[Part, str, Part]:
        """A curve's sign, name and value."""
        series, value = self.figure.series[index], self.figure.value(index)
        sign = ("━•" if series.points else "━━", palette.series(series.color))
        return sign, series.name, ("-" if value is None else series.text or short(value), palette.bright)


def plot_strips(drawn: Plot, figure: Figure, palette: Palette) -> list[Strip]:
    """The lines of a plot with its axes."""
    cells = drawn.cells
    keys = cells.owner.astype(np.int64) * 40_000 + cells.tint
    lines = []
    for row, label in enumerate(drawn.left):
        text = cells.text(row)
        cuts = {0, len(text), *(np.flatnonzero(np.diff(keys[row])) + 1).tolist()}
        if drawn.cursor is not None:
            cuts |= {drawn.cursor, drawn.cursor + 1}
        bounds = sorted(cuts)
        segments = [Segment(label, palette.faint if label.isspace() else palette.muted)] if label else []
        for start, stop in itertools.pairwise(bounds):
            lit = start == drawn.cursor
            piece = text[start:stop]
            if lit and piece == " ":
                piece = "│"
            tint = int(cells.tint[row, start])
            band = None if tint == NOBODY else figure.series[tint // 2].color
            owner = int(cells.owner[row, start])
            if owner == TARGET and not lit and band is None:
                style = palette.named("success")
            elif owner >= MARK:
                style = palette.cell(owner - MARK, band, lit=lit, bold=True)
            elif owner in (NOBODY, TARGET):
                style = palette.cell(None, band, lit=lit)
            else:
                style = palette.cell(figure.series[owner // 2].color, band, lit=lit, pale=bool(owner % 2))
            segments.append(Segment(piece, style))
        lines.append(Strip(segments))
    if drawn.bottom is not None:
        lines.append(strip((drawn.bottom, palette.muted)))
    return lines
