"""Draws the lines of a table: titles, rows, the search that is typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from erlcli.tui.widgets.columns import Column, Slot, T, cell, fit, gap_of
from erlcli.tui.widgets.rows import Rows

GUTTER = 2  # cells at the left: the cursor's bar and the mark
MARGIN = 1  # cell at the right, where the scroll bar would touch the text
BAR, MARK = "▌", "•"
CACHED_STRIPS = 1024


class Painter(Generic[T]):
    """Makes strips, and keeps them for as long as they would come out the same.

    Args:
        columns: of the table.
        style: the style of a tone, under the cursor or not.
        mark_style: the colour of the mark number n.

    Attributes:
        slots: columns that fit.
        width: of the lines, in cells.
    """

    def __init__(
        self, columns: Sequence[Column[T]], style: Callable[[str, bool], Style], mark_style: Callable[[int], Style]
    ) -> None:
        self.columns = tuple(columns)
        self.slots: list[Slot] = []
        self._style, self._mark_style = style, mark_style
        self.width = -1  # no width was asked for yet
        self._strips: dict[str, tuple[object, Strip]] = {}

    def forget(self) -> None:
        """Styles have changed."""
        self._strips.clear()

    def fit(self, width: int) -> None:
        """Choose the columns for a width in cells."""
        self.width = width
        self.slots = fit(self.columns, max(width - GUTTER - MARGIN, 1))
        self.forget()

    @property
    def _gap(self) -> int:
        return gap_of(self.width - GUTTER - MARGIN)

    def column_at(self, x: int) -> Column[T] | None:
        """The column at a cell of the title line."""
        start, gap = GUTTER, self._gap
        for slot in self.slots:
            if start <= x < start + slot.width + gap:
                return self.columns[slot.index]
            start += slot.width + gap
        return None

    def titles(self, rows: Rows[T]) -> Strip:
        """The head, with a triangle beside what is sorted by."""
        head = self._style("head", False)
        gap = Segment(" " * self._gap, head)
        segments = [Segment(" " * GUTTER, head)]
        for slot in self.slots:
            column = self.columns[slot.index]
            by_this = column is rows.order
            text = column.title + ("▼" if rows.falling else "▲") * by_this
            text = text.rjust(slot.width) if column.right else text.ljust(slot.width)
            segments += [Segment(text[: slot.width], self._style("sorted", False) if by_this else head), gap]
        return self._strip(segments, head)

    def prompt(self, rows: Rows[T]) -> Strip:
        """The search that is typed, in place of the head."""
        muted, prompt = self._style("muted", False), self._style("prompt", False)
        found = f"  {len(rows.shown)} of {len(rows.items)}  enter keeps, escape clears"
        return self._strip([Segment(f" /{rows.query}{BAR}", prompt), Segment(found, muted)], muted)

    def words(self, text: str) -> Strip:
        """A line of muted words."""
        return self._strip([Segment(" " * GUTTER + text, self._style("muted", False))], self._style("plain", False))

    def row(self, rows: Rows[T], index: int) -> Strip:
        """The row at `index` of what is shown."""
        item, look = rows.shown[index], rows.look(index)
        key = rows.key(item)
        cached = self._strips.get(key)
        if cached is None or cached[0] != look:
            if len(self._strips) > CACHED_STRIPS:
                self._strips.clear()
            self._strips[key] = cached = (look, self._row(rows, item, key))
        return cached[1]

    def _row(self, rows: Rows[T], item: T, key: str) -> Strip:
        here, number = key == rows.cursor, rows.mark_number(key)
        plain = self._style("plain", here)
        segments = [Segment(BAR if here else " ", self._style("bar", here))]
        segments.append(Segment(MARK, plain + self._mark_style(number)) if number >= 0 else Segment(" ", plain))
        gap = Segment(" " * self._gap, plain)
        for slot in self.slots:
            column = self.columns[slot.index]
            tone = (column.tone(item) if column.tone else "") or "plain"
            segments += [Segment(cell(column, item, slot.width), self._style(tone, here)), gap]
        return self._strip(segments, plain)

    def _strip(self, segments: list[Segment], ground: Style) -> Strip:
        return Strip(segments).adjust_cell_length(self.width, ground)
