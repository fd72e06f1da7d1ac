"""What a process of a run writes: metric rows, events, heartbeats."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from erlcli.runs.jsonl import Appender, Row, write_json
from erlcli.runs.layout import RunLayout

Level = Literal["info", "warning", "error"]


class EventLog:
    """Events of one process.

    Args:
        layout: the run.
        process: name of the process, e.g. `learner`.
        attempt: 1 for the first start of the run, one more for each resume or restart.
    """

    def __init__(self, layout: RunLayout, process: str, attempt: int) -> None:
        self._rows = Appender(layout.events(process))
        self._process = process
        self._attempt = attempt

    def write(self, event: str, message: str, *, level: Level = "info", **facts: Any) -> None:  # noqa: ANN401
        """Append an event; `facts` are JSON-able."""
        self._rows.append(
            {
                "time": time.time(),
                "process": self._process,
                "attempt": self._attempt,
                "level": level,
                "event": event,
                "message": message,
                **facts,
            }
        )

    def close(self) -> None:
        """Release the file; for processes that outlive a run."""
        self._rows.close()


class Heartbeat:
    """Tells once a second, from a thread, that a process lives and when it last got something done.

    A thread alone would beat on while the main thread hangs in an env; so the main thread says what it is about to do
    (`phase`) and counts what it did (`progress`), and the file says how long ago that was.

    Args:
        layout: the run.
        process: name of the process.
        facts: called at each beat for more fields, from the beating thread.
    """

    def __init__(self, layout: RunLayout, process: str, facts: Callable[[], Row] | None = None) -> None:
        self._path = layout.process(process)
        self.facts = facts
        self._phase = "starting"
        self._moved = time.monotonic()
        self._started = time.time()
        self._measured = (time.monotonic(), time.process_time())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._beat()
        self._thread.start()

    def progress(self, phase: str) -> None:
        """Something was done; `phase` comes next. Cheap enough for every env step."""
        self._phase = phase
        self._moved = time.monotonic()

    @property
    def phase(self) -> str:
        """What the process is at."""
        return self._phase

    def close(self, phase: str = "left") -> None:
        """A last beat, then silence."""
        self.progress(phase)
        self._stop.set()
        self._thread.join()
        self._beat()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self._beat()

    def _beat(self) -> None:
        row: Row = {
            "pid": os.getpid(),
            "time": time.time(),
            "started": self._started,
            "phase": self._phase,
            "idle_seconds": round(time.monotonic() - self._moved, 3),
            "rss_bytes": rss_bytes(),
            "cpu_percent": self._cpu_percent(),
        }
        if self.facts is not None:
            row |= self.facts()
        try:
            write_json(self._path, row)
        except OSError as error:
            print(f"heartbeat: {error}", file=sys.stderr)  # lands in errors/<process>.log; training goes on

    def _cpu_percent(self) -> float:
        """CPU time of all threads of this process since the last beat, in percent of one core; 0 at the first."""
        (wall, cpu), now = self._measured, (time.monotonic(), time.process_time())
        self._measured = now
        return round(100.0 * (now[1] - cpu) / max(now[0] - wall, 1e-3), 1)


def rss_bytes() -> int:
    """Resident memory of this process; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
