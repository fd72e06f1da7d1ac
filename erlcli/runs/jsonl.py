"""JSON lines: one writer a file, readers that tolerate a torn last line; and whole JSON files, replaced atomically."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_DECODER = json.JSONDecoder()
_GONE = -1


class Appender:
    """Appends rows to a file, each in one write, so that a reader sees whole lines or a torn last one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        # Where an earlier writer died in mid-line, or a full disk cut a row of ours, the half line is closed before the
        # next row, so that it costs that one row only.
        self._torn = bool(size) and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, row: Row) -> None:
        """Write one row; NaN and infinities become strings, since JSON has none."""
        data = memoryview(("\n" * self._torn + encode(row) + "\n").encode())
        with naming(self._path):
            while data:
                data = data[os.write(self._fd, data) :]
                self._torn = bool(data)

    def sync(self) -> None:
        """Wait until everything is on disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)


class Tail:
    """Reads a growing file of JSON lines, only what is new at each call.

    Attributes:
        restarts: how often the file turned out to be another or a shorter one, and was read from its start again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._offset = 0
        self._rest = b""
        self._inode: int | None = None

    def unread(self) -> int:
        """Bytes that the next `read` would begin with; all of them in another file than before, 0 without a file."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return 0
        same = now.st_ino == self._inode and now.st_size >= self._offset
        return now.st_size - (self._offset if same else 0)

    def start_at(self, offset: int, inode: int) -> None:
        """Take all before `offset`, where a line begins, for read; `inode` is the file's number."""
        self._offset, self._rest, self._inode = offset, b"", inode

    def read(self, max_bytes: int = -1) -> list[Row]:
        """Rows completed since the last call; lines that are no JSON object are passed over.

        Args:
            max_bytes: to read at most, after which another call goes on; all there is if negative.
        """
        try:
            now = os.stat(self.path)
            if (now.st_ino, now.st_size) == (self._inode, self._offset):
                return []
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self.restarts += self._inode is not None
                    self._offset, self._rest, self._inode = 0, b"", stat.st_ino
                file.seek(self._offset)
                data = file.read(max_bytes)
        except FileNotFoundError:
            if self._inode is not None:
                self._inode = _GONE  # a file of that name that comes later is another one, even under the same number
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [row for line in lines for row in decode(line)]


def read(path: Path) -> list[Row]:
    """All whole rows of a file; empty where there is none."""
    return Tail(path).read()


def decode(line: bytes) -> list[Row]:
    """The row of a line; both where two whole ones lost the line end between them; none where it is damaged."""
    rows: list[Row] = []
    try:
        text = line.decode().strip()
        while text:
            row, end = _DECODER.raw_decode(text)
            if not isinstance(row, dict):
                return []
            rows.append(row)
            text = text[end:].lstrip()
    except (ValueError, RecursionError):
        return []
    return rows


def encode(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Strict JSON on one line."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_strict(value), allow_nan=False, separators=(",", ":"))


def _strict(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(float(value))
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:  # noqa: ANN401
    """Replace a JSON file atomically; with `sync`, only after it is on disk."""
    write_text(path, encode(value) + "\n", sync=sync)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a file atomically; with `sync`, only after it is on disk.

    Its folder is made where that is missing, but none above: a run that was deleted does not come back in part.

    Raises:
        OSError: it can't be written; the old content stays.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Failures to write to an open file say which it is, as those to open one do."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk.

    Raises:
        OSError: they can't be.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> Row | None:
    """The object in a JSON file, or None where there is none (yet)."""
    try:
        rows = decode(path.read_bytes())
    except FileNotFoundError:
        return None
    return rows[0] if len(rows) == 1 else None


class JsonFile:
    """A JSON file that its writer replaces, read only when it has changed.

    Attributes:
        row: its last whole object; empty before there was one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.row: Row = {}
        self._stamp: tuple[int, int, int] | None = None

    def refresh(self) -> bool:
        """Whether it was written since the last call.

        Raises:
            OSError: it is there and can't be read.
        """
        try:
            stat = os.stat(self.path)
        except FileNotFoundError:
            return False
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.row = read_json(self.path) or self.row
        return True
