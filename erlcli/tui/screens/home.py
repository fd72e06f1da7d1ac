"""All runs of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from erlcli.runs.listing import RunEntry, RunList
from erlcli.runs.text import count, plural, score, task
from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.back import go_back
from erlcli.tui.widgets.banner import Banner, state_tone
from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.table import Table

EMPTY = """\
no runs in {folder}

  erl train cartpole_ppo    starts one that takes seconds
  erl recipes               lists what can be trained"""


@dataclass(frozen=True)
class Item:
    """A run, and how long ago it was heard of, in words."""

    run: RunEntry
    age: str


def age_of(seconds: float) -> str:
    """How long ago, to one unit: `now`, `42 s`, `5 min`, `3 h`, `2 d`."""
    if seconds < 5:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def progress_of(item: Item, width: int) -> str:
    """The share of the budget that is used, as a bar; nothing where there is no budget."""
    if not item.run.total_steps:
        return ""
    share = min(item.run.steps / item.run.total_steps, 1.0)
    cells = max(width - 5, 0)
    full = round(share * cells)
    return "━" * full + "┄" * (cells - full) + f" {share:>4.0%}"


def best_of(item: Item) -> str:
    """The best return."""
    return "-" if item.run.best_return is None else score(item.run.best_return)


def _best_tone(item: Item) -> str:
    best, target = item.run.best_return, item.run.target_return
    return "good" if best is not None and target is not None and best >= target else "bright"


COLUMNS: tuple[Column[Item], ...] = (
    Column("run", 16, lambda i, _: i.run.name, lambda i: i.run.name, lambda i: "bright" if i.run.live else "plain",
           grow=1, most=32),
    Column("state", 11, lambda i, _: i.run.state, lambda i: i.run.state, lambda i: state_tone(i.run.state), keep=1),
    Column("task", 16, lambda i, _: task(i.run.env), lambda i: task(i.run.env), keep=3, grow=1, most=28),
    Column("algorithm", 10, lambda i, _: "tournament" if i.run.kind == "tournament" else i.run.algorithm,
           lambda i: i.run.algorithm, lambda i: "muted", keep=6),
    Column("best", 8, lambda i, _: best_of(i), lambda i: i.run.best_return, _best_tone, right=True, falling=True,
           keep=2),
    Column("target", 7, lambda i, _: "" if i.run.target_return is None else f"{i.run.target_return:g}",
           lambda i: i.run.target_return, lambda i: "muted", right=True, falling=True, keep=5),
    Column("steps", 7, lambda i, _: count(i.run.steps), lambda i: i.run.steps, right=True, falling=True, keep=7),
    Column("progress", 13, progress_of, tone=lambda i: "accent" if i.run.live else "muted", keep=8, grow=1, most=21),
    Column("age", 6, lambda i, _: i.age, lambda i: -i.run.heard, lambda i: "muted", right=True, keep=4),
)  # fmt: skip


class HomeScreen(LiveScreen):
    """See the module's docstring.

    Args:
        folder: of the runs.
    """

    DEFAULT_CSS = """
    HomeScreen {
        &.-flat Table, &.-tiny Table { border: none; }
        &.-tiny Banner, &.-tiny Footer { display: none; }
    }
    """
    AUTO_FOCUS = "Table"
    BINDING_GROUP_TITLE = "Runs"
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (6, "-flat"), (12, "-middle")]  # noqa: RUF012 - as on Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "compare", "Compare"),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._runs = RunList(folder)
        self._entries: list[RunEntry] = []
        self._problem = ""
        self._banner = Banner()
        self._table: Table[Item] = Table(
            COLUMNS, key=lambda item: str(item.run.path), markable=True, empty=f"looking for runs in {folder}",
            search=lambda item: f"{item.run.name} {item.run.state} {item.run.env} {item.run.algorithm} {item.run.kind}",
        )  # fmt: skip
        self._table.border_title = "runs"

    def compose(self) -> ComposeResult:
        """The runs."""
        yield self._banner
        yield self._table
        yield Keys()

    def read(self) -> bool:
        """Look at the folder."""
        try:
            changed, problem = self._runs.refresh(), ""
        except OSError as error:
            changed, problem = False, f"can't be read: {error.strerror}"
        changed |= problem != self._problem
        self._problem = problem
        return changed

    def show(self) -> None:
        """The runs that there are."""
        self._entries = self._runs.entries
        self.tick()

    def tick(self) -> None:
        """Ages, which change by themselves."""
        now = self.dashboard.clock()
        items = [Item(entry, age_of(entry.age_seconds(now))) for entry in self._entries]
        self._table.show_items(items, empty=EMPTY.format(folder=self.folder))
        live = sum(entry.live for entry in self._entries)
        right = [(self._problem, "bad")] if self._problem else []
        if not right:
            right = [(plural(len(items), "run"), "muted"), (f"  {live} live", "good" if live else "muted")]
        self._banner.show(([("erl  ", "accent"), (str(self.folder), "bright")], right))

    def on_table_opened(self, message: Table.Opened) -> None:
        """Open a run or a tournament."""
        self.app.push_screen(self.dashboard.screen_for(Path(message.key)))

    def action_compare(self) -> None:
        """Overlay the learning curves of the marked runs."""
        kinds = {str(entry.path): entry.kind for entry in self._entries}
        marks = self._table.rows.marks
        paths = [Path(key) for key in marks if kinds.get(key) == "run"]
        if not marks:
            self.notify("mark runs with space first")
        elif not paths:
            self.notify("a tournament has no curve of its own: open it and compare its members", severity="warning")
        else:
            if left_out := len(marks) - len(paths):
                self.notify(f"{plural(left_out, 'tournament')} left out: open one to compare its members")
            from erlcli.tui.screens.compare import CompareScreen

            self.app.push_screen(CompareScreen(paths))

    def action_back(self) -> None:
        """Return to where it was opened from."""
        go_back(self)
