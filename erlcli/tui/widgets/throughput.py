"""How fast a run trains, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from erlcli.runs.text import sparkline
from erlcli.tui.figure import terminal_mode
from erlcli.tui.palette import Palette
from erlcli.tui.raster import Canvas
from erlcli.tui.widgets.lines import Lines, Part, strip

SHARES = ("env", "act", "update", "wait")
FILLS = "█▓▒░"  # told apart without colour, too
COLORS = (0, 1, 2, 7)


@dataclass(frozen=True)
class ThroughputFacts:
    """What the pane tells.

    Attributes:
        now: environment steps a second, of the newest row; None where nothing moves.
        mean: over the whole run.
        recent: steps a second of rows in order, for the line of bars.
        shares: of the time, by what it goes to, each in [0, 1].
        limit: steps a second if nothing but the environment cost time.
    """

    now: float | None = None
    mean: float | None = None
    recent: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    limit: float | None = None


class Throughput(Lines):
    """Numbers, bars and shares, as many lines as there is room for."""

    DEFAULT_CSS = "Throughput { height: 6; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.facts = ThroughputFacts()

    def update_from(self, facts: ThroughputFacts) -> None:
        """Show these."""
        if facts != self.facts:
            self.facts = facts
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """The rate first; then where the time goes; then its history; then the limit."""
        facts = self.facts
        if facts.mean is None and facts.now is None:
            return [strip(("no rows yet", palette.muted))]
        rate: list[Part] = []
        for value, word in ((facts.now, " steps/s   "), (facts.mean, " mean")):
            if value is not None:
                rate += [(f"{value:,.0f}", palette.bright), (word, palette.muted)]
        lines = [strip(*rate)]
        room = height - 4
        if facts.recent and room >= 3:
            lines += self._history(width, room, palette)
        elif facts.recent and room >= 1:
            lines.append(strip((sparkline(facts.recent, width), palette.series(7))))
        lines += _bar(facts, width, palette) if facts.shares else []
        if facts.limit is not None and facts.shares:
            share = (f"{facts.shares[0]:.0%}", palette.bright)
            lines.append(
                strip(share, (" of the env-only limit", palette.muted), (f" {facts.limit:,.0f}", palette.muted))
            )
        return lines

    def _history(self, width: int, height: int, palette: Palette) -> list[Strip]:
        """The rates of the newest rows as a curve from zero."""
        rates = self.facts.recent
        top = max(rates) * 1.05 or 1.0
        canvas = Canvas(width, height, x=(0, max(1, len(rates) - 1)), y=(0.0, top), mode=terminal_mode())
        canvas.line(range(len(rates)), rates, 0)
        cells = canvas.cells()
        return [strip((cells.text(row), palette.series(7))) for row in range(height)]


def _bar(facts: ThroughputFacts, width: int, palette: Palette) -> list[Strip]:
    """The shares as numbers, and below side by side as lengths; what is left over is faint."""
    bounds = [0.0]
    for share in facts.shares:
        bounds.append(min(1.0, bounds[-1] + max(0.0, share)))
    cells = [round(bound * width) for bound in bounds]
    bar: list[Part] = [
        (fill * (stop - start), palette.series(color))
        for fill, color, start, stop in zip(FILLS, COLORS, cells, cells[1:], strict=False)
    ]
    bar.append(("·" * (width - cells[-1]), palette.faint))
    for sign, gap in (("{} ", "  "), ("{}", " "), ("", " ")):  # as roomy as fits
        words: list[Part] = []
        for name, fill, color, share in zip(SHARES, FILLS, COLORS, facts.shares, strict=True):
            words += [
                (sign.format(fill), palette.series(color)),
                (f"{name} ", palette.muted),
                (f"{share:.0%}{gap}", palette.plain),
            ]
        if sum(len(text) for text, _ in words) - len(gap) <= width:
            break
    return [strip(*words), strip(*bar)]
