"""A run as its readers see it: what all its files say."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erlcli.runs.curve import Curve, is_number
from erlcli.runs.jsonl import JsonFile, Row, Tail
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned

__all__ = ["LIVE", "Curve", "RunView"]

LIVE = ("starting", "running", "paused", "stopping", "evaluating")
MAX_EVENTS = 5_000  # kept of a run
ALL_ROWS = 25_000  # of metrics; no run has more whose recipe leaves log.every to us
FOLLOWED_ROWS = 4_096  # of metrics, for readers that stay for hours
RATE_ROWS = 20  # that the time left is estimated from
NO_SERIES = {"attempt", "steps", "version"}


@dataclass
class RunView:
    """Everything about a run, kept up to date by `refresh`.

    Args:
        layout: the run.
        max_rows: bound of the metric rows, beyond which older ones are thinned evenly, and with it of the events.

    Attributes:
        status: what the supervisor said last.
        processes: heartbeats by process, and figures of the GPUs as `gpu`.
        events: of all processes, the newest `MAX_EVENTS`.
        event_total: events so far, those that were dropped included.
        owned: whether a live process held the lock at the last look.
        metrics: training rows.
        evals: evaluations, never thinned: there are few, and the best has to be among them.
    """

    layout: RunLayout
    max_rows: int = ALL_ROWS
    status: Row = field(default_factory=dict)
    processes: dict[str, Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    event_total: int = 0
    owned: bool = False

    def __post_init__(self) -> None:
        self.metrics = Curve(self.layout.metrics, self.max_rows)
        self.evals = Curve(self.layout.evals)
        self._event_tails: dict[str, Tail] = {}
        self._restarts: dict[str, Counter[str]] = {}  # by who told of them
        self._status = JsonFile(self.layout.status)
        self._beats: dict[str, JsonFile] = {}

    def refresh(self) -> bool:
        """Read what has changed; whether anything has."""
        changed = self._status.refresh()
        self.status = self._status.row
        changed |= self.metrics.refresh()
        changed |= self.evals.refresh()
        changed |= self._refresh_processes()
        changed |= self._refresh_events()
        owned, self.owned = self.owned, is_owned(self.layout.lock)
        return changed or owned != self.owned

    def _refresh_processes(self) -> bool:
        changed = False
        for name in _names(self.layout.root / "processes", ".json"):
            file = self._beats.setdefault(name, JsonFile(self.layout.process(name)))
            if file.refresh():
                self.processes[name] = file.row
                changed = True
        return changed

    def _refresh_events(self) -> bool:
        new: list[Row] = []
        replaced = False
        for name in _names(self.layout.root / "events", ".jsonl"):
            tail = self._event_tails.setdefault(name, Tail(self.layout.events(name)))
            restarts = tail.restarts
            rows = tail.read()
            if tail.restarts != restarts:
                replaced = True
                self.events = [row for row in self.events if row.get("process") != name]
                self._restarts.pop(name, None)
            self._restarts.setdefault(name, Counter()).update(_restarted(rows))
            self.event_total += len(rows)
            new += rows[-MAX_EVENTS:]
        self.events += sorted(new, key=lambda row: _number(row, "time") or 0.0)
        del self.events[:-MAX_EVENTS]
        return bool(new) or replaced

    @property
    def state(self) -> str:
        """What the supervisor said last, from `starting` to `finished`; `dead` where it was killed before it could."""
        return state_of(self.status, self.owned)

    @property
    def is_live(self) -> bool:
        """Whether its processes were at work at the last look."""
        return self.state in LIVE

    @property
    def last(self) -> Row:
        """The newest metric row."""
        return self.metrics.rows[-1] if self.metrics.rows else {}

    @property
    def best(self) -> Row | None:
        """The best full evaluation."""
        return best_of(self.evals.rows)

    @property
    def env(self) -> str:
        """Id of the environment; empty until the supervisor has started."""
        return str(self.status.get("env") or "")

    @property
    def algorithm(self) -> str:
        """Its name; empty until the supervisor has started."""
        return str(self.status.get("algorithm") or "")

    @property
    def device(self) -> str:
        """Where the learner computes; empty until it says so."""
        return str(self.processes.get("learner", {}).get("device") or "")

    @property
    def phase(self) -> str:
        """What the learner is at; empty until it says so."""
        return str(self.processes.get("learner", {}).get("phase") or "")

    @property
    def steps(self) -> int:
        """Env transitions, as far as anyone has said."""
        return max(int(self.last.get("steps", 0)), int(_number(self.status, "steps") or 0))

    @property
    def total_steps(self) -> int | None:
        """The budget."""
        total = _number(self.status, "total_steps")
        return None if total is None else int(total)

    @property
    def target(self) -> float | None:
        """Mean return at which the run ends."""
        return _number(self.status, "target_return")

    @property
    def elapsed(self) -> float:
        """Seconds of training, over all attempts."""
        return self.clock[0]

    @property
    def clock(self) -> tuple[float, float]:
        """The most seconds of training that anyone has told of, and when that was last told, since the epoch."""
        sources = ((self.last, "time/seconds", "time/wall"), (self.status, "seconds", "time"),
                   (self.processes.get("learner", {}), "seconds", "time"))  # fmt: skip
        told = [(_number(row, seconds) or 0.0, _number(row, time) or 0.0) for row, seconds, time in sources]
        return max(told, key=lambda pair: (round(pair[0], 1), pair[1]))  # heartbeats have tenths

    @property
    def rate(self) -> float | None:
        """Steps a second, as the newest row has it."""
        return _number(self.last, "time/steps_per_second")

    @property
    def mean_rate(self) -> float | None:
        """Steps a second of training, over all attempts."""
        seconds = _number(self.last, "time/seconds")
        return self.last["steps"] / seconds if seconds else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the budget is used at the pace of the last rows; the target may end the run before that."""
        if self.total_steps is None or not self.is_live:
            return None
        rates = [rate for row in self.metrics.rows[-RATE_ROWS:] if (rate := _number(row, "time/steps_per_second"))]
        if not rates:
            return None
        pace = len(rates) / sum(1.0 / rate for rate in rates)  # rows have about the same number of steps each
        return max(self.total_steps - self.steps, 0) / pace

    @property
    def restarts(self) -> Counter[str]:
        """How often a process was started anew after a crash, by process."""
        return sum(self._restarts.values(), Counter())

    @property
    def gpus(self) -> list[Row]:
        """Figures of the GPUs that the run uses."""
        rows = self.processes.get("gpu", {}).get("gpus")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    @property
    def series(self) -> list[str]:
        """Every numeric column by name, those of evaluations as `eval/...`."""
        names = [(name, name) for name in self.metrics.names] + [("eval/" + name, name) for name in self.evals.names]
        return sorted(name for name, plain in names if plain not in NO_SERIES)

    def heartbeat_ages(self, now: float) -> dict[str, float]:
        """Seconds since each process was last heard of.

        Args:
            now: seconds since the epoch.
        """
        beats = {name: _number(row, "time") for name, row in self.processes.items() if name != "gpu"}
        return {name: max(now - beat, 0.0) for name, beat in beats.items() if beat is not None}

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object."""
        best = self.best
        return {
            "run": str(self.layout.root),
            "state": self.state,
            "exit_code": self.status.get("exit_code"),
            "steps": self.steps,
            "total_steps": self.total_steps,
            "target_return": self.target,
            "target_reached": self.status.get("target_reached", False),
            "seconds": self.elapsed,
            "best_return": best["return_mean"] if best else None,
            "best_steps": best["steps"] if best else None,
            "age_seconds": round(max(time.time() - self._heard(), 0.0), 1),  # clocks of two machines differ
        }

    def _heard(self) -> float:
        """When it was last heard of, in seconds since the epoch: at the latest when it was made."""
        heard = _number(self.status, "time")
        if heard is not None:
            return heard
        try:
            return self.layout.recipe.stat().st_mtime
        except OSError:
            return time.time()


def state_of(status: Row, owned: bool) -> str:
    """The state in a status file; `dead` where it names a live one and nobody owns the run."""
    state = str(status.get("state", "starting"))
    return "dead" if state in LIVE and not owned else state


def best_of(evals: list[Row]) -> Row | None:
    """The best full evaluation; NaN is text in a row, and not good."""
    full = [row for row in evals if row.get("kind") == "full" and is_number(row.get("return_mean"))]
    return max(full, key=lambda row: float(row["return_mean"]), default=None)


def _names(folder: Path, suffix: str) -> list[str]:
    """Names of the files in `folder` that end so, without that, in order."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith("."))


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if is_number(value) else None


def _restarted(events: list[Row]) -> list[str]:
    """The process that each restart among `events` was about."""
    names: list[str] = []
    for row in events:
        role, _, what = str(row.get("event", "")).rpartition("_")
        if what == "restart" and role in ("learner", "evaluator"):
            names.append(str(row.get(role, role)))  # the one of several learners that failed
        elif what == "restart" and role == "worker":
            names.append(f"worker-{row.get('worker', 0)}")
    return names
