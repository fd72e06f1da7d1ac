"""What a run's processes printed, and everything else that it has to tell, as lines in order of time."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView
from erlcli.tui.curves import number
from erlcli.tui.widgets.events import Entry

OUTPUT_LINES, OUTPUT_BYTES = 500, 65536  # of each process, the newest
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.?)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Output:
    """What a run's processes printed: the newest lines of each.

    Args:
        layout: the run.
    """

    def __init__(self, layout: RunLayout) -> None:
        self._folder = layout.root / "errors"
        self._read: dict[str, tuple[int, int, bytes]] = {}  # inode, offset, unfinished line
        self.entries: dict[str, list[Entry]] = {}

    def refresh(self, now: float) -> bool:
        """Read on; whether there was anything. Lines found at the first look are as old as their file."""
        found = False
        for path in sorted(self._folder.glob("*.log")):
            with contextlib.suppress(OSError):  # removed a moment ago
                found |= self._take(path, now)
        return found

    def _take(self, path: Path, now: float) -> bool:
        stat = path.stat()
        name = path.stem
        inode, offset, rest = self._read.get(name, (0, 0, b""))
        first = inode != stat.st_ino or stat.st_size < offset
        if first:
            offset, rest = max(0, stat.st_size - OUTPUT_BYTES), b""
            self.entries[name] = []
        elif stat.st_size == offset:
            return False
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(4 * OUTPUT_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        self._read[name] = (stat.st_ino, offset + len(data), rest[-OUTPUT_BYTES:])
        at = stat.st_mtime if first else now
        kept = self.entries[name]
        texts = (_ESCAPES.sub("", line.decode(errors="replace")).expandtabs(4).rstrip() for line in lines)
        kept += [Entry(at, name, "output", text) for text in texts if text]
        del kept[:-OUTPUT_LINES]
        return bool(lines) or first


def entries(view: RunView, output: Output) -> list[Entry]:
    """Events and output, ordered by time."""
    found = [
        Entry(
            number(row.get("time", 0.0)),
            str(row.get("process", "")),
            str(row.get("level", "info")),
            _ESCAPES.sub(" ", str(row.get("message", "")).replace("\n", " ")),
        )
        for row in view.events
    ]
    for lines in output.entries.values():
        found += lines
    return sorted(found, key=lambda entry: entry.time)
