"""Columns of a table: what they show, which of them fit into a width, and how rows are ordered by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

T = TypeVar("T")
Value = str | float | int | None
GAP = 2  # cells between columns
NARROW_GAP = 1
NARROW = 60  # cells; below it the gap between columns is the narrow one


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column over items of type T.

    Attributes:
        title: its head, which also names it.
        width: cells it needs.
        text: what a cell shows of an item, given the cell's width.
        value: what to sort by; None of an item puts it last whatever the order. A column without it can't be sorted.
        tone: which style a cell has: "" for plain, or `muted`, `bright`, `good`, `warn`, `bad`, `accent`,
            `royal`, `series 3` for the colour of the curve number 3.
        keep: columns with the highest number are folded away first where the width doesn't do; 0 never is.
        grow: share of the width that is left over; 0 for none.
        most: cells beyond which it doesn't grow.
        right: whether cells are aligned to the right.
        falling: whether the first order is from high to low.
    """

    title: str
    width: int
    text: Callable[[T, int], str]
    value: Callable[[T], Value] | None = None
    tone: Callable[[T], str] | None = None
    keep: int = 0
    grow: int = 0
    most: int = 1000
    right: bool = False
    falling: bool = False


@dataclass(frozen=True)
class Slot:
    """A column that is shown, and the cells it got."""

    index: int
    width: int


def gap_of(width: int) -> int:
    """Cells between columns in a table of `width` cells."""
    return NARROW_GAP if width < NARROW else GAP


def fit(columns: Sequence[Column[T]], width: int) -> list[Slot]:
    """The columns that fit into `width` cells, in their order, those to keep longest first.

    A column that doesn't fit is left out together with all that are to be kept less, so that what is shown grows with
    the width and nothing comes and goes. Columns with `keep=0` stay, cut at the right edge of the table.
    """
    gap = gap_of(width)
    ranked = sorted(range(len(columns)), key=lambda index: columns[index].keep)
    chosen: list[int] = []
    left = width + gap
    for index in ranked:
        left -= columns[index].width + gap
        if left < 0 and columns[index].keep > 0:
            left += columns[index].width + gap
            break
        chosen.append(index)
    chosen.sort()
    extra = _share([columns[index] for index in chosen], max(left, 0))
    return [Slot(index, columns[index].width + more) for index, more in zip(chosen, extra, strict=True)]


def _share(columns: Sequence[Column[T]], left: int) -> list[int]:
    """Spread the width that is left over the columns that grow."""
    extra = [0] * len(columns)
    while left:
        open_ones = [i for i, column in enumerate(columns) if column.grow and column.width + extra[i] < column.most]
        shares = sum(columns[i].grow for i in open_ones)
        if not shares:
            break
        before = left
        for i in open_ones:
            room = columns[i].most - columns[i].width - extra[i]
            more = min(room, before * columns[i].grow // shares, left)
            extra[i] += more
            left -= more
        if left == before:  # less than a cell for each share: the first takes what is left
            extra[open_ones[0]] += 1
            left -= 1
    return extra


def cell(column: Column[T], item: T, width: int) -> str:
    """The text of a cell, exactly `width` cells wide; what doesn't fit ends in an ellipsis."""
    text = column.text(item, width)
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return " " * (width - size) + text if column.right else text + " " * (width - size)


def arrange(items: Sequence[T], column: Column[T] | None, *, falling: bool) -> list[T]:
    """Items in the order of a column; equal ones, and all without a column to sort by, stay as they are.

    Args:
        items: in their natural order.
        column: to sort by.
        falling: from high to low.
    """
    if column is None or column.value is None:
        return list(items)
    known: list[tuple[Value, T]] = []
    unknown: list[T] = []
    for item in items:
        value = column.value(item)
        if value is None or value != value:
            unknown.append(item)
        else:
            known.append((value, item))
    known.sort(key=lambda pair: pair[0], reverse=falling)  # type: ignore[arg-type,return-value]  # one type a column
    return [item for _, item in known] + unknown
