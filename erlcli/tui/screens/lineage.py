"""The family tree of a tournament's members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult

from erlcli.runs.text import count, score
from erlcli.tui.screens.board import FollowingScreen
from erlcli.tui.standings import Entry, Standings
from erlcli.tui.widgets.banner import Banner, state_tone
from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.member import shown
from erlcli.tui.widgets.table import Table

CHAMPION = "★"


@dataclass(frozen=True)
class Branch:
    """A line of the tree.

    Attributes:
        entry: the member.
        twigs: the lines of the tree before its name.
        royal: whether it is the champion or an ancestor of it.
        champion: whether it is the champion.
    """

    entry: Entry
    twigs: str
    royal: bool
    champion: bool


def branches(standings: Standings) -> list[Branch]:
    """The lines of the tree, from top to bottom."""
    entries = {entry.id: entry for entry in standings.entries}
    champion = entries.get(standings.champion or "")
    royal = set(champion.lineage) if champion else set()
    twigs = twigs_of([depth for depth, _ in standings.tree])
    return [
        Branch(entries[member], twig, member in royal, member == standings.champion)
        for (_, member), twig in zip(standings.tree, twigs, strict=True)
        if member in entries
    ]


def twigs_of(depths: Sequence[int]) -> list[str]:
    """What to draw before each name of a tree whose lines have these depths, from top to bottom."""
    twigs: list[str] = []
    goes_on: set[int] = set()  # depths at which a sibling follows further down
    for depth in reversed(depths):
        goes_on = {level for level in goes_on if level <= depth}
        bars = "".join("│ " if level in goes_on else "  " for level in range(1, depth))
        twigs.append(bars + ("" if depth == 0 else "├─" if depth in goes_on else "└─"))
        goes_on.add(depth)
    return twigs[::-1]


def _text(branch: Branch, width: int) -> str:
    name = f"{branch.entry.id}{' ' + CHAMPION if branch.champion else ''}"
    room = max(width - cell_len(name), 0)  # of deep trees the twigs are cut, at their old end
    twigs = branch.twigs
    if len(twigs) > room:
        twigs = "…" + twigs[len(twigs) - room + 1 :] if room else ""
    return twigs + name


def _changes(branch: Branch, width: int) -> str:
    return ", ".join(
        f"{key.removeprefix('algorithm.')} {'' if before is None else shown(before) + ' → '}{shown(value)}"
        for key, before, value in branch.entry.changes
    )


def _tone(branch: Branch) -> str:
    return "royal" if branch.royal else "muted" if branch.entry.state == "retired" else "plain"


COLUMNS: tuple[Column[Branch], ...] = (
    Column("member", 16, _text, tone=_tone, grow=1, most=40),
    Column("score", 7, lambda b, _: "-" if b.entry.score is None else score(b.entry.score), tone=_tone, right=True,
           keep=1),
    Column("state", 8, lambda b, _: b.entry.state, tone=lambda b: state_tone(b.entry.state), keep=2),
    Column("steps", 7, lambda b, _: count(b.entry.steps), tone=_tone, right=True, keep=4),
    Column("algorithm", 9, lambda b, _: b.entry.algorithm, tone=_tone, keep=5),
    Column("changes", 24, _changes, tone=lambda b: "muted", keep=3, grow=3),
)  # fmt: skip


class LineageScreen(FollowingScreen):
    """See the module's docstring."""

    DEFAULT_CSS = """
    LineageScreen {
        &.-flat Table, &.-tiny Table { border: none; }
        &.-tiny Banner, &.-tiny Footer { display: none; }
    }
    """
    AUTO_FOCUS = "Table"
    BINDING_GROUP_TITLE = "Lineage"
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (6, "-flat"), (12, "-middle")]  # noqa: RUF012 - as on Screen

    def compose(self) -> ComposeResult:
        """The tree."""
        self._banner = Banner()
        self._table: Table[Branch] = Table(
            COLUMNS, key=lambda branch: branch.entry.id, empty="no members yet",
            search=lambda branch: f"{branch.entry.id} {branch.entry.algorithm} {branch.entry.state}",
        )  # fmt: skip
        self._table.border_title = "lineage"
        yield self._banner
        yield self._table
        yield Keys()

    def on_mount(self) -> None:
        """Begin at the champion."""
        super().on_mount()
        if self.board.standings.champion is not None:
            self.call_after_refresh(self._table.show_at, self.board.standings.champion)

    def update_from(self, standings: Standings) -> None:
        """Show the tree of these members."""
        tree = branches(standings)
        self._table.show_items(tree)
        line = " → ".join(branch.entry.id for branch in tree if branch.royal)
        words = [("champion's line ", "muted"), (line, "good")] if line else [("no champion yet", "muted")]
        self._banner.show(([(standings.name, "bright"), ("  ", ""), *words], [(f"{len(tree)} members", "muted")]))

    def on_table_opened(self, message: Table.Opened) -> None:
        """Look at a member's run."""
        self.board.open_member(message.key)
