"""The rows of a table without its looks: which items are shown, in which order, where the cursor is, what is marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from erlcli.tui.widgets.columns import Column, T, arrange


class Rows(Generic[T]):
    """Items, searched and sorted.

    The cursor stays on its item wherever that goes; until somebody has moved it, it stays on the first row instead.

    Args:
        key: a text that tells items apart and stays the same while they change.
        search: the text in which a search looks; None where there is no search.
        order: the column to sort by at first; None for the order in which items come.

    Attributes:
        items: all, as they came.
        shown: those that the search leaves, in order.
        cursor: key of the item under the cursor; None where nothing is shown.
        marks: keys of the marked items, in the order in which they were marked.
        query: what is searched for.
    """

    def __init__(
        self, key: Callable[[T], str], search: Callable[[T], str] | None = None, order: Column[T] | None = None
    ) -> None:
        self.key, self.search = key, search
        self.order, self.falling = order, order.falling if order else False
        self.items: Sequence[T] = ()
        self.shown: list[T] = []
        self.cursor: str | None = None
        self.marks: dict[str, None] = {}
        self.query = ""
        self._moved = False
        self._row_of: dict[str, int] = {}

    @property
    def index(self) -> int | None:
        """The cursor's row."""
        return None if self.cursor is None else self._row_of.get(self.cursor)

    @property
    def current(self) -> T | None:
        """The item under the cursor."""
        index = self.index
        return None if index is None else self.shown[index]

    def replace(self, items: Sequence[T]) -> None:
        """Take other items; marks of those that are gone go too."""
        self.items = items
        if self.marks:
            keys = {self.key(item) for item in items}
            self.marks = {key: None for key in self.marks if key in keys}
        self._arrange()

    def seek(self, query: str) -> None:
        """Show only the items in whose text each word of `query` occurs, whatever the case; all for an empty one."""
        self.query = query
        self._arrange()

    def sort(self, column: Column[T] | None, *, falling: bool | None = None) -> None:
        """Order by a column, in its first order unless told; None is the order in which items came."""
        self.order = column
        self.falling = falling if falling is not None else bool(column and column.falling)
        self._arrange()

    def go(self, index: int) -> bool:
        """Put the cursor on a row, or the nearest there is; whether it moved."""
        if not self.shown:
            return False
        self._moved = True
        key = self.key(self.shown[min(max(index, 0), len(self.shown) - 1)])
        moved, self.cursor = key != self.cursor, key
        return moved

    def row_of(self, key: str) -> int | None:
        """The row of an item that is shown."""
        return self._row_of.get(key)

    def toggle(self) -> None:
        """Mark the item under the cursor, or take its mark away."""
        if self.cursor is None:
            return
        if self.cursor in self.marks:
            del self.marks[self.cursor]
        else:
            self.marks[self.cursor] = None

    def mark_number(self, key: str) -> int:
        """How many were marked before this one; -1 where it isn't."""
        return list(self.marks).index(key) if key in self.marks else -1

    def look(self, index: int) -> object:
        """All that the looks of a row depend on; equal while they are the same. None beyond the last row."""
        if index >= len(self.shown):
            return None
        item = self.shown[index]
        key = self.key(item)
        return (key, item, key == self.cursor, self.mark_number(key))

    def _arrange(self) -> None:
        old_index = self.index
        words = self.query.lower().split()
        items = self.items
        if words and self.search is not None:
            text = self.search
            items = [item for item in items if all(word in text(item).lower() for word in words)]
        self.shown = arrange(items, self.order, falling=self.falling)
        self._row_of = {self.key(item): index for index, item in enumerate(self.shown)}
        if not self.shown:
            self.cursor = None
        elif not self._moved:
            self.cursor = self.key(self.shown[0])
        elif self.index is None:
            self.cursor = self.key(self.shown[min(old_index or 0, len(self.shown) - 1)])
