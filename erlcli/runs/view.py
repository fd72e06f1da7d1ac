"""A run as its readers see it: what all files say, with superseded rows taken out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erlcli.runs.jsonl import Row, Tail, read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned


class Curve:
    """Rows of a file ordered by steps, in which a newer attempt replaces what an older one wrote beyond its start."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._restarts = 0
        self.rows: list[Row] = []

    def refresh(self) -> bool:
        """Take in what is new; whether there was anything."""
        new = self._tail.read()
        replaced = self._tail.restarts != self._restarts
        if replaced:  # another file, e.g. a copy that was brought up to date: all of its rows came again
            self._restarts = self._tail.restarts
            self.rows.clear()
        for row in new:
            self._add(row)
        return bool(new) or replaced

    def _add(self, row: Row) -> None:
        steps = row.get("steps")
        if not isinstance(steps, int):
            return
        rows = self.rows
        if rows and row.get("attempt", 0) > rows[-1].get("attempt", 0):
            while rows and rows[-1]["steps"] >= steps:
                rows.pop()
        rows.append(row)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of the rows that have a number under `name`."""
        pairs = [
            (row["steps"], float(row[name]))
            for row in self.rows
            if isinstance(row.get(name), (int, float)) and not isinstance(row[name], bool)
        ]
        return [steps for steps, _ in pairs], [value for _, value in pairs]


@dataclass
class RunView:
    """Everything about a run, kept up to date by `refresh`."""

    layout: RunLayout
    status: Row = field(default_factory=dict)
    processes: dict[str, Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = Curve(self.layout.metrics)
        self.evals = Curve(self.layout.evals)
        self._event_tails: dict[str, Tail] = {}

    def refresh(self) -> None:
        """Read what has changed."""
        self.status = read_json(self.layout.status) or self.status
        self.metrics.refresh()
        self.evals.refresh()
        for path in sorted((self.layout.root / "processes").glob("*.json")):
            self.processes[path.stem] = read_json(path) or {}
        new: list[Row] = []
        for path in sorted((self.layout.root / "events").glob("*.jsonl")):
            tail = self._event_tails.setdefault(path.stem, Tail(path))
            restarts = tail.restarts
            new += tail.read()
            if tail.restarts != restarts:
                self.events = [row for row in self.events if row.get("process") != path.stem]
        self.events += sorted(new, key=lambda row: row.get("time", 0.0))

    @property
    def state(self) -> str:
        """What the supervisor said last, from `starting` to `finished`; `dead` where it was killed before it could."""
        state = str(self.status.get("state", "starting"))
        if state in ("starting", "running", "stopping", "evaluating") and not is_owned(self.layout.lock):
            return "dead"
        return state

    @property
    def last(self) -> Row:
        """The newest metric row."""
        return self.metrics.rows[-1] if self.metrics.rows else {}

    @property
    def best(self) -> Row | None:
        """The best full evaluation."""
        full = [row for row in self.evals.rows if row.get("kind") == "full"]
        scored = [row for row in full if isinstance(row.get("return_mean"), (int, float))]  # NaN is text in a row
        return max(scored, key=lambda row: float(row["return_mean"]), default=None)

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object."""
        best = self.best
        return {
            "run": str(self.layout.root),
            "state": self.state,
            "exit_code": self.status.get("exit_code"),
            "steps": max(int(self.last.get("steps", 0)), int(self.status.get("steps", 0))),
            "total_steps": self.status.get("total_steps"),
            "target_return": self.status.get("target_return"),
            "target_reached": self.status.get("target_reached", False),
            "seconds": self.status.get("seconds"),
            "best_return": best["return_mean"] if best else None,
            "best_steps": best["steps"] if best else None,
            "age_seconds": round(time.time() - float(self.status.get("time", time.time())), 1),
        }
