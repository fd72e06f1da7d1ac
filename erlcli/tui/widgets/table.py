"""A table for many rows that change often: sorted, searched and marked with keys or the mouse.

Items are handed over whole and are not to be changed afterwards. How they are painted says `table_view`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message

from erlcli.tui.widgets.columns import Column, T
from erlcli.tui.widgets.rows import Rows
from erlcli.tui.widgets.table_view import TableView


class Table(TableView[T], can_focus=True):
    """See the module's docstring.

    Args:
        columns: from left to right.
        key: a text that tells items apart and stays the same while they change.
        search: the text in which a search looks; None switches search off.
        order: title of the column to sort by at first; None for the order in which items come.
        empty: what to say where there are no items; may have several lines.
        markable: whether items can be marked.
        id: of the widget.
    """

    BINDING_GROUP_TITLE = "Table"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("space", "mark", "Mark"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("o", "order", "Sort"),
        Binding("O", "reverse", "Reverse the order", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "A page up", show=False),
        Binding("pagedown", "page(1)", "A page down", show=False),
        Binding("home", "edge(0)", "First row", show=False),
        Binding("end", "edge(-1)", "Last row", show=False),
        Binding("escape", "clear", "Clear search, then marks", show=False),
    ]

    class Opened(Message):
        """A row was chosen with enter or a click on the cursor's row."""

        def __init__(self, table: Table[Any], key: str) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> Table[Any]:
            """The table, for selectors."""
            return self.table

    class Moved(Message):
        """The cursor is on another item, or its item has changed; `key` is None where there is none."""

        def __init__(self, table: Table[Any], key: str | None) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> Table[Any]:
            """The table, for selectors."""
            return self.table

    class Marked(Message):
        """Other rows are marked than before."""

        def __init__(self, table: Table[Any]) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> Table[Any]:
            """The table, for selectors."""
            return self.table

    def __init__(
        self,
        columns: Sequence[Column[T]],
        *,
        key: Callable[[T], str],
        search: Callable[[T], str] | None = None,
        order: str | None = None,
        empty: str = "nothing here",
        markable: bool = False,
        id: str | None = None,
    ) -> None:
        rows = Rows(key, search, next((column for column in columns if column.title == order), None))
        super().__init__(columns, rows, empty=empty, id=id)
        self._markable = markable

    # What changes it

    def show_items(self, items: Sequence[T], *, empty: str | None = None) -> None:
        """Show these, keeping cursor, marks, order and search.

        Args:
            items: all of them, in their natural order.
            empty: what to say from now on where there are none.
        """
        whole = empty is not None and empty != self._empty
        self._empty = self._empty if empty is None else empty
        self._change(lambda: self.rows.replace(items), whole=whole)

    def show_at(self, key: str) -> None:
        """Put the cursor on an item, if it is shown."""
        index = self.rows.row_of(key)
        if index is not None:
            self._go(index)

    def _change(self, change: Callable[[], None], *, whole: bool = False) -> None:
        """Change the rows, keep the cursor in sight if it was, and repaint what differs."""
        rows, before = self.rows, self.rows.current
        in_sight = rows.index is None or 0 <= rows.index - round(self.scroll_y) < self._body_height
        change()
        self.virtual_size = Size(0, len(rows.shown) + 1)
        if in_sight:
            self._reveal()
        self._tell()
        self._repaint(whole=whole)
        if rows.current is not before:
            self.post_message(self.Moved(self, rows.cursor))

    def _tell(self) -> None:
        """Search and marks, in the frame."""
        rows = self.rows
        parts = [f"/{rows.query}  {len(rows.shown)} of {len(rows.items)}"] if rows.query and not self.typing else []
        parts += [f"{len(rows.marks)} marked"] if rows.marks else []
        text = "  ".join(parts)
        if text != str(self.border_subtitle or ""):
            self.border_subtitle = Content(text)  # no markup in what users type

    # Keys

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """While a search is typed, letters are its own."""
        return self.typing and character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Take the letters of a search; arrows move within what was found."""
        if not self.typing:
            # Not left to the binding, which runs only after the key has gone up to the app: letters that come at once,
            # pasted or over a slow line, would be here before that.
            if event.key == "slash" and self.rows.search is not None:
                self._type(True)
                event.stop()
                event.prevent_default()
            return
        query = self.rows.query
        if event.is_printable and event.character:
            self._seek(query + event.character)
        elif event.key == "backspace":
            self._seek(query[:-1])
        elif event.key in ("enter", "escape"):
            self._type(False)
            self._seek("" if event.key == "escape" else query)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text is typed."""
        if self.typing:
            self._seek(self.rows.query + "".join(char for char in event.text if char.isprintable()))
            event.stop()

    def on_blur(self) -> None:
        """Who leaves the table has done typing."""
        if self.typing:
            self._type(False)

    def _type(self, typing: bool) -> None:
        self.typing = typing
        self.refresh_bindings()
        self._tell()
        self._repaint(whole=True)

    def _seek(self, text: str) -> None:
        self._change(lambda: self.rows.seek(text), whole=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that would do nothing here are not offered, so that escape goes back when there is nothing to clear."""
        if action == "mark":
            return self._markable
        if action == "search":
            return self.rows.search is not None
        if action in ("order", "reverse"):
            return any(column.value for column in self._columns)
        if action == "clear":
            return bool(self.rows.query or self.rows.marks)
        return super().check_action(action, parameters)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.rows.cursor is not None:
            self.post_message(self.Opened(self, self.rows.cursor))

    def action_mark(self) -> None:
        """Mark the row under the cursor, or take its mark away, and go to the next."""
        self.rows.toggle()
        self._marks_changed()
        self.action_move(1)

    def action_search(self) -> None:
        """Type a search."""
        self._type(True)

    def action_clear(self) -> None:
        """Take away the search; without one, the marks."""
        if self.rows.query:
            self._seek("")
        else:
            self.rows.marks.clear()
            self._marks_changed()
        self.refresh_bindings()

    def _marks_changed(self) -> None:
        self._tell()
        self._repaint()
        self.refresh_bindings()
        self.post_message(self.Marked(self))

    def action_order(self) -> None:
        """Sort by the next column that is shown, and after the last in the order in which items come."""
        columns = [self._columns[slot.index] for slot in self._painter.slots if self._columns[slot.index].value]
        order = self.rows.order
        after = columns.index(order) + 1 if order in columns else 0
        self._sort(columns[after] if after < len(columns) else None)

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._sort(self.rows.order, falling=not self.rows.falling)

    def _sort(self, column: Column[T] | None, *, falling: bool | None = None) -> None:
        self._change(lambda: self.rows.sort(column, falling=falling), whole=True)

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._go((self.rows.index or 0) + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by what fits on the screen."""
        self.action_move(pages * max(1, self._body_height - 1))

    def action_edge(self, row: int) -> None:
        """Go to the first (0) or the last row (-1)."""
        self._go(len(self.rows.shown) - 1 if row else 0)

    def _go(self, index: int) -> None:
        moved = self.rows.go(index)
        self._reveal()
        self._repaint()
        if moved:
            self.post_message(self.Moved(self, self.rows.cursor))

    # The mouse

    def on_click(self, event: events.Click) -> None:
        """A title sorts, and turns the order round at the next click; a row is chosen, and opened at the next click."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = offset.y - 1 + round(self.scroll_y)
        if offset.y == 0:
            column = self._painter.column_at(offset.x)
            if column is not None and column.value is not None:
                self._sort(column, falling=not self.rows.falling if column is self.rows.order else None)
        elif index < len(self.rows.shown):
            chosen = index == self.rows.index and event.chain > 1
            self._go(index)
            if chosen:
                self.action_open()
