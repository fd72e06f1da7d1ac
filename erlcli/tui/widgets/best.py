"""The best evaluation of a run, where its checkpoint lies, and the commands that come next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from erlcli.runs.text import count, interval, plural, score
from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, Part, clip, strip


@dataclass(frozen=True)
class BestFacts:
    """What the pane tells.

    Attributes:
        mean: return of the best full evaluation; None where there was none yet.
        interval: its 95 % confidence interval.
        episodes: that it had.
        length: their mean length in steps of the environment.
        steps: of training at which it was.
        target: the return that ends training.
        checkpoint: where the policy lies.
        commands: that come next.
    """

    mean: float | None = None
    interval: tuple[float, float] | None = None
    episodes: int = 0
    length: float | None = None
    steps: int = 0
    target: float | None = None
    checkpoint: str = ""
    commands: tuple[str, ...] = ()


class Best(Lines):
    """A line each, the most telling ones first."""

    DEFAULT_CSS = "Best { height: auto; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.facts = BestFacts()

    def update_from(self, facts: BestFacts) -> None:
        """Show these."""
        if facts != self.facts:
            self.facts = facts
            self.redraw()
            self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """As many lines as there is to tell."""
        return len(self._lines()) or 1

    def _lines(self) -> list[list[tuple[str, str]]]:
        """Pieces of text and their tones."""
        facts = self.facts
        lines: list[list[tuple[str, str]]] = []
        if facts.mean is None:
            lines.append([("no full evaluation yet", "muted")])
        else:
            goal = f" of {facts.target:g}" if facts.target is not None else ""
            lines.append([(score(facts.mean), "bright"), (goal, "muted"), (f" at {count(facts.steps)} steps", "muted")])
            bounds = f"95% CI {interval(facts.interval, facts.mean)}, " if facts.interval else ""
            lines.append([(f"{bounds}{plural(facts.episodes, 'episode')}", "muted")])
        if facts.checkpoint:
            lines.append([(facts.checkpoint, "plain")])
        lines += [[("$ ", "accent"), (command, "plain")] for command in facts.commands]
        return lines

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """All lines, cut to the width."""
        styles = {
            "muted": palette.muted,
            "bright": palette.bright,
            "plain": palette.plain,
            "accent": palette.named("accent"),
        }
        drawn = []
        for line in self._lines():
            room, parts = width, list[Part]()
            for text, tone in line:
                cut = text if len(text) <= room or text != self.facts.checkpoint else "…" + text[1 - room :]
                parts.append((clip(cut, room), styles[tone]))
                room -= len(parts[-1][0])
            drawn.append(strip(*parts))
        return drawn
