"""Everything the journal says of one member of a tournament, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.strip import Strip

from erlcli.runs.text import count, interval, score
from erlcli.tui.palette import Palette
from erlcli.tui.standings import Entry
from erlcli.tui.widgets.banner import Word, state_tone, style_of
from erlcli.tui.widgets.lines import Lines, strip

LABEL = 9  # cells


def shown(value: Any) -> str:  # noqa: ANN401 - from a recipe
    """A value of a recipe, short."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


class Facts(Lines):
    """See the module's docstring."""

    DEFAULT_CSS = "Facts { width: 1fr; height: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._entry: Entry | None = None

    def show(self, entry: Entry | None) -> None:
        """Show this member; draws only if it differs."""
        if entry is not self._entry:
            self._entry = entry
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """A label and its words a line."""
        if self._entry is None:
            return []
        lines = lines_of(self._entry, width)[:height]
        return [
            strip((label.ljust(LABEL), palette.muted), *((text, style_of(palette, tone)) for text, tone in words))
            for label, words in lines
        ]


def lines_of(entry: Entry, width: int) -> list[tuple[str, list[Word]]]:
    """Labels and words of a member, the most wanted first."""
    what: list[Word] = [(entry.id, "bright"), (f" {entry.algorithm} ", ""), (entry.state, state_tone(entry.state))]
    if entry.slot:
        what.append((f" on {entry.slot}", ""))
    lines: list[tuple[str, list[Word]]] = [("member", what)]
    if entry.score is not None and entry.ci is not None:
        ci = f"  {interval(entry.ci, entry.score)}  {entry.episodes} episodes"
        lines.append(("score", [(score(entry.score), "bright"), (ci, "muted")]))
    if entry.reason:
        lines.append(("retired", [(entry.reason, "warn")]))
    lines += [(" changes" if number else "changes", _change(*change)) for number, change in enumerate(entry.changes)]
    lines = [("" if label == " changes" else label, words) for label, words in lines]
    if len(entry.lineage) > 1:
        lines.append(("lineage", [(_chain(entry.lineage, width - LABEL), "")]))
    born = f"{count(entry.steps - entry.born_steps)} of its own"
    lines.append(("steps", [(count(entry.steps), ""), (f"  {born}", "muted")]))
    if entry.seed is not None:
        lines.append(("seed", [(str(entry.seed), "muted")]))
    return lines


def _change(key: str, before: Any, value: Any) -> list[Word]:  # noqa: ANN401 - from a recipe
    words: list[Word] = [(f"{key.removeprefix('algorithm.')} ", "muted")]
    if before is not None:
        words.append((f"{shown(before)} → ", "muted"))
    return [*words, (shown(value), "accent")]


def _chain(lineage: Sequence[str], width: int) -> str:
    """Ancestors from the oldest on; the middle goes where there are too many."""
    text = " → ".join(lineage)
    left = list(lineage)
    while len(text) > width and len(left) > 2:
        del left[1]
        text = " → ".join([left[0], "…", *left[1:]])
    return text
