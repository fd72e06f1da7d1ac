"""Rows over steps: what a file of metrics or evaluations says, with superseded rows taken out."""

from __future__ import annotations

import bisect
import contextlib
import sys
from pathlib import Path
from typing import TypeGuard

from erlcli.runs.attach import attach, is_row
from erlcli.runs.jsonl import Row, Tail
from erlcli.runs.thin import thin

WHOLE_ROWS = 1_000  # of the newest, which a bounded curve never thins
ROW_BYTES = 1_000  # more than a row has; files of more than `max_rows` times this are sampled


class Curve:
    """Rows of a file ordered by steps, in which a newer attempt replaces what an older one wrote beyond its start.

    A snapshot's full evaluation replaces its probe, and may come after the probes of later ones.

    Args:
        path: of the file.
        max_rows: how many rows to keep at most, more than `WHOLE_ROWS`: older ones are thinned evenly, and a long file
            is sampled at the first look. None keeps all.

    Attributes:
        rows: by steps.
        names: columns that have held a number.
        version: grows whenever the rows change.
    """

    def __init__(self, path: Path, max_rows: int | None = None) -> None:
        self._tail = Tail(path)
        self._restarts = 0
        self._max_rows = max_rows
        self.rows: list[Row] = []
        self.names: set[str] = set()
        self.version = 0

    def refresh(self) -> bool:
        """Take in what is new; whether there was anything."""
        sampled = self._max_rows is not None and self._attach(self._max_rows)
        new = self._tail.read()
        replaced = self._tail.restarts != self._restarts
        if replaced:  # another file, e.g. a copy that was brought up to date: all of its rows came again
            self._restarts = self._tail.restarts
            self.rows.clear()
            self.names.clear()
        for row in new:
            self._add(row)
        changed = bool(new) or replaced or sampled
        self.version += changed
        return changed

    def _attach(self, max_rows: int) -> bool:
        """Sample a file of which too much is unread, and go on from its end; whether there was such a one."""
        if self._tail.unread() <= max_rows * ROW_BYTES:
            return False
        with contextlib.suppress(FileNotFoundError):
            found = attach(self._tail.path, (max_rows - WHOLE_ROWS) // 2, WHOLE_ROWS)
            self._tail.start_at(found.offset, found.inode)
            self.rows.clear()
            self.names.clear()
            for row in found.rows:
                self._add(row)
            return True
        return False

    def _add(self, row: Row) -> None:
        if not is_row(row):
            return
        rows, steps = self.rows, row["steps"]
        if rows and row.get("attempt", 0) > rows[-1].get("attempt", 0):
            while rows and rows[-1]["steps"] >= steps:
                rows.pop()
        place = len(rows)
        if rows and steps < rows[-1]["steps"]:
            place = bisect.bisect_right(rows, steps, key=_steps)
        if place and rows[place - 1]["steps"] == steps and rows[place - 1].get("kind") == "probe":
            rows[place - 1] = row
        else:
            rows.insert(place, row)
        self.names.update(name for name in row.keys() - self.names if is_number(row[name]))
        if self._max_rows is not None:
            thin(rows, self._max_rows, WHOLE_ROWS, _steps)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of the rows that have a number under `name`."""
        pairs = [(row["steps"], float(row[name])) for row in self.rows if is_number(row.get(name))]
        return [steps for steps, _ in pairs], [value for _, value in pairs]

    def columns(self, *names: str) -> list[list[float]]:
        """Values under each of `names`, of the rows that have a number under all of them."""
        rows = [row for row in self.rows if all(is_number(row.get(name)) for name in names)]
        return [[float(row[name]) for row in rows] for name in names]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a row's value can be drawn; a NaN is text in a row, and 1e999 is JSON, but infinite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _steps(row: Row) -> int:
    steps: int = row["steps"]
    return steps
