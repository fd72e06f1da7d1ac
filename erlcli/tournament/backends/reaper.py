"""Ends what is left of a Ray cluster of our own when its driver was killed.

Ray's daemons leave with their driver, but some of their helpers wait a minute for daemons that are gone. Run as
`python -m erlcli.tournament.backends.reaper DRIVER_PID LIFELINE_FD`; whoever stops the cluster ends this process first.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

import psutil

MODULE = "erlcli.tournament.backends.reaper"
LOOK_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    """Remember the driver's descendants for as long as it lives, then end them."""
    driver, lifeline = int(arguments[0]), int(arguments[1])
    known: dict[int, psutil.Process] = {}
    while not select.select([lifeline], [], [], LOOK_SECONDS)[0]:
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(driver).children(recursive=True)
            known = {process.pid: process for process in found if process.pid != os.getpid()}
    for process in known.values():
        with contextlib.suppress(psutil.Error):  # psutil looks whether the number went to another process
            process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
