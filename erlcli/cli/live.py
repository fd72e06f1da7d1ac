"""What `erl train` prints while it trains where there is no dashboard: plain lines."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from erlcli.cli.output import count, seconds
from erlcli.runs.jsonl import Row
from erlcli.runs.text import interval, plural
from erlcli.runs.view import RunView

QUIET_EVENTS = ("checkpoint", "best", "interrupted", "failed")  # told by other lines already


class Watcher:
    """A run view with what is new since the last look.

    Args:
        view: of the run.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view
        self._told: set[tuple[int, int, str]] = set()  # evaluations
        self.started = time.monotonic()
        self.refresh()  # what an earlier attempt did is no news

    def refresh(self) -> tuple[list[Row], list[Row]]:
        """Read on; new events and new evaluations."""
        view = self.view
        seen = view.event_total
        view.refresh()
        evals = {_place(row): row for row in view.evals.rows}  # of a learner that was started anew, its own
        fresh = view.event_total - seen
        news = [row for place, row in evals.items() if place not in self._told]
        self._told.update(evals)
        return view.events[-fresh:] if fresh else [], news


def _place(row: Row) -> tuple[int, int, str]:
    return int(row.get("attempt", 0)), int(row.get("steps", -1)), str(row.get("kind"))


class PlainView:
    """A line every few seconds, and one for every evaluation and event.

    Args:
        watcher: of the run.
        quiet: print nothing at all.
    """

    SECONDS_BETWEEN_LINES = 5.0

    def __init__(self, watcher: Watcher, quiet: bool) -> None:
        self.watcher = watcher
        self.quiet = quiet
        self._read = 0.0
        self._line_due = 0.0
        self._printed_steps = watcher.view.last.get("steps", -1)

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tick(last=True)

    def tick(self, *, last: bool = False) -> None:
        """Print what is new."""
        now = time.monotonic()
        if self.quiet or (now - self._read < 0.5 and not last):
            return
        self._read = now
        try:
            self._print(now, last)
        except BrokenPipeError:  # whoever read our lines has left; training goes on
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, now: float, last: bool) -> None:
        events, evals = self.watcher.refresh()
        for row in evals:
            print(eval_line(row), flush=True)
        for event in events:
            if event["event"] not in QUIET_EVENTS:
                print(f"{event['process']}: {event['message']}", flush=True)
        row = self.watcher.view.last
        if row and row["steps"] != self._printed_steps and (now >= self._line_due or last):
            self._line_due = now + self.SECONDS_BETWEEN_LINES
            self._printed_steps = row["steps"]
            print(train_line(row), flush=True)


def eval_line(row: Row) -> str:
    """An evaluation in one line."""
    mean = row["return_mean"]
    return (
        f"eval   {count(row['steps']):>8} steps  return {mean:8.2f}  95% CI {interval(row['return_ci'], mean)}"
        f"  {plural(row['episodes'], 'episode')}"
    )


def train_line(row: Row) -> str:
    """A metric row in one line."""
    returns = row.get("episode/return")
    text = f"{returns:8.2f}" if returns is not None else "       -"
    rate = row["time/steps_per_second"]
    return f"train  {count(row['steps']):>8} steps  return {text}  {rate:,.0f} steps/s  {seconds(row['time/seconds'])}"
