"""Which values hyper-parameters had in a tournament: a chart each, a line for every member from its birth on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ItemGrid, VerticalScroll
from textual.widgets import Static

from erlcli.tui.axes import Axis
from erlcli.tui.figure import Series
from erlcli.tui.screens.board import BoardScreen, FollowingScreen
from erlcli.tui.standings import Entry, Standings
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.member import shown

MOST_LINES = 8  # members a chart, the best ones: more can't be told apart
CHART_WIDTH = 38  # cells at least
LEAST_HEIGHT, MOST_HEIGHT = 9, 20
LOGARITHMIC = 20.0  # ratio of the largest to the smallest value from which their logarithm is shown


def scale_of(values: Sequence[Any]) -> tuple[str, dict[Any, float]]:
    """Where values of a hyper-parameter lie on an axis.

    Returns:
        What to add to the chart's title, and the height of each value.
    """
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]
    if len(numbers) < len(values):
        words = sorted({shown(value) for value in values})
        names = "  ".join(f"{number} = {word}" for number, word in enumerate(words))
        return f"  {names}", {_key(value): float(words.index(shown(value))) for value in values}
    if min(numbers) > 0 and max(numbers) > LOGARITHMIC * min(numbers):
        return "  log10", {_key(value): math.log10(value) for value in numbers}
    return "", {_key(value): float(value) for value in numbers}


def _key(value: Any) -> Any:  # noqa: ANN401 - from a recipe; lists have no hash
    return shown(value) if isinstance(value, (list, dict)) else value


def lines_of(key: str, entries: Sequence[Entry], *, axis: Axis, started: float) -> tuple[str, list[Series]]:
    """The lines of one hyper-parameter.

    Args:
        key: its name.
        entries: members in the order of their colours.
        axis: what x counts.
        started: when the tournament began, in seconds since the epoch.

    Returns:
        What to add to the chart's title, and the lines.
    """
    having = [(color, entry) for color, entry in enumerate(entries) if key in entry.parameters]
    if not having:
        return "", []
    note, height = scale_of([entry.parameters[key] for _, entry in having])
    series = []
    for color, entry in having:
        value = entry.parameters[key]
        y = height[_key(value)]
        if axis == "steps":
            x = (float(entry.born_steps), float(max(entry.steps, entry.born_steps)))
        else:
            x = (entry.born - started, max(entry.updated, entry.born) - started)
        series.append(Series(entry.id, np.array(x), np.array((y, y)), color, text=shown(value)))
    return note, series


class HistoryScreen(FollowingScreen):
    """See the module's docstring.

    Args:
        board: that it was opened from.
    """

    DEFAULT_CSS = """
    HistoryScreen {
        & ItemGrid { height: auto; }
        & Chart {
            height: 100%;
            border: round $border-blurred;
            border-title-color: $foreground-muted;
            &:focus { border: round $primary; }
        }
        & #nothing { padding: 1 2; color: $foreground-muted; }
        &.-tiny Banner, &.-tiny Footer { display: none; }
    }
    """
    AUTO_FOCUS = "Chart"
    BINDING_GROUP_TITLE = "Hyper-parameters"
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (6, "-middle")]  # noqa: RUF012 - as on Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "axis", "Steps/time"),
        Binding("tab", "app.focus_next", "Next chart", show=False),
    ]

    def __init__(self, board: BoardScreen) -> None:
        super().__init__(board)
        self.axis: Axis = "steps"
        self._charts: dict[str, Chart] = {}

    def compose(self) -> ComposeResult:
        """A chart for each hyper-parameter that was ever changed."""
        self._banner = Banner()
        yield self._banner
        keys = sorted(self.board.standings.changes or {})
        self._charts = {key: Chart() for key in keys}
        with VerticalScroll(can_focus=False):
            if not keys:
                yield Static("no member has changed a hyper-parameter yet", id="nothing")
            with ItemGrid(min_column_width=CHART_WIDTH):
                yield from self._charts.values()
        yield Keys()

    def on_mount(self) -> None:
        """Show what there is."""
        self.update_from(self.board.standings)

    def on_resize(self) -> None:
        """Share the height out, but not below what a chart needs."""
        across = max(1, min(self.size.width // CHART_WIDTH, len(self._charts)))
        rows = max(1, math.ceil(len(self._charts) / across))
        height = max(LEAST_HEIGHT, min(MOST_HEIGHT, (self.size.height - 2) // rows))
        self.query_one(ItemGrid).styles.grid_rows = str(height)

    def update_from(self, standings: Standings) -> None:
        """Show the hyper-parameters of the best members, and of those that are marked first."""
        if set(standings.changes or {}) - set(self._charts):
            self.call_later(self._grow, standings)
            return
        marks = self.board.marks
        chosen = [entry for entry in standings.entries if entry.id in marks] or list(standings.entries)
        chosen = chosen[:MOST_LINES]
        for key, chart in self._charts.items():
            note, series = lines_of(key, chosen, axis=self.axis, started=standings.started)
            chart.show(series, axis=self.axis)
            chart.border_title = f"{key.removeprefix('algorithm.')}{note}"
        which = "marked" if marks else "best"
        by = "by steps" if self.axis == "steps" else "by time"
        self._banner.show(
            (
                [(standings.name, "bright"), (f"  hyper-parameters {by}", "muted")],
                [(f"the {len(chosen)} {which} of {len(standings.entries)} members", "muted")],
            )
        )

    async def _grow(self, standings: Standings) -> None:
        """A key that no member had changed before: make its chart too."""
        await self.recompose()
        self.on_resize()
        self.update_from(standings)

    def action_axis(self) -> None:
        """Switch between steps and time."""
        self.axis = "seconds" if self.axis == "steps" else "steps"
        self.update_from(self.board.standings)
