"""Writes a tournament's journal: numbered rows, on disk before anything is done about them, by one owner.

The owner is whoever holds the tournament's lock. Rows of one decision go out in one write and one fsync.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from erlcli.errors import DamagedError
from erlcli.runs.jsonl import Row, decode, encode, sync_path


class JournalWriter:
    """An open journal.

    A torn tail, which a power cut or a full disk may leave, is moved to a file of its own beside the journal: those
    rows were never acted upon. A row that lost only its line end is whole, and gets it back.

    Args:
        path: of the journal; made if it isn't there.

    Attributes:
        rows: that were there when it was opened.
        seq: number of the last row.
        set_aside: where a torn tail went; None where there was none.

    Raises:
        DamagedError: rows are missing in the middle, so that what follows can't be understood.
        OSError: the file can't be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set_aside: Path | None = None
        fresh = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.rows = self._recover(path.read_bytes())
            if fresh:
                sync_path(path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        self.seq = int(self.rows[-1]["seq"]) if self.rows else 0

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows that number on from `seq`, and wait until they are on disk.

        Raises:
            OSError: the disk is full or gone; the file is as it was before.
        """
        data = memoryview("".join(encode(row) + "\n" for row in rows).encode())
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, size)
            raise
        self.seq = int(rows[-1]["seq"]) if rows else self.seq

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _recover(self, data: bytes) -> list[Row]:
        """The rows; cuts the file after the last whole one."""
        rows: list[Row] = []
        good = offset = 0
        ends = True  # whether the last whole row has its line end
        for line in data.splitlines(keepends=True):
            offset += len(line)
            found = decode(line)
            if found or not line.strip():
                rows += self._fresh(found, rows, good)
                good, ends = offset, line.endswith(b"\n")
        if torn := data[good:]:
            self.set_aside = _free(self.path)
            self.set_aside.write_bytes(torn)
            os.ftruncate(self._fd, good)
        if not ends:
            os.write(self._fd, b"\n")
        if torn or not ends:
            os.fsync(self._fd)
        return rows

    def _fresh(self, found: list[Row], rows: list[Row], good: int) -> list[Row]:
        """Those of the rows found that aren't there yet: a row that comes twice counts once.

        They number on without a gap: one that is damaged in the middle must not be passed over.
        """
        fresh: list[Row] = []
        for row in found:
            before, number = len(rows) + len(fresh), row.get("seq")
            if number == before + 1:
                fresh.append(row)
            elif not isinstance(number, int) or number > before or number < 1:
                raise self._damaged("rows are missing", good, f"row {before + 1}", f"row {number}", before)
            elif row != [*rows, *fresh][number - 1]:
                raise self._damaged(f"row {number} comes twice", good, f"row {before + 1}", "another one", before)
        return fresh

    def _damaged(self, what: str, good: int, expected: str, found: str, last: int) -> DamagedError:
        return DamagedError(
            f"{self.path}: {what} after byte {good:,}",
            expected=expected,
            found=found,
            remedy=f"restore the file from a backup, or cut it there to go on from row {last}",
        )


def _free(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.torn-{number}")).exists():
        number += 1
    return aside
