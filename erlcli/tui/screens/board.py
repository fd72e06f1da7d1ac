"""The leaderboard of a tournament."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from erlcli.runs import control
from erlcli.runs.control import TournamentKind
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count, decimals, plural, score, seconds, sparkline, task
from erlcli.tui.figure import Series
from erlcli.tui.live import GONE, LiveScreen
from erlcli.tui.screens.back import go_back
from erlcli.tui.screens.leaving import Leaving
from erlcli.tui.standings import Entry, Standings, StandingsReader
from erlcli.tui.widgets.banner import Banner, Line, state_tone
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.member import Facts
from erlcli.tui.widgets.table import Table

STATES = ("running", "waiting", "parked", "retired")
LIVE_ONLY = ("ask", "ask_member", "pause", "scale")  # actions that need an orchestrator to answer
AGAIN_SECONDS = 5.0  # within which the key of a request that can't be undone has to be pressed again
MOST_CURVES = 8


def _name_tone(entry: Entry) -> str:
    return "muted" if entry.state == "retired" else "bright"


def _number_tone(entry: Entry) -> str:
    return "muted" if entry.state == "retired" else "plain"


def _margin(mean: float | None, ci: tuple[float, float] | None) -> str:
    """Half of the interval, with as many decimals as the score."""
    if ci is None or mean is None:
        return ""
    return f"±{(ci[1] - ci[0]) / 2:.{decimals(mean)}f}"


COLUMNS: tuple[Column[Entry], ...] = (
    Column("#", 3, lambda e, _: str(e.place or "-"), lambda e: e.place, lambda e: "muted", right=True, keep=1),
    Column("member", 8, lambda e, _: e.id, lambda e: e.id, _name_tone),
    Column("algorithm", 9, lambda e, _: e.algorithm, lambda e: e.algorithm, _number_tone, keep=5),
    Column("score", 7, lambda e, _: "-" if e.score is None else score(e.score), lambda e: e.score, _number_tone,
           right=True, falling=True, keep=1),
    Column("95% CI", 7, lambda e, _: _margin(e.score, e.ci), lambda e: e.margin, lambda e: "muted", right=True, keep=6),
    Column("score history", 13, lambda e, width: sparkline([mean for _, mean in e.history], width),
           tone=lambda e: "muted" if e.state == "retired" else "accent", keep=4, grow=1, most=32),
    Column("steps", 7, lambda e, _: count(e.steps), lambda e: e.steps, _number_tone, right=True, falling=True, keep=3),
    Column("slot", 6, lambda e, _: e.slot or "", lambda e: e.slot, keep=8),
    Column("state", 8, lambda e, _: e.state, lambda e: e.state, lambda e: state_tone(e.state), keep=2),
    Column("parent", 8, lambda e, _: e.parent or "", lambda e: e.parent, lambda e: "muted", keep=7),
)  # fmt: skip


class BoardScreen(LiveScreen):
    """See the module's docstring.

    Args:
        path: the tournament's directory.
    """

    DEFAULT_CSS = """
    BoardScreen {
        & Banner { height: 2; }
        & #detail { height: 11; display: none; }
        & #detail Chart, & #detail Facts {
            border: round $border-blurred;
            border-title-color: $foreground-muted;
            border-subtitle-color: $foreground-muted;
        }
        &.-high #detail { display: block; }
        &.-narrow #detail Chart { display: none; }
        &.-flat Banner { height: 1; }
        &.-flat Table, &.-tiny Table { border: none; }
        &.-tiny Banner, &.-tiny Footer { display: none; }
    }
    """
    AUTO_FOCUS = "Table"
    BINDING_GROUP_TITLE = "Tournament"
    HOLDS_MEMBERS = True
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - as on Screen
        (0, "-tiny"),
        (6, "-flat"),
        (12, "-middle"),
        (30, "-high"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-wide")]  # noqa: RUF012 - as on Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "compare", "Compare"),
        Binding("t", "lineage", "Lineage"),
        Binding("g", "history", "Parameters"),
        Binding("p", "pause", "Pause or go on", show=False),
        Binding("K", "ask_member('kill')", "Kill"),
        Binding("C", "ask_member('clone')", "Clone"),
        Binding("plus", "scale(1)", "One slot more", show=False),
        Binding("minus", "scale(-1)", "One slot less", show=False),
        Binding("X", "ask('stop')", "Stop the tournament", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._reading = StandingsReader(path)
        self.standings: Standings = self._reading.latest
        self._leaving = Leaving(self, path.name, lambda: control.stop(RunLayout(path)))
        self._asked: tuple[str, float] | None = None  # a request that waits for its key to be pressed again
        self._pending: dict[str, str] = {}  # requests that wait for their answer, in words
        self._gone = False  # whether the directory is
        self._wanted: int | None = None  # slots that were asked for, until there is an answer
        self._banner, self._facts, self._chart = Banner(), Facts(), Chart()
        self._table: Table[Entry] = Table(
            COLUMNS, key=lambda entry: entry.id, markable=True, empty="no members yet",
            search=lambda entry: f"{entry.id} {entry.algorithm} {entry.state} {entry.slot or ''} {entry.parent or ''}",
        )  # fmt: skip
        self._table.border_title = "leaderboard"
        self._chart.border_title, self._facts.border_title = "score by steps", "member"

    def compose(self) -> ComposeResult:
        """Standing, members, and the member under the cursor where there is room."""
        yield self._banner
        yield self._table
        with Horizontal(id="detail"):
            yield self._chart
            yield self._facts
        yield Keys()

    @property
    def marks(self) -> list[str]:
        """Ids of the marked members, in the order in which they were marked."""
        return list(self._table.rows.marks)

    # Files in, widgets out

    def read(self) -> bool:
        """Read the journal on."""
        gone, self._gone = self._gone, not os.path.exists(self.path)
        return self._reading.refresh() or gone != self._gone

    def show(self) -> None:
        """Everything, here and on the screens that were opened from here."""
        self.standings = self._reading.latest
        self._table.show_items(self.standings.entries)
        self.tick()
        self._show_detail()
        self._show_answers()
        if self._leaving.follow(self.standings.live):
            self.refresh_bindings()
        for screen in self.app.screen_stack:
            if isinstance(screen, FollowingScreen) and screen.board is self:
                screen.update_from(self.standings)

    def tick(self) -> None:
        """The head, with the time that has gone by."""
        first, (left, right) = head_of(self.standings, self.dashboard.clock())
        notice = GONE if self._gone else self._leaving.text or self._leaving.notice(self.standings.state)
        self._banner.show(first, ([(notice, "accent")], right) if notice else (left, right))

    def leave(self) -> None:
        """Ask first what shall become of a live tournament."""
        self._leaving.leave()

    def _show_detail(self) -> None:
        """The member under the cursor, and its curve among those that are marked."""
        current = self._table.rows.current
        self._facts.show(current)
        marked = [self.standings.entry(key) for key in self.marks]
        self._chart.show(curves([entry for entry in marked if entry is not None][:MOST_CURVES] or [current]))

    def on_table_moved(self) -> None:
        """Another member is under the cursor."""
        self._show_detail()

    def on_table_marked(self) -> None:
        """Other members' curves are wanted."""
        self._show_detail()

    def on_table_opened(self, message: Table.Opened) -> None:
        """Look at a member's run."""
        self.open_member(message.key)

    def open_member(self, member: str) -> None:
        """Open the run of a member."""
        layout = RunLayout(self.path / "members" / member)
        if not layout.recipe.is_file():
            self.notify(f"{member} has no run directory yet", severity="warning")
            return
        from erlcli.tui.screens.run import RunScreen

        self.app.push_screen(RunScreen(layout))

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Requests are offered only where somebody is there to answer them."""
        if action in LIVE_ONLY:
            return self.standings.live
        return super().check_action(action, parameters)

    def action_compare(self) -> None:
        """Overlay the learning curves of the marked members."""
        marks = self.marks
        paths = [path for key in marks if (path := self.path / "members" / key) and (path / "recipe.toml").is_file()]
        if not marks:
            self.notify("mark members with space first")
        elif not paths:
            self.notify("none of the marked members has a run directory yet", severity="warning")
        else:
            from erlcli.tui.screens.compare import CompareScreen

            self.app.push_screen(CompareScreen(paths))

    def action_lineage(self) -> None:
        """Show the family tree."""
        from erlcli.tui.screens.lineage import LineageScreen

        self.app.push_screen(LineageScreen(self))

    def action_history(self) -> None:
        """Show which values hyper-parameters had."""
        from erlcli.tui.screens.history import HistoryScreen

        self.app.push_screen(HistoryScreen(self))

    def action_back(self) -> None:
        """Return to where it was opened from."""
        go_back(self)

    # Requests: files for the orchestrator; nothing is done from here

    def action_pause(self) -> None:
        """Ask to pause, or to go on."""
        paused = self.standings.state == "paused"
        self._request("resume" if paused else "pause", "go on" if paused else "pause")

    def action_ask(self, kind: TournamentKind) -> None:
        """Ask for what concerns the whole tournament, after a second press."""
        if self._sure(f"{kind} the tournament"):
            self._request(kind, kind)

    def action_ask_member(self, kind: TournamentKind) -> None:
        """Ask for something about the member under the cursor; a kill only after a second press."""
        member = self._table.rows.cursor
        if member is not None and (kind != "kill" or self._sure(f"{kind} {member}")):
            self._request(kind, f"{kind} {member}", member=member)

    def action_scale(self, by: int) -> None:
        """Ask for more slots or fewer; pressed several times, for several."""
        now = self.standings.slots if self._wanted is None else self._wanted
        wanted = now + by
        if wanted < 1:
            self.notify("the last slot stays: p pauses, X stops the tournament", severity="warning")
        elif self._request("slots", f"have {wanted} slot{'s' * (wanted != 1)}", count=wanted):
            self._wanted = wanted

    def _show_answers(self) -> None:
        """Say what became of requests."""
        for request in [request for request in self._pending if request in self.standings.answers]:
            words, refusal = self._pending.pop(request), self.standings.answers[request]
            if refusal:
                self.notify(f"{words}: refused, {refusal}", severity="error")
            else:
                self.notify(f"{words}: done")
        if not self._pending:
            self._wanted = None

    def _sure(self, what: str) -> bool:
        """Whether this was asked for a moment ago already; says how to confirm if not."""
        now = self.dashboard.clock()
        sure = self._asked is not None and self._asked[0] == what and now - self._asked[1] <= AGAIN_SECONDS
        self._asked = None if sure else (what, now)
        if not sure:
            self.notify(f"{what}? press the key again", severity="warning", timeout=AGAIN_SECONDS)
        return sure

    def _request(self, kind: TournamentKind, words: str, **facts: Any) -> bool:  # noqa: ANN401 - JSON values
        """Ask the orchestrator; whether that could be written."""
        try:
            request = control.tournament_request(self.path, kind, **facts)
        except OSError as error:
            self.notify(f"{words}: {error}", severity="error")
            return False
        self._pending[request] = words
        self.notify(f"asked to {words}")
        return True


class FollowingScreen(Screen[None]):
    """A screen that shows what a board's screen reads.

    Args:
        board: that it was opened from.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def __init__(self, board: BoardScreen) -> None:
        super().__init__()
        self.board = board

    def on_mount(self) -> None:
        """Show what there is."""
        self.update_from(self.board.standings)

    def update_from(self, standings: Standings) -> None:
        """Show this."""
        raise NotImplementedError

    def action_back(self) -> None:
        """Return to the board."""
        go_back(self)


