"""What a user may ask of a run, and how its dashboard comes to an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erlcli.runs import control
from erlcli.runs.view import RunView
from erlcli.tui.asks import Asks
from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.quit import QuitScreen
from erlcli.tui.screens.set_value import Answer, SetScreen

CLOSING_SECONDS = 10  # between the end of a run and that of the dashboard that came with it


class Steering:
    """Writes requests and waits for their answers.

    Args:
        screen: that shows the run.
        view: of the run.

    Attributes:
        stopping: whether the user has asked to stop, and the dashboard is to leave once that is done.
    """

    def __init__(self, screen: LiveScreen, view: RunView) -> None:
        self._screen, self._view = screen, view
        self._asks = Asks(view.layout)
        self.stopping = False
        self._was_live = False
        self._paused: bool | None = None  # what the learner answered, until the status, which comes later, says so too
        self._closing: tuple[float, int] | None = None  # when, and how much the user had touched before

    @property
    def text(self) -> str:
        """What is still to be answered; empty for nothing."""
        return "stopping …" if self.stopping and self._view.is_live else self._asks.text

    def pause(self) -> None:
        """Pause, or go on."""
        paused = self._view.state == "paused" if self._paused is None else self._paused
        if paused:
            self._write(lambda: self._asks.ask("resume", "go on"))
        else:
            self._write(lambda: self._asks.ask("pause", "pause"))

    def checkpoint(self) -> None:
        """Save one now."""
        self._write(lambda: self._asks.ask("checkpoint", "save a checkpoint"))

    def set_value(self, values: Sequence[Answer]) -> None:
        """Ask for another learning rate, or whatever else `values` has."""
        if values:
            self._screen.app.push_screen(SetScreen(values), self._set)
        else:
            self._screen.notify("no scheduled values in the metrics yet", severity="warning")

    def _set(self, answer: Answer | None) -> None:
        if answer is not None:
            key, value = answer
            words = f"set {key.partition('.')[2]} to {value:g}"
            self._write(lambda: self._asks.ask("set", words, key=key, value=value))

    def leave(self) -> None:
        """Close at once where the run is over, or where it has been asked to stop; otherwise ask."""
        if self._view.is_live and not self.stopping:
            self._screen.app.push_screen(QuitScreen(self._view.layout.root.name), self._left)
        else:
            self._screen.app.exit("stopped" if self.stopping else "closed")

    def _left(self, answer: str | None) -> None:
        if answer == "detach":
            self._screen.app.exit("detached")
        elif answer == "stop" and self._write(lambda: control.stop(self._view.layout)):
            self.stopping = True
            self._screen.tick()

    def _write(self, ask: Callable[[], None]) -> bool:
        try:
            ask()
        except OSError as error:
            self._screen.notify(f"the run directory can't be written: {error}", severity="error")
            return False
        self._screen.tick()
        return True

    def follow(self) -> None:
        """Look for answers, and for the end of the run."""
        for answer in self._asks.answered(self._view.events):
            self._screen.notify(answer.message, severity="warning" if answer.refused else "information")
            if answer.kind in ("pause", "resume"):
                self._paused = answer.kind == "pause" and not answer.refused
        if self._paused is (self._view.state == "paused"):
            self._paused = None
        live, was_live = self._view.is_live, self._was_live
        self._was_live = live
        if live != was_live:
            self._screen.refresh_bindings()
        if was_live and not live:
            self._asks.pending.clear()  # nobody is left to answer
            app = self._screen.dashboard
            if self.stopping:
                app.exit("stopped")
            elif app.owns:
                self._closing = (app.clock() + CLOSING_SECONDS, app.touched)

    def notice(self) -> str:
        """What to tell while the dashboard is about to close by itself; leaves once it is time."""
        if self._closing is None:
            return ""
        app, (end, touched) = self._screen.dashboard, self._closing
        left = end - app.clock()
        if app.touched != touched:
            self._closing = None
        elif left <= 0:
            app.exit("closed")
        else:
            return f"{self._view.state}: closing in {left:.0f} s, any key keeps this open"
        return ""
