"""How a dashboard over live processes comes to an end: by its user, or by the end of what it shows."""

from __future__ import annotations

from collections.abc import Callable

from erlcli.tui.live import LiveScreen
from erlcli.tui.screens.quit import QuitScreen

CLOSING_SECONDS = 10  # between the end of a run and that of the dashboard that came with it


class Leaving:
    """Asks before it leaves what is live, and closes by itself what came with a command.

    Args:
        screen: that is left.
        name: of the run or tournament.
        stop: asks it to stop; may raise an OSError.

    Attributes:
        stopping: whether the user has asked to stop, and the dashboard is to leave once that is done.
    """

    def __init__(self, screen: LiveScreen, name: str, stop: Callable[[], None]) -> None:
        self._screen, self._name, self._stop = screen, name, stop
        self.stopping = False
        self._live = False
        self._closing: tuple[float, int] | None = None  # when, and how much the user had touched before

    @property
    def text(self) -> str:
        """What to tell while it stops; empty otherwise."""
        return "stopping …" if self.stopping and self._live else ""

    def leave(self) -> None:
        """Close at once where it is over, or where it has been asked to stop; otherwise ask."""
        if self._live and not self.stopping:
            self._screen.app.push_screen(QuitScreen(self._name), self._answered)
        else:
            self._screen.app.exit("stopped" if self.stopping else "closed")

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
            app = self._screen.dashboard
            if self.stopping:
                app.exit("stopped")
            elif app.owns:
                self._closing = (app.clock() + CLOSING_SECONDS, app.touched)
        return before != live

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
