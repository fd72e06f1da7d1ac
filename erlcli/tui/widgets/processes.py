"""The processes of a run: what each is at, whether its heart beats, what it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from erlcli.runs.text import seconds
from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, clip, strip

LATE_SECONDS = 5.0  # beats come once a second


@dataclass(frozen=True)
class ProcessRow:
    """One process.

    Attributes:
        name: e.g. `worker-0`.
        phase: what it is at.
        age: seconds since its last beat; None for one that has left.
        restarts: how often it was started anew.
        cpu_percent: of one core; None where that is unknown.
        rss_bytes: resident memory.
    """

    name: str
    phase: str = ""
    age: float | None = None
    restarts: int = 0
    cpu_percent: float | None = None
    rss_bytes: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """As shown; ages in whole seconds, so that a healthy run's rows stay the same."""
        age = "-" if self.age is None else "<2 s" if self.age < 2 else seconds(float(int(self.age)))
        cpu = "-" if self.cpu_percent is None or self.age is None else f"{self.cpu_percent:.0f}%"
        memory = size(self.rss_bytes) if self.rss_bytes and self.age is not None else "-"
        return (self.name, self.phase, age, str(self.restarts) if self.restarts else "-", cpu, memory)

    @property
    def late(self) -> bool:
        """Whether a beat is overdue."""
        return self.age is not None and self.age > LATE_SECONDS


def size(value: float) -> str:
    """Bytes as `401M` or `9.4G`."""
    return f"{value / 1e9:.1f}G" if value >= 1e9 else f"{value / 1e6:.0f}M"


TITLES = ("process", "phase", "beat", "restarts", "cpu", "mem")


class Processes(Lines):
    """A row each; the last row counts those that have no room."""

    DEFAULT_CSS = "Processes { height: auto; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: tuple[ProcessRow, ...] = ()
        self._shown: tuple[object, ...] = ()

    def update_from(self, rows: Sequence[ProcessRow]) -> None:
        """Show these."""
        shown = tuple((row.cells, row.late) for row in rows)
        grown = len(rows) != len(self.rows)
        self.rows = tuple(rows)
        if shown != self._shown:
            self._shown = shown
            self.redraw()
            if grown:
                self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """A line each, and one for the titles."""
        return 1 + max(1, len(self.rows))

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Titles, then rows; columns that don't fit are left out from the right, after restarts."""
        if not self.rows:
            return [strip(("no heartbeats yet", palette.muted))]
        columns = [0, 1, 2, 3, 4, 5] if width >= 50 else [0, 1, 2, 4, 5] if width >= 36 else [0, 1, 2]
        table = [TITLES, *(row.cells for row in self.rows)]
        widths = {i: max(len(cells[i]) for cells in table) for i in columns}
        spare = width - sum(widths.values()) - 2 * (len(columns) - 1)
        widths[1] = max(4, widths[1] + spare)
        lines = []
        for number, cells in enumerate(table):
            late = number > 0 and self.rows[number - 1].late
            parts = []
            for i in columns:
                text = clip(cells[i], widths[i])
                text = f"{text:<{widths[i]}}" if i < 2 else f"{text:>{widths[i]}}"
                style = palette.muted if number == 0 or i == 1 else palette.plain
                if late and i == 2:
                    style = palette.named("warning", bold=True)
                parts.append((text + "  " * (i != columns[-1]), style))
            lines.append(strip(*parts))
        if len(lines) > height > 1:
            more = f"and {len(lines) - height + 1} more"
            lines = [*lines[: height - 1], strip((more, palette.muted))]
        return lines
