"""What a run has to tell, in order of time: events, and what its processes printed."""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.strip import Strip

from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, clip, strip

FILTERS = ("all", "warnings", "errors", "output")
_SHOWN = {  # nothing is left out of "all"
    "warnings": ("warning", "error"),
    "errors": ("error",),
    "output": ("output",),
}
_SIGNS = {"info": " ", "warning": "!", "error": "x", "output": ">"}  # told apart without colour, too


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        time: in seconds since the epoch.
        process: that tells it.
        level: info, warning or error; output for what it printed.
        text: on one line.
    """

    time: float
    process: str
    level: str
    text: str


class Events(Lines):
    """The newest entries at the bottom; follows new ones unless scrolled up.

    A line each, cut to the width; in full where the pane has the screen to itself and with it the class `-on`.

    Attributes:
        level: which levels are shown, one of `FILTERS`.
        search: what entries have to contain, whatever its case.
    """

    DEFAULT_CSS = "Events { height: 1fr; min-height: 3; }"
    TITLE: ClassVar[str] = "events"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.level, self.search = FILTERS[0], ""
        self._entries: Sequence[Entry] = ()
        self._key: tuple[int, Entry | None] = (0, None)
        self._shown: list[Entry] = []
        self._up = 0  # entries below the lowest line; 0 follows
        self._entitle()

    def update_from(self, entries: Sequence[Entry]) -> None:
        """Show these, ordered by time."""
        key = (len(entries), entries[-1] if entries else None)
        if key == self._key:
            return
        self._entries, self._key = entries, key
        before = len(self._shown)
        self._choose()
        if self._up:
            self._up += max(0, len(self._shown) - before)  # what is being read stays where it is
        self.redraw()

    def next_level(self) -> None:
        """Show the next choice of levels."""
        self.level = FILTERS[(FILTERS.index(self.level) + 1) % len(FILTERS)]
        self._changed()

    def find(self, text: str) -> None:
        """Show only entries with `text` in them; all for an empty one."""
        self.search = text
        self._changed()

    def scroll_by(self, lines: int) -> None:
        """Towards older entries; back for a negative number."""
        up = min(max(0, self._up + lines), self._most_up())
        if up != self._up:
            self._up = up
            self._entitle()
            self.redraw()

    def _most_up(self) -> int:
        """How many entries there are but for the oldest that fill the pane."""
        width, height = self.size
        lines = itertools.accumulate(len(texts) for _, _, texts in self._told(self._shown[:height], width))
        return max(0, len(self._shown) - max(1, sum(total <= height for total in lines)))

    def _changed(self) -> None:
        self._up = 0
        self._choose()
        self._entitle()
        self.redraw()

    def _choose(self) -> None:
        levels, words = _SHOWN.get(self.level), self.search.lower()
        self._shown = [
            entry
            for entry in self._entries
            if (levels is None or entry.level in levels)
            and (not words or words in entry.text.lower() or words in entry.process.lower())
        ]

    def _entitle(self) -> None:
        title = self.TITLE if self.level == "all" else f"{self.TITLE}: {self.level}"
        title += (f" /{self.search}" if self.search else "") + (" (scrolled)" if self._up else "")
        self.border_title = Content(title)  # what was typed is no markup

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Older ones."""
        event.stop()
        self.scroll_by(3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Newer ones."""
        event.stop()
        self.scroll_by(-3)

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """As many as fit, the newest at the bottom."""
        stop = len(self._shown) - min(self._up, max(0, len(self._shown) - 1))
        shown = self._shown[max(0, stop - height) : stop]
        if not shown:
            nothing = "nothing yet" if not self._entries else "nothing like that"
            return [strip((nothing, palette.muted))]
        tones = {"info": palette.plain, "output": palette.muted}
        lines = []
        for entry, head, (first, *more) in self._told(shown, width):
            tone = tones.get(entry.level) or palette.named(entry.level if entry.level == "error" else "warning")
            lines.append(strip((head, palette.muted), (f"{_SIGNS.get(entry.level, ' ')} {first}", tone)))
            lines += [strip((" " * (len(head) + 2) + text, tone)) for text in more]
        return lines[-height:]

    def _told(self, entries: Sequence[Entry], width: int) -> list[tuple[Entry, str, list[str]]]:
        """Each entry with its time and process in words, and the lines of its text."""
        names = max((len(entry.process) for entry in entries), default=0) if width >= 60 else 0
        told = []
        for entry in entries:
            head = time.strftime("%H:%M:%S " if width >= 36 else "%H:%M ", time.localtime(entry.time))
            head += f"{entry.process:<{names}} " if names else ""
            room = max(0, width - len(head) - 2)
            texts = textwrap.wrap(entry.text, room) if room and self.has_class("-on") else []
            told.append((entry, head, texts or [clip(entry.text, room)]))
        return told
