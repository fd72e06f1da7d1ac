"""The dashboard's process: `python -m erlcli.tui PATH [--owns] [--lifeline FD]`, as the commands start it."""

from __future__ import annotations

import argparse
import select
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from erlcli.tui.app import Dashboard


def main(arguments: list[str]) -> int:
    """Show the dashboard until it ends; 0, or 1 where it failed."""
    parser = argparse.ArgumentParser(prog="erlcli.tui")
    parser.add_argument("path", type=Path, help="a run, a tournament or a folder of runs")
    parser.add_argument("--owns", action="store_true", help="leave once the run has ended")
    parser.add_argument("--lifeline", type=int, help="pipe whose end says that the parent is gone")
    options = parser.parse_args(arguments)
    app = Dashboard(options.path, owns=options.owns)

    def leave(number: int, frame: FrameType | None) -> None:
        app.exit()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked; keys come as bytes, not as signals
    if options.lifeline is not None:
        threading.Thread(target=_watch, args=(options.lifeline, app), name="lifeline", daemon=True).start()
    app.run()
    return app.return_code or 0


def _watch(lifeline: int, app: Dashboard) -> None:
    """Leave once the parent, or the terminal, is gone: one that is not this session's own hangs up without a signal."""
    gone = select.poll()
    gone.register(lifeline, 0)  # nobody writes there
    gone.register(sys.stdin.fileno(), 0)
    for fd, event in gone.poll():
        if event & select.POLLNVAL and fd != lifeline:  # macOS can't poll terminals
            gone.unregister(fd)
            gone.poll()
    if app.is_running:
        app.call_from_thread(app.exit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
