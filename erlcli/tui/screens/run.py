"""One run, live or finished: its curves, its numbers, its processes, what it says, and requests to it."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.events import DescendantBlur
from textual.widget import Widget
from textual.widgets import Input, Static

from erlcli.runs import control
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import quoted
from erlcli.runs.view import FOLLOWED_ROWS, RunView
from erlcli.tui.axes import Axis
from erlcli.tui.curves import CLOCKS, Columns, default_metrics, learning_curve, minis
from erlcli.tui.facts import Facts, facts_of, near
from erlcli.tui.live import GONE, LiveScreen
from erlcli.tui.output import Output
from erlcli.tui.screens.back import go_back
from erlcli.tui.screens.panes import Panes
from erlcli.tui.screens.steering import Steering
from erlcli.tui.widgets.best import Best
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.events import Events
from erlcli.tui.widgets.gpu import Gpus
from erlcli.tui.widgets.header import RunHeader
from erlcli.tui.widgets.keys import Keys
from erlcli.tui.widgets.metric_grid import MetricGrid, MetricLine
from erlcli.tui.widgets.processes import Processes
from erlcli.tui.widgets.throughput import Throughput

WATCH_EVERY_SECONDS = 5.0
STEERING = ("pause", "checkpoint", "set_value")  # actions that a tournament refuses for its members
LIVE_ONLY = (*STEERING, "stop")  # actions that need somebody to answer
PANES = ("curve", "metrics", "throughput", "processes", "events")  # keys 1 to 5


class RunScreen(LiveScreen):
    """See the module's docstring.

    Args:
        run: the run.
    """

    CSS_PATH = "run.tcss"
    AUTO_FOCUS = "#curve"
    BINDING_GROUP_TITLE = "Run"
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (60, "-normal"), (100, "-wide")]  # noqa: RUF012 - as Textual declares them
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (8, "-low"), (20, "-medium"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,p", "pause", "Pause", key_display="space"),
        Binding("c", "checkpoint", "Checkpoint"),
        Binding("l", "set_value", "Set"),
        Binding("x", "stop", "Stop"),
        Binding("a", "agent", "Agent"),
        Binding("m", "pick", "Metrics"),
        Binding("e", "level", "Events"),
        Binding("slash", "search", "Search events", key_display="/", show=False),
        Binding("t", "axis", "Over steps or time", show=False),
        Binding("y", "copy", "Copy the command that shows this", show=False),
        *(Binding(str(i + 1), f"maximise('{name}')", f"Only {name}", show=False) for i, name in enumerate(PANES)),
        Binding("tab", "next_pane(1)", "Next pane alone", show=False),
        Binding("shift+tab", "next_pane(-1)", "Previous pane alone", show=False),
        Binding("escape", "back", "Back", show=False),
        Binding("up", "scroll_events(1)", "Scroll events", show=False),
        Binding("down", "scroll_events(-1)", "Scroll events", show=False),
        Binding("pageup", "scroll_events(10)", "Scroll events", show=False),
        Binding("pagedown", "scroll_events(-10)", "Scroll events", show=False),
        Binding("home", "scroll_events(1000000)", "Scroll events", show=False),
        Binding("end", "scroll_events(-1000000)", "Scroll events", show=False),
    ]

    def __init__(self, run: RunLayout) -> None:
        super().__init__()
        self.view = RunView(run, FOLLOWED_ROWS)
        self.axis: Axis = "steps"
        self.chosen: list[str] | None = None  # metrics that have a small curve; None for the usual ones
        self._metrics, self._evals = Columns(), Columns()
        self._output = Output(run)
        self._facts: Facts | None = None
        self._panes = Panes(self, PANES)
        self._steering = Steering(self, self.view)
        self._agent: Any = None  # its pane, once it was asked for
        self._film: Any = None
        self._watched = 0.0
        self._unasked = False  # whether no film can be asked for
        self._gone = False  # whether the directory is

    def compose(self) -> ComposeResult:
        """Everything that there may be; which of it is shown depends on the size."""
        yield RunHeader(id="header")
        with Container(id="body"):
            with Vertical(id="left"):
                yield _titled(Chart(id="curve", classes="pane"), "learning curve")
                yield MetricLine(id="numbers")
                yield _titled(MetricGrid(id="metrics", classes="pane"), "metrics")
            with Vertical(id="right"):
                yield _titled(Throughput(id="throughput", classes="pane"), "throughput")
                yield _titled(Best(id="best", classes="pane"), "best evaluation")
                yield _titled(Processes(id="processes", classes="pane"), "processes")
                yield _titled(Gpus(id="gpus", classes="pane"), "gpu")
                yield Events(id="events", classes="pane")
        yield Input(id="search", placeholder="search events", compact=True)
        yield Static(id="notice")
        yield Keys()

    # Data

    def read(self) -> bool:
        """In the reader's thread: what the files say now."""
        now = self.dashboard.clock()
        changed = self.view.refresh()
        changed |= self._output.refresh(now)
        gone, self._gone = self._gone, not os.path.exists(self.view.layout.root)
        changed |= gone != self._gone
        if changed or self._facts is None:
            metrics = self._metrics.refreshed(self.view.metrics.rows)
            evals = self._evals.refreshed(self.view.evals.rows)
            facts = facts_of(self.view, metrics, self._output, now)
            learning_curve(metrics, evals, facts.best_row, self.axis)  # made here, found ready by the app's thread
            minis(metrics, self._shown_metrics(facts))
            self._metrics, self._evals, self._facts = metrics, evals, facts
        return self._read_agent(now) or changed

    def _read_agent(self, now: float) -> bool:
        if self._agent is None or not self._agent.display:
            return False
        from erlcli.runs.agent import read_agent

        before = self._film, self._unasked
        if self.view.is_live and now - self._watched >= WATCH_EVERY_SECONDS:
            self._watched = now
            try:
                control.watch_agent(self.view.layout)
                self._unasked = False
            except OSError:
                self._unasked = True
        self._film = read_agent(self.view.layout)
        return before != (self._film, self._unasked)

    def _show_agent(self) -> None:
        if self._agent is not None and self._facts is not None:
            self._agent.update_from(self._film, self._lack_of_film(self._facts))

    def _lack_of_film(self, facts: Facts) -> str:
        """Why there is none."""
        from erlcli.tui.widgets.agent import OVER, UNASKED, UNFILMED, WAITING

        if facts.governed:
            return UNFILMED
        if not facts.live:
            return OVER
        return UNASKED if self._unasked else WAITING

    def show(self) -> None:
        """In the app's thread: give every widget what it shows."""
        facts = self._facts
        if facts is None:  # not even one look was possible
            return
        self._steering.follow()
        self._show_curve()
        self._show_metrics()
        self.query_one(Throughput).update_from(facts.throughput)
        self.query_one(Best).update_from(facts.best)
        self.query_one(Gpus).update_from(facts.gpus)
        self.set_class(bool(facts.gpus), "-has-gpu")
        self.query_one(Events).update_from(facts.entries)
        self._show_agent()
        self.tick()

    def _show_curve(self) -> None:
        if self._facts is not None:
            series, marks = learning_curve(self._metrics, self._evals, self._facts.best_row, self.axis)
            chart = self.query_one("#curve", Chart)
            chart.show(series, target=self._facts.target, marks=marks, axis=self.axis)

    def _show_metrics(self) -> None:
        if self._facts is not None:
            shown = minis(self._metrics, self._shown_metrics(self._facts))
            self.query_one(MetricGrid).update_from(shown)
            self.query_one(MetricLine).update_from(shown)

    def _shown_metrics(self, facts: Facts) -> list[str]:
        return default_metrics(facts.names) if self.chosen is None else self.chosen

    def tick(self) -> None:
        """Durations and ages."""
        now = self.dashboard.clock()
        if self._facts is not None:
            self.query_one(RunHeader).update_from(self._facts.header_at(now, self._steering.text))
            self.query_one(Processes).update_from(self._facts.processes_at(now))
        words = GONE if self._gone else self._steering.leaving.notice(self.view.state)
        notice = self.query_one("#notice", Static)
        if notice.display or words:
            notice.display = bool(words)
            notice.update(words)

    # Requests

    def leave(self) -> None:
        """Ask first what shall become of a live run."""
        self._steering.leaving.leave(retires=self._governed)

    @property
    def _governed(self) -> bool:
        return self._facts is not None and self._facts.governed

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nobody answers requests once a run is over; those to a member its tournament refuses."""
        if action not in LIVE_ONLY:
            return True
        return self.view.is_live and not (action in STEERING and self._governed)

    def action_pause(self) -> None:
        """Pause, or go on."""
        self._steering.pause()

    def action_checkpoint(self) -> None:
        """Save one now."""
        self._steering.checkpoint()

    def action_stop(self) -> None:
        """Ask whether to stop."""
        self._steering.leaving.stop(retires=self._governed)

    def action_set_value(self) -> None:
        """Ask for another learning rate, or whatever else has a schedule."""
        self._steering.set_value(self._facts.settable if self._facts else ())

    # Views

    def action_axis(self) -> None:
        """Curves over steps, or over the time of training."""
        self.axis = "seconds" if self.axis == "steps" else "steps"
        self._show_curve()

    def action_pick(self) -> None:
        """Choose the metrics that have a small curve."""
        if self._facts is None:
            return
        from erlcli.tui.screens.metric_picker import MetricPicker

        shown = self._shown_metrics(self._facts)

        def picked(names: list[str] | None) -> None:
            if names != shown:  # or what appears later would stay away, though nobody has chosen
                self.chosen = names
                self._show_metrics()

        names = [name for name in self._facts.names if name not in CLOCKS]
        self.app.push_screen(MetricPicker(names, shown), picked)

    def action_agent(self) -> None:
        """Show the agent act, or hide it."""
        if self._agent is None:
            from erlcli.tui.widgets.agent import AgentPane

            self._agent = _titled(AgentPane(id="agent", classes="pane"), "agent")
            self._show_agent()
            self.query_one("#right").mount(self._agent, before=0)
            shown = True
        else:
            shown = self._agent.display = not self._agent.display
        self.set_class(shown, "-agent")
        if not self.has_class("-wide") or not shown:
            self._panes.restore()
            if shown:
                self.call_after_refresh(self._panes.toggle, "agent")

    def action_maximise(self, pane: str) -> None:
        """Show one pane alone, or all again."""
        self._panes.toggle(pane)

    def action_next_pane(self, by: int) -> None:
        """Show the next pane alone."""
        self._panes.step(by)

    def action_back(self) -> None:
        """Undo one thing: the search, the cursor, the pane that is alone; then leave to the screen before."""
        events = self.query_one(Events)
        if events.search or self.has_class("-searching"):
            events.find("")
            self.query_one("#search", Input).value = ""
            self._end_search()
        elif not self.query_one("#curve", Chart).forget_cursor() and not self._panes.restore():
            go_back(self)

    def action_level(self) -> None:
        """Events of other levels."""
        self.query_one(Events).next_level()

    def action_search(self) -> None:
        """Type what events have to contain."""
        self.add_class("-searching")
        self.query_one("#search", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search as it is typed."""
        self.query_one(Events).find(event.value)

    def on_input_submitted(self) -> None:
        """Back to the keys, with the search as it is."""
        self._end_search()

    def on_descendant_blur(self, event: DescendantBlur) -> None:
        """Whoever clicks elsewhere has searched enough."""
        if event.widget.id == "search":
            self._end_search()

    def _end_search(self) -> None:
        if self.has_class("-searching"):
            self.remove_class("-searching")
            self.query_one("#curve").focus()

    def action_scroll_events(self, lines: int) -> None:
        """Towards older ones."""
        self.query_one(Events).scroll_by(lines)

    def action_copy(self) -> None:
        """The command that shows this again, elsewhere or later."""
        path = quoted(near(self.view.layout.root))
        axis = " --x time" if self.axis == "seconds" else ""
        command = f"erl plot {path}{axis}" if self._panes.current == "curve" else f"erl watch {path}"
        self.app.copy_to_clipboard(command)
        self.notify(command, title="copied")


def _titled(widget: Widget, title: str) -> Widget:
    widget.border_title = title
    return widget
