"""What `erl train` shows while it trains: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import itertools
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from erlcli.cli.output import count, seconds
from erlcli.runs.jsonl import Row
from erlcli.runs.view import RunView

if TYPE_CHECKING:
    from rich.console import RenderableType

QUIET_EVENTS = ("checkpoint", "best", "interrupted")  # told by other lines already
BARS = "▁▂▃▄▅▆▇█"


class Watcher:
    """A run view with what is new since the last look.

    Args:
        view: of the run.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.started = time.monotonic()
        self.refresh()  # what an earlier attempt did is no news

    def refresh(self) -> tuple[list[Row], list[Row]]:
        """Read on; new events and new evaluations."""
        view = self.view
        seen, last = len(view.events), (view.evals.rows or [{}])[-1]
        view.refresh()
        position = next((i for i, row in enumerate(view.evals.rows) if row is last), -1)
        return view.events[seen:], view.evals.rows[position + 1 :]


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
    low, high = row["return_ci"]
    return (
        f"eval   {count(row['steps']):>8} steps  return {row['return_mean']:8.2f}  95% CI [{low:.1f}, {high:.1f}]"
        f"  {row['episodes']} episodes"
    )


def train_line(row: Row) -> str:
    """A metric row in one line."""
    returns = row.get("episode/return")
    text = f"{returns:8.2f}" if returns is not None else "       -"
    rate = row["time/steps_per_second"]
    return f"train  {count(row['steps']):>8} steps  return {text}  {rate:,.0f} steps/s  {seconds(row['time/seconds'])}"


class LiveView:
    """A screenful that redraws itself on a terminal.

    Args:
        watcher: of the run.
    """

    def __init__(self, watcher: Watcher) -> None:
        from rich.console import Console
        from rich.live import Live

        self.watcher = watcher
        self._events: list[Row] = []
        self._drawn = 0.0
        self._live = Live(console=Console(), auto_refresh=False, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tick(last=True)
        self._live.__exit__(kind, error, trace)

    def tick(self, *, last: bool = False) -> None:
        """Redraw, four times a second."""
        now = time.monotonic()
        if now - self._drawn < 0.25 and not last:
            return
        self._drawn = now
        events, _ = self.watcher.refresh()
        self._events = (self._events + events)[-3:]
        self._live.update(self._screen(), refresh=True)

    def _screen(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view = self.watcher.view
        status, row, best = view.status, view.last, view.best
        steps, total = row.get("steps", 0), status.get("total_steps", 1) or 1
        rate = row.get("time/steps_per_second", 0.0)
        final = view.status.get("exit_code") is not None
        left = "" if final or not rate else f", at most {seconds(max(total - steps, 0) / rate)} left"
        head = Table.grid(expand=True)
        head.add_column()
        head.add_column(justify="right")
        state = str(status.get("state", "starting"))
        head.add_row(
            Text.assemble((f"{status.get('env', '')} ", "bold"), f"{status.get('algorithm', '')} {state}"),
            seconds(row.get("time/seconds", time.monotonic() - self.watcher.started)) + left,
        )
        head.add_row(f"{count(steps)} of {count(total)} steps", f"{rate:,.0f} steps/s")
        width = max(20, self._live.console.width - 18)
        _, returns = view.metrics.column("episode/return")
        _, scores = view.evals.column("return_mean")
        curves = Table.grid(padding=(0, 1))
        curves.add_row("train", Text(sparkline(returns, width - 12), "cyan"), _latest(returns))
        curves.add_row("eval", Text(sparkline(scores, width - 12), "green"), _latest(scores))
        target = status.get("target_return")
        goal = f"  target {target:g}" if target is not None else ""
        top = f"best {best['return_mean']:.1f} at {count(best['steps'])} steps" if best else "no evaluation yet"
        numbers = "  ".join(
            f"{_short(name)}\N{NO-BREAK SPACE}{value:.3g}"
            for name, value in row.items()
            if name.startswith(("loss/", "policy/", "value/")) and isinstance(value, (int, float))
        )
        events = [Text(f"{e['process']}: {e['message']}", overflow="ellipsis", no_wrap=True) for e in self._events]
        return Panel(
            Group(
                head,
                Padding(ProgressBar(total=total, completed=min(steps, total))),  # the bar alone ends no line
                curves,
                Text(top + goal),
                Text(numbers, style="dim"),
                *events,
            ),
            title=str(status.get("name", "erl")),
            subtitle=None if final else "Ctrl+C: checkpoint and leave",
        )


def _short(name: str) -> str:
    """A metric's name without its group, except for losses, which are named like what they fit."""
    group, _, rest = name.partition("/")
    return f"{rest}_loss" if group == "loss" and rest != "grad_norm" else rest


def _latest(values: list[float]) -> str:
    return f"{values[-1]:.1f}" if values else "-"


def sparkline(values: list[float], width: int) -> str:
    """Values as a line of bars, averaged down to at most `width` of them."""
    if not values:
        return ""
    buckets = min(width, len(values))
    bounds = [len(values) * i // buckets for i in range(buckets + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[round((m - low) / span * (len(BARS) - 1))] for m in means)
