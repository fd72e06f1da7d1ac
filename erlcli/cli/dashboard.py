"""The dashboard as a process of its own, behind a parent that gives the terminal back as it was.

However the dashboard ends (a kill -9 included), the terminal is sane afterwards, and training, which runs in a session
of its own, doesn't notice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

# Leaves what a dashboard may have switched on: alternate screen, mouse, focus and paste reports, synchronised output,
# key protocol, hidden cursor, colours.
RESTORE = (
    "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2026l"
    "\x1b[<u\x1b[?25h\x1b[0m"
)
RESTORE_KNOWING_LITTLE = "\x1b[?1000l\x1b[?25h\x1b[0m"  # the Linux console prints what it doesn't know


def is_possible() -> bool:
    """Whether this process has a terminal that a dashboard can be drawn on."""
    return os.environ.get("TERM", "dumb") != "dumb" and all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr))


def show(path: Path, *, owns: bool, on_signal: Callable[[int], None] = lambda number: None) -> int:
    """Show the dashboard until it ends.

    Args:
        path: a run, a tournament or a folder of runs.
        owns: whether it belongs to a command that started the run.
        on_signal: called with SIGINT or SIGTERM, if this process gets one; SIGTERM closes the dashboard, too.

    Returns:
        Its exit code; negative where it was killed by a signal.
    """
    before = termios.tcgetattr(sys.stdin.fileno())
    reading, writing = os.pipe()  # the dashboard leaves when this process is gone
    command = [sys.executable, "-m", "erlcli.tui", str(path), "--lifeline", str(reading)]
    process = subprocess.Popen(command + ["--owns"] * owns, pass_fds=(reading,))
    os.close(reading)
    try:
        with _signals(process, on_signal):
            return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(writing)
        _restore(before)


@contextlib.contextmanager
def _signals(process: subprocess.Popen[bytes], on_signal: Callable[[int], None]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            on_signal(number)
        if number != signal.SIGINT:
            process.terminate()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _restore(before: list[object]) -> None:
    """Give the terminal back; one that is gone needs nothing."""
    with contextlib.suppress(OSError, termios.error):
        sys.stderr.write(RESTORE_KNOWING_LITTLE if os.environ.get("TERM") == "linux" else RESTORE)
        sys.stderr.flush()
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # reports of the mouse that nobody reads any more
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)  # type: ignore[arg-type]
