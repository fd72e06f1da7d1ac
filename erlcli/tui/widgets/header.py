"""The top of the run screen: what runs, how it stands and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from textual.strip import Strip

from erlcli.runs.text import count, seconds
from erlcli.runs.view import LIVE
from erlcli.tui.axes import short
from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, Part, clip, spread, strip

TONES = {
    "running": "success",
    "starting": "accent",
    "evaluating": "accent",
    "stopping": "warning",
    "paused": "warning",
    "interrupted": "warning",
    "finished": "primary",
    "failed": "error",
    "dead": "error",
}


@dataclass(frozen=True)
class HeaderFacts:
    """What the header tells.

    Attributes:
        name: of the run.
        state: in a word, see `RunView.state`.
        task: the environment.
        algorithm: its name.
        setup: how it runs: processes, device.
        steps: taken.
        total: to be taken; 0 where that is unknown.
        elapsed: seconds of training so far.
        left: seconds to go at the present rate; None where that is unknown or over.
        best: mean return of the best full evaluation.
        target: the return that ends training.
        asked: a request that has not been answered yet, or the last answer.
    """

    name: str
    state: str = "starting"
    task: str = ""
    algorithm: str = ""
    setup: str = ""
    steps: int = 0
    total: int = 0
    elapsed: float | None = None
    left: float | None = None
    best: float | None = None
    target: float | None = None
    asked: str = ""

    @property
    def share(self) -> float:
        """Of the steps that are done."""
        return min(1.0, self.steps / self.total) if self.total else 0.0


class RunHeader(Lines):
    """Three lines, or as many of them as there is room for."""

    DEFAULT_CSS = "RunHeader { height: 3; padding: 0 1; background: $surface; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.facts: HeaderFacts | None = None

    def update_from(self, facts: HeaderFacts) -> None:
        """Show these."""
        if facts != self.facts:
            self.facts = facts
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """Name and state; numbers; progress."""
        facts = self.facts
        if facts is None:
            return []
        lines = [_names(facts, width, palette), _numbers(facts, width, palette), _progress(facts, width, palette)]
        return [lines[0], lines[2]] if height == 2 else lines[:height]


def _names(facts: HeaderFacts, width: int, palette: Palette) -> Strip:
    dot = "●" if facts.state in LIVE else "○"
    word = facts.asked if facts.asked and width >= 60 else facts.state
    tone = palette.named(TONES.get(facts.state, "foreground"), bold=True)
    right: list[Part] = [(f"{dot} {clip(word, max(8, width // 2))}", tone)]
    room = width - len(right[0][0]) - 1
    left: list[Part] = [(clip(facts.name, max(room, 0)), palette.bright)]
    room -= len(left[0][0])
    for text, style in ((facts.task, palette.plain), (facts.algorithm, palette.plain), (facts.setup, palette.muted)):
        room -= len(text) + 3
        if text and (room >= 0 or (text == facts.setup and room > 12 - len(text))):
            left += [(" · ", palette.faint), (clip(text, len(text) + min(room, 0)), style)]
    return spread(left, right, width, palette.plain)


def _numbers(facts: HeaderFacts, width: int, palette: Palette) -> Strip:
    pairs = [("elapsed", seconds(facts.elapsed) if facts.elapsed is not None else "-")]
    if facts.left is not None:
        pairs.append(("left", seconds(facts.left)))
    best = short(facts.best) if facts.best is not None else "-"
    goal = [("best", best)] + ([("target", f"{facts.target:g}")] if facts.target is not None else [])
    reached = facts.best is not None and facts.target is not None and facts.best >= facts.target
    left = _pairs(pairs, palette, palette.bright)
    right = _pairs(goal, palette, palette.named("success", bold=True) if reached else palette.bright)
    return spread(left, right[:-1], width, palette.plain)


def _pairs(pairs: Sequence[tuple[str, str]], palette: Palette, style: Style) -> list[Part]:
    parts: list[Part] = []
    for label, value in pairs:
        parts += [(label + " ", palette.muted), (value, style), ("   ", palette.plain)]
    return parts


def _progress(facts: HeaderFacts, width: int, palette: Palette) -> Strip:
    """A thin bar with the steps at its right."""
    text = f"{count(facts.steps)} / {count(facts.total)} steps" if facts.total else f"{count(facts.steps)} steps"
    words: list[Part] = [(f"  {text}", palette.bright), (f" {facts.share:>4.0%}", palette.muted)]
    room = width - strip(*words).cell_length
    if room < 8:
        return strip((clip(f"{text} {facts.share:.0%}", width), palette.bright))
    done = round(facts.share * room)
    tone = palette.named(TONES.get(facts.state, "foreground"))
    return strip(("━" * done, tone), ("─" * (room - done), palette.faint), *words)