def curves(entries: Sequence[Entry | None]) -> list[Series]:
    """The scores of members by steps, a colour each."""
    series = []
    for color, entry in enumerate(entries):
        if entry is not None and entry.history:
            points = np.array(entry.history, dtype=np.float64)
            series.append(Series(entry.id, points[:, 0], points[:, 1], color, points=True))
    return series


def head_of(standings: Standings, now: float) -> tuple[Line, Line]:
    """The two lines at the top."""
    elapsed = standings.seconds(now)
    counts = standings.counts()
    best: list[tuple[str, str]] = [("no champion yet", "muted")]
    if standings.champion is not None and standings.score is not None:
        mean, margin = score(standings.score), f" {_margin(standings.score, standings.ci)}"
        best = [("champion ", "muted"), (standings.champion, "bright"), (f"  {mean}", "good"), (margin, "muted")]
    count_of = len(standings.entries)
    members: list[tuple[str, str]] = [(f"{count_of} member{'s' * (count_of != 1)}", "")]
    for state in STATES:
        members += [(f"  {counts[state]} {state}", "muted")] if counts[state] else []
    unread = [(f"  {plural(standings.skipped, 'row')} unread", "bad")] if standings.skipped else []
    return (
        (
            [(standings.name, "bright"), ("  tournament  ", "muted"), (task(standings.env), "")],
            [(standings.state, state_tone(standings.state)), ("  elapsed ", "muted"),
             ("-" if elapsed is None else seconds(elapsed), "")],
        ),
        ([("slots ", "muted"), (f"{standings.busy}/{standings.slots}", ""), *unread, ("  ", ""), *members], best),
    )  # fmt: skip
