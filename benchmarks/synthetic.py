"""Runs and tournaments that look real and were never trained: fixtures, and load for the dashboard's benchmarks.

Everything follows from a seed and a fixed time, so that equal calls write equal files (locks apart). Column names are
those that the engine writes. By hand:

    python benchmarks/synthetic.py run runs/big --rows 1000000 --state dead
    python benchmarks/synthetic.py tournament runs/cup --members 64
    python benchmarks/synthetic.py replay runs/live --rows 5000 --rate 10
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np
from synthetic_run import NOW, STEPS_PER_ROW, Columns, write_processes, write_run
from synthetic_tournament import TournamentReplay, write_tournament

from erlcli.runs.jsonl import write_json
from erlcli.runs.lock import RunLock

__all__ = ["NOW", "RunReplay", "TournamentReplay", "write_run", "write_tournament"]


class RunReplay:
    """A running run that grows by one row a call, with heartbeat and status as the engine would write them.

    Args:
        path: of the run; must be empty or not there.
        rows: that can be played.
        start: rows that are there at first.
        seed: of the noise.
        now: time of the first look.
    """

    def __init__(self, path: Path, *, rows: int, start: int = 100, seed: int = 0, now: float = NOW) -> None:
        self.layout = write_run(path, rows=start, planned=rows, seed=seed, state="running", now=now)
        self.lock = RunLock.acquire(self.layout.lock)  # held, so that the run looks live
        self._data, self._rows = Columns(rows, seed), self.layout.metrics.open("a")
        self._next, self._planned = start, rows

    def step(self, now: float) -> bool:
        """Append a row; whether there was one left."""
        if self._next == self._planned:
            return False
        at, data, layout = np.array([self._next]), self._data, self.layout
        for text in data.lines(at, np.ones(1, np.int64), np.array([now])):
            self._rows.write(text)
        self._rows.flush()
        steps, seconds = int(data.steps[self._next]), float(data.seconds[self._next])
        self._next += 1
        write_processes(layout, steps, seconds, NOW, now, "running", 0, False)
        status = {"state": "running", "pid": os.getpid(), "attempt": 1, "time": now, "name": layout.root.name,
                  "env": "BipedalWalker-v3", "backend": "envpool", "algorithm": "ppo", "steps": steps,
                  "seconds": round(seconds, 1), "total_steps": self._planned * STEPS_PER_ROW, "target_return": 300.0,
                  "target_reached": False, "exit_code": None, "error": None}  # fmt: skip
        write_json(layout.status, status)
        return True

    def close(self) -> None:
        """Leave, so that the run looks dead."""
        self._rows.close()
        self.lock.release()


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Write synthetic runs and tournaments.")
    parser.add_argument("what", choices=("run", "tournament", "replay", "replay-tournament"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=12)
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--state", default="finished")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=10.0, help="updates a second")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long to replay")
    args = parser.parse_args()
    now = time.time()
    if args.what == "run":
        write_run(args.path, rows=args.rows, seed=args.seed, state=args.state, now=now, attempts=args.attempts,
                  workers=args.workers)  # fmt: skip
        return
    if args.what == "tournament":
        write_tournament(args.path, members=args.members, seed=args.seed, state=args.state, now=now)
        return
    replay: RunReplay | TournamentReplay
    if args.what == "replay":
        replay = RunReplay(args.path, rows=args.rows, seed=args.seed, now=now)
    else:
        replay = TournamentReplay(args.path, members=args.members, seed=args.seed, now=now)
    until = now + args.seconds
    while time.time() < until and replay.step(time.time()):
        time.sleep(1.0 / args.rate)
    replay.close()


if __name__ == "__main__":
    main()
