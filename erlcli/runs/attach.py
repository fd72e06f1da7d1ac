"""A first look at a long file of metric rows: as many as a curve can show, found by seeking instead of reading all.

Attempts only grow in a file and steps only grow within an attempt, so that bisection finds where each attempt begins
and from where on a newer one has superseded it. What is left is read at even distances, its newest part whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from erlcli.runs.jsonl import Row, decode

BLOCK_BYTES = 4096  # of a read that looks for one row
SCAN_BYTES = 1 << 18  # of a read that wants all rows
NEAR_BYTES = 2048  # distance at which a bisection goes on row by row


@dataclass(frozen=True)
class Attached:
    """What a first look gives.

    Attributes:
        rows: by steps, none of them superseded.
        offset: end of the file's last whole line, where a tail goes on.
        inode: the file's number.
    """

    rows: list[Row]
    offset: int
    inode: int


def attach(path: Path, samples: int, whole: int) -> Attached:
    """Look at the file.

    Args:
        path: of metric rows.
        samples: of old rows, about.
        whole: newest rows that are all taken, about.

    Raises:
        OSError: it can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = os.fstat(fd)
        file = _File(fd, _last_line_end(fd, stat.st_size))
        return Attached(_sample(file, _surviving(file), samples, whole), file.end, stat.st_ino)
    finally:
        os.close(fd)


def is_row(row: Row) -> bool:
    """Whether a row has a place on a curve."""
    return isinstance(row.get("steps"), int) and isinstance(row.get("attempt", 0), int)


class _File:
    """Rows by their place in an open file.

    Args:
        fd: of the file.
        end: of its last whole line.
    """

    def __init__(self, fd: int, end: int) -> None:
        self.fd, self.end = fd, end

    def rows(self, offset: int, stop: int, block: int = SCAN_BYTES) -> Iterator[tuple[int, Row]]:
        """The rows of lines that begin at `offset` or later and before `stop`, with those places."""
        position = where = max(offset - 1, 0)  # the byte before tells whether a line begins here
        inside, rest = offset > 0, b""
        while position < self.end and where < stop:
            wanted = min(block, max(stop - position, BLOCK_BYTES), self.end - position)
            data = os.pread(self.fd, wanted, position)
            if not data:
                return  # cut short meanwhile
            position, block = position + len(data), min(2 * block, 1 << 20)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not inside and where < stop:
                    for row in filter(is_row, decode(line)):
                        yield where, row
                inside = False
                where += len(line) + 1

    def first(self, offset: int, stop: int) -> tuple[int, Row] | None:
        """The first of `rows`."""
        return next(self.rows(offset, stop, BLOCK_BYTES), None)

    def last(self, offset: int, stop: int) -> tuple[int, Row] | None:
        """The last of `rows`."""
        reach = BLOCK_BYTES
        while True:
            begin = max(offset, stop - reach)
            found = None
            for found in self.rows(begin, stop):  # noqa: B007 - the last one is what is wanted
                pass
            if found is not None or begin == offset:
                return found
            reach *= 4

    def bisect(self, offset: int, stop: int, beyond: Callable[[Row], bool]) -> int:
        """Where the first row from `offset` on is that is `beyond`, as all after it are; `stop` if there is none."""
        low, high = offset, stop
        while high - low > NEAR_BYTES:
            middle = (low + high) // 2
            found = self.first(middle, high)
            if found is None or beyond(found[1]):
                high = middle
            else:
                low = found[0] + 1
        return next((where for where, row in self.rows(low, stop, BLOCK_BYTES) if beyond(row)), stop)


def _last_line_end(fd: int, size: int) -> int:
    position = size
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        found = os.pread(fd, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def _surviving(file: _File) -> list[tuple[int, int]]:
    """Ranges of bytes with the rows that no newer attempt has superseded, one an attempt, in order."""
    starts: list[tuple[int, int]] = []  # place and steps of each attempt's first row
    found, last = file.first(0, file.end), file.last(0, file.end)
    newest = last[1].get("attempt", 0) if last is not None else 0
    while found is not None:
        where, row = found
        starts.append((where, row["steps"]))
        attempt: int = row.get("attempt", 0)
        if attempt >= newest:
            break
        later = file.bisect(where, file.end, partial(_is_later, attempt))
        found = file.first(later, file.end)
    ranges: list[tuple[int, int]] = []
    cutoff: float = math.inf
    stops = [where for where, _ in starts[1:]] + [file.end] * bool(starts)
    for (where, steps), stop in zip(reversed(starts), reversed(stops), strict=True):
        end = file.last(where, stop)
        if end is not None and end[1]["steps"] >= cutoff:
            stop = file.bisect(where, stop, partial(_reaches, cutoff))
        ranges.append((where, stop))
        cutoff = min(cutoff, steps)
    return [(start, stop) for start, stop in reversed(ranges) if start < stop]


def _is_later(attempt: int, row: Row) -> bool:
    return bool(row.get("attempt", 0) > attempt)


def _reaches(steps: float, row: Row) -> bool:
    return bool(row["steps"] >= steps)


def _sample(file: _File, ranges: list[tuple[int, int]], samples: int, whole: int) -> list[Row]:
    """Rows at even distances, with the first and the last one of each range; all of the newest."""
    left = whole * _bytes_a_row(file)
    old: list[tuple[int, int]] = []
    new: list[tuple[int, int]] = []
    for start, stop in reversed(ranges):
        split = max(start, stop - left)
        left -= stop - split
        new.insert(0, (split, stop))
        old.insert(0, (start, split))
    step = max(1, sum(stop - start for start, stop in old) // max(samples, 1))
    rows: list[Row] = []
    for (start, stop), newest in zip(old, new, strict=True):
        taken = -1
        for offset in range(start, stop, step):
            found = file.first(offset, stop)
            if found is not None and found[0] > taken:
                taken = found[0]
                rows.append(found[1])
        end = file.last(start, stop)
        if end is not None and end[0] > taken:
            rows.append(end[1])
        rows += [row for _, row in file.rows(*newest)]
    return rows


def _bytes_a_row(file: _File) -> int:
    """Of the newest rows, on average."""
    places = [where for where, _ in file.rows(max(0, file.end - SCAN_BYTES), file.end)]
    return max(1, (places[-1] - places[0]) // (len(places) - 1)) if len(places) > 1 else SCAN_BYTES
