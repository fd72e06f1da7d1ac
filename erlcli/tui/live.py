"""Screens that follow files: read in a thread, shown in the app's own, never both at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import App
from textual.screen import Screen

if TYPE_CHECKING:
    from erlcli.tui.app import Dashboard

GONE = "the directory is gone, moved or deleted: this is what was read last"
READ_SECONDS = 0.25  # four reads a second look alive, and cost next to nothing where nothing is new


class Reader(threading.Thread):
    """Calls `read` again and again, and `show` in the app's thread whenever there was something new.

    `read` waits while `show` runs, so neither has to guard what they share. A file that can't be read is told once and
    tried again; any other failure ends the app with its traceback, since a frozen dashboard would tell lies.

    Args:
        app: whose thread shows.
        read: takes in what is new; whether there was anything.
        show: draws it.
    """

    def __init__(self, app: App[Any], read: Callable[[], bool], show: Callable[[], None]) -> None:
        super().__init__(name="reader", daemon=True)
        self._app, self._read, self._show = app, read, show
        self._left = threading.Event()
        self._first = True
        self._trouble = ""

    def run(self) -> None:
        """Until `leave`; an app that is closing ends it too."""
        while not self._left.is_set():
            try:
                self._step()
            except OSError as error:
                self._tell(str(error))
            except Exception as error:
                if not self._left.is_set() and self._app.is_running:
                    self._app.call_later(_fail, error)
                return
            self._left.wait(READ_SECONDS)

    def _step(self) -> None:
        if self._read() or self._first:
            self._first = False
            if not self._app.is_running:
                self._left.set()
                return
            self._app.call_from_thread(self._draw)
        self._trouble = ""

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble and not self._left.is_set():
            self._trouble = trouble
            self._app.call_later(self._app.notify, trouble, title="can't read", severity="error")

    def _draw(self) -> None:
        if not self._left.is_set():
            self._show()

    def leave(self) -> None:
        """End soon; does not wait, since a read from a slow disk may take its time."""
        self._left.set()


def _fail(error: Exception) -> None:
    raise error


class LiveScreen(Screen[None]):
    """A screen over files.

    Subclasses implement `read` (no widgets there), `show` (no files there) and, for what changes with time alone,
    `tick`. A screen that is covered by another full screen reads on, so that it is up to date when it comes back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reader: Reader | None = None

    @property
    def dashboard(self) -> Dashboard:
        """The app: its clock, and whether it belongs to the command that started the run."""
        return cast("Dashboard", self.app)

    HOLDS_MEMBERS: ClassVar[bool] = False  # whether the screens above it belong to what it shows

    def read(self) -> bool:
        """In a thread: take in what is new; whether there was anything."""
        raise NotImplementedError

    def show(self) -> None:
        """In the app's thread: draw it."""
        raise NotImplementedError

    def tick(self) -> None:
        """Once a second in the app's thread: ages and durations."""

    def leave(self) -> None:
        """The user wants to leave the dashboard; a screen over live processes asks first what shall become of them."""
        self.app.exit("closed")

    def on_mount(self) -> None:
        """Start to read."""
        self._reader = Reader(self.app, self.read, self.show)
        self._reader.start()
        self.set_interval(1.0, self.tick)

    def on_unmount(self) -> None:
        """Stop."""
        if self._reader is not None:
            self._reader.leave()
