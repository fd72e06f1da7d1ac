"""What a user may ask of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erlcli.runs import control
from erlcli.runs.view import RunView
from erlcli.tui.asks import Asks
from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.leaving import Leaving
from erlcli.tui.screens.set_value import Answer, SetScreen


class Steering:
    """Writes requests and waits for their answers.

    Args:
        screen: that shows the run.
        view: of the run.

    Attributes:
        leaving: how the dashboard comes to an end.
    """

    def __init__(self, screen: LiveScreen, view: RunView) -> None:
        self._screen, self._view = screen, view
        self._asks = Asks(view.layout)
        self.leaving = Leaving(screen, view.layout.root.name, lambda: control.stop(view.layout))
        self._paused: bool | None = None  # what the learner answered, until the status, which comes later, says so too

    @property
    def text(self) -> str:
        """What is still to be answered; empty for nothing."""
        return self.leaving.text or self._asks.text

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
        if self.leaving.follow(self._view.is_live):
            self._screen.refresh_bindings()
            if not self._view.is_live:
                self._asks.pending.clear()  # nobody is left to answer
