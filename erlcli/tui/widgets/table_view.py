"""What of a table is seen: only visible rows are rendered, and only those that differ are repainted.

There is no widget per row. A row whose item is equal to the one before is taken to look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic

from rich.style import Style
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from erlcli.tui.theme import series_color
from erlcli.tui.widgets.columns import Column, T
from erlcli.tui.widgets.painter import Painter
from erlcli.tui.widgets.rows import Rows

TONES = (
    "plain", "muted", "bright", "good", "warn", "bad", "accent", "royal",  # of cells
    "head", "sorted", "cursor", "bar", "prompt",
)  # fmt: skip


class TableView(ScrollView, Generic[T]):
    """See the module's docstring.

    Args:
        columns: from left to right.
        rows: of items.
        empty: what to say where there are no items; may have several lines.
        id: of the widget.

    Attributes:
        rows: what is shown, and the cursor.
        typing: whether a search is being typed.
    """

    DEFAULT_CSS = """
    TableView {
        height: 1fr;
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-color: $border-blurred;
        scrollbar-color-hover: $foreground-muted;
        scrollbar-color-active: $foreground-muted;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        border: round $border-blurred;
        border-title-color: $foreground-muted;
        border-subtitle-color: $foreground-muted;
        & .table--royal { color: $text-accent; text-style: bold; }
        & .table--head { color: $foreground-muted; }
        & .table--sorted { color: $foreground; text-style: bold; }
        & .table--plain { color: $foreground; }
        & .table--muted { color: $foreground-muted; }
        & .table--bright { color: $foreground; text-style: bold; }
        & .table--good { color: $text-success; }
        & .table--warn { color: $text-warning; }
        & .table--bad { color: $text-error; }
        & .table--accent { color: $primary; }
        & .table--cursor { background: $panel; }
        & .table--bar { color: $primary; }
        & .table--prompt { color: $accent; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"table--{tone}" for tone in TONES}

    def __init__(self, columns: Sequence[Column[T]], rows: Rows[T], *, empty: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._columns, self._empty = tuple(columns), empty
        self.rows = rows
        self.typing = False
        self._painted: list[object] = []  # the look of each line of the body
        self._painter: Painter[T] = Painter(self._columns, self._style, self._mark_style)

    @property
    def shown_columns(self) -> list[str]:
        """Titles of the columns that fit."""
        self._fit()
        return [self._columns[slot.index].title for slot in self._painter.slots]

    @property
    def _body_height(self) -> int:
        return max(self.size.height - 1, 0)

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._reveal()
        self._repaint(whole=True)

    def _fit(self) -> None:
        """Choose the columns that fit beside the scroll bar, which comes and goes with the rows."""
        width = self.scrollable_content_region.width
        if width != self._painter.width:
            self._painter.fit(width)

    def notify_style_update(self) -> None:
        """Another theme: everything looks different."""
        super().notify_style_update()
        self._painter.forget()

    def _reveal(self) -> None:
        """Scroll as little as shows the cursor."""
        index, height = self.rows.index, self._body_height
        if index is None or height == 0:
            return
        top = round(self.scroll_y)
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False)

    def _repaint(self, *, whole: bool = False) -> None:
        """Refresh the lines whose look has changed."""
        top, width = round(self.scroll_y), self.size.width
        looks = [self.rows.look(top + line) for line in range(self._body_height)]
        old = self._painted + [None] * (len(looks) - len(self._painted))
        changed = [line for line, look in enumerate(looks) if old[line] != look]
        self._painted = looks
        if whole or len(changed) * 2 > len(looks) or not self.rows.shown:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, line + 1, width, 1) for line in changed))

    def render_line(self, y: int) -> Strip:
        """Line `y` of what is visible: titles (or the search that is typed), then rows."""
        self._fit()
        rows, painter = self.rows, self._painter
        if y == 0:
            return painter.prompt(rows) if self.typing else painter.titles(rows)
        index = y - 1 + round(self.scroll_y)
        if index < len(rows.shown):
            return painter.row(rows, index)
        words = ["no row matches the search"] if rows.items else self._empty.split("\n")
        return painter.words(words[index] if not rows.shown and index < len(words) else "")

    def _style(self, tone: str, under_cursor: bool) -> Style:
        name, _, number = tone.partition(" ")
        style = self.get_component_rich_style(f"table--{'plain' if name == 'series' else name}")
        if name == "series":
            style += self._mark_style(int(number))
        if under_cursor:
            style += Style(bgcolor=self.get_component_rich_style("table--cursor").bgcolor)
        return style

    def _mark_style(self, number: int) -> Style:
        return Style(color=series_color(number, dark=self.app.current_theme.dark))
