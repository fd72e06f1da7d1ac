"""How a dashboard over live processes comes to an end: by its user, or by the end of what it shows."""

from __future__ import annotations

from collections.abc import Callable

from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.back import go_back
from erlcli.tui.screens.quit import QuitScreen

CLOSING_SECONDS = 10  # between the end of a run and that of the dashboard that came with it
STOPS = "Stop saves a checkpoint first."
RETIRES = "Stop retires it with a checkpoint: its tournament goes on without it. erl resume trains it on by itself."
DETACHES = "Stop saves a checkpoint first; detached training goes on."


class Leaving:
    """Asks before it leaves what is live, and closes by itself what came with a command.

    Only the dashboard's first screen takes the dashboard with it. One that was opened from another screen is about one
    run among others: once that has stopped, the screen before it comes back.

    Args:
        screen: that is left.
        name: of the run or tournament.
        stop: asks it to stop; may raise an OSError.

    Attributes:
        stopping: whether the user has asked to stop, and what is to leave once that is done.
    """

    def __init__(self, screen: LiveScreen, name: str, stop: Callable[[], None]) -> None:
        self._screen, self._name, self._stop = screen, name, stop
        self.stopping = False
        self._quits = False  # whether the dashboard leaves with the run that was asked to stop
        self._live = False
        self._closing: tuple[float, int] | None = None  # when, and how much the user had touched before

    @property
    def text(self) -> str:
        """What to tell while it stops; empty otherwise."""
        return "stopping …" if self.stopping and self._live else ""

    @property
    def _is_first(self) -> bool:
        return self._screen.dashboard.first is self._screen

    def leave(self, *, retires: bool = False) -> None:
        """Close at once where it is over, or where it has been asked to stop; otherwise ask.

        Args:
            retires: whether a tournament goes on without what is stopped.
        """
        if not self._live or self.stopping:
            self._screen.app.exit("stopped" if self.stopping else "closed")
            return
        self._quits = True
        words = RETIRES if retires else DETACHES
        self._screen.app.push_screen(QuitScreen(self._name, words), self._answered)

    def stop(self, *, retires: bool = False) -> None:
        """Ask whether to stop it; that is how one leaves the first screen, too.

        Args:
            retires: as for `leave`.
        """
        if self._is_first:
            self.leave(retires=retires)
        elif self._live and not self.stopping:
            self._quits = False
            words = RETIRES if retires else STOPS
            self._screen.app.push_screen(QuitScreen(self._name, words, detach=False), self._answered)

    def _answered(self, answer: str | None) -> None:
        if answer == "detach":
            self._screen.app.exit("detached")
        elif answer == "stop":
            try:
                self._stop()
            except OSError as error:
                self._screen.notify(f"the run directory can't be written: {error}", severity="error")
                return
            self.stopping = True
            self._screen.tick()

    def follow(self, live: bool) -> bool:
        """Take in whether it is live, after each read; whether that has changed."""
        before, self._live = self._live, live
        if before and not live:
            self._ended()
        return before != live

    def _ended(self) -> None:
        app = self._screen.dashboard
        if self.stopping and self._quits:
            app.exit("stopped")
        elif self.stopping:
            self.stopping = False
            if self._screen.is_current:
                go_back(self._screen)
        elif app.owns and self._is_first:
            self._closing = (app.clock() + CLOSING_SECONDS, app.touched)

    def notice(self, state: str) -> str:
        """What to tell while it is about to close by itself; looked at once a second, it leaves once it is time."""
        if self._closing is None:
            return ""
        app, (end, touched) = self._screen.dashboard, self._closing
        left = end - app.clock()
        if app.touched != touched:
            self._closing = None
        elif left <= 0:
            app.exit("closed")
        else:
            return f"{state}: closing in {left:.0f} s, any key keeps this open"
        return ""
