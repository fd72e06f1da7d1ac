"""The GPUs of the machine: how busy, how full, how hot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, clip, spread
from erlcli.tui.widgets.processes import size

HOT = 85.0  # degrees; where cards begin to slow down


@dataclass(frozen=True)
class GpuRow:
    """One GPU.

    Attributes:
        name: of the card.
        utilization: percent of the time in which it did anything.
        used_bytes: of its memory.
        total_bytes: of its memory.
        temperature: in degrees Celsius; None where it tells none.
    """

    name: str
    utilization: float
    used_bytes: float
    total_bytes: float
    temperature: float | None = None


class Gpus(Lines):
    """Two lines a card: its name and heat, then how busy and how full it is."""

    DEFAULT_CSS = "Gpus { height: auto; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: tuple[GpuRow, ...] = ()

    def update_from(self, rows: Sequence[GpuRow]) -> None:
        """Show these."""
        new = tuple(rows)
        if new != self.rows:
            grown = len(new) != len(self.rows)
            self.rows = new
            self.redraw()
            if grown:
                self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """Two lines a card."""
        return 2 * len(self.rows)

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Bars have an eighth of the width for every label around them."""
        lines: list[Strip] = []
        for row in self.rows:
            heat = "" if row.temperature is None else f"{row.temperature:.0f} °C"
            hot = row.temperature is not None and row.temperature >= HOT
            name = clip(row.name, max(4, width - len(heat) - 2))
            tone = palette.named("warning", bold=True) if hot else palette.plain
            lines.append(spread([(name, palette.muted)], [(heat, tone)], width, palette.plain))
            memory = f"{size(row.used_bytes)}/{size(row.total_bytes)}"
            busy = f"{row.utilization:.0f}% busy"
            room = width - len(busy) - len(memory) - 3
            done = round(max(0.0, min(1.0, row.utilization / 100)) * room)
            bar = [("█" * done, palette.series(0)), ("░" * (room - done), palette.faint)] if room >= 4 else []
            left = [*bar, (" " * bool(bar) + busy, palette.bright)]
            lines.append(spread(left, [(memory, palette.plain)], width, palette.plain))
        return lines
