"""What the run screen shows, worked out of a run's files in the reader's thread.

There it delays no key, and what came of it stays as it is while the thread reads on.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from erlcli.runs.curve import is_number
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned
from erlcli.runs.text import quoted, task
from erlcli.runs.view import LIVE, RunView
from erlcli.tui.curves import Columns, number
from erlcli.tui.output import Output, entries
from erlcli.tui.widgets.best import BestFacts
from erlcli.tui.widgets.events import Entry
from erlcli.tui.widgets.gpu import GpuRow
from erlcli.tui.widgets.header import HeaderFacts
from erlcli.tui.widgets.processes import ProcessRow
from erlcli.tui.widgets.throughput import SHARES, ThroughputFacts

RECENT = 120  # rows whose rates make the line of bars
MOST_AHEAD = 5.0  # seconds that a clock may run on after the last word of a run


@dataclass(frozen=True)
class Facts:
    """A run at one moment.

    Attributes:
        taken: when, in seconds since the epoch.
        state: in a word.
        live: whether its processes are at work.
        governed: whether a tournament that is at work decides about it.
        header: for the pane of that name, as are the next ones.
        throughput: rates and shares.
        best: the best evaluation.
        gpus: cards.
        processes: what beats.
        entries: events and output.
        target: the return that ends training.
        best_row: the row of the best evaluation.
        names: of all metrics.
        settable: what can be set while it trains, by its key in the recipe, with its present value.
    """

    taken: float
    state: str
    live: bool
    governed: bool
    header: HeaderFacts
    throughput: ThroughputFacts
    best: BestFacts
    gpus: list[GpuRow]
    processes: list[ProcessRow]
    entries: list[Entry]
    target: float | None
    best_row: Row | None
    names: list[str]
    settable: list[tuple[str, float]]

    def header_at(self, now: float, asked: str) -> HeaderFacts:
        """The header a little later; `asked` is what nobody has answered yet."""
        elapsed = self.header.elapsed
        if elapsed is not None and self.state == "running":
            elapsed += min(max(0.0, now - self.taken), MOST_AHEAD)
        return replace(self.header, elapsed=elapsed, asked=asked)

    def processes_at(self, now: float) -> list[ProcessRow]:
        """The processes a little later: older, if nothing was heard of them."""
        later = max(0.0, now - self.taken)
        return [row if row.age is None else replace(row, age=row.age + later) for row in self.processes]


def facts_of(view: RunView, metrics: Columns, output: Output, now: float) -> Facts:
    """Everything about a run now."""
    return Facts(
        taken=now,
        state=view.state,
        live=view.is_live,
        governed=is_governed(view.layout),
        header=header(view, now),
        throughput=throughput(view, metrics),
        best=best(view),
        gpus=gpus(view),
        processes=processes(view, now),
        entries=entries(view, output),
        target=view.target,
        best_row=view.best,
        names=[name for name in view.series if not name.startswith("eval/")],
        settable=settable(view),
    )


def is_governed(layout: RunLayout) -> bool:
    """Whether a run is a member of a tournament that is at work, and takes orders from nobody else."""
    tournament = layout.tournament
    return tournament is not None and is_owned(tournament.lock)


def header(view: RunView, now: float) -> HeaderFacts:
    """What the top of the screen tells."""
    status = view.status
    elapsed, told = view.clock
    if view.state == "running":
        elapsed += min(max(0.0, now - told), MOST_AHEAD)  # it is told once a second
    started = next((row for row in reversed(view.events) if row.get("event") == "started"), {})
    best = view.best
    return HeaderFacts(
        name=str(status.get("name") or view.layout.root.name),
        state=view.state,
        task=task(view.env),
        algorithm=view.algorithm,
        setup=_setup(str(started.get("message", "")), task(view.env)),
        steps=view.steps,
        total=view.total_steps or 0,
        elapsed=elapsed if view.metrics.rows else None,
        left=view.eta_seconds if view.state == "running" else None,
        best=best["return_mean"] if best else None,
        target=view.target,
    )


def _setup(message: str, env: str) -> str:
    """How the learner said that it runs, without the task, which is told already."""
    return message.replace(f" x {env} ", " envs ", 1) if env else message


def throughput(view: RunView, metrics: Columns) -> ThroughputFacts:
    """Rates, and where the time of the newest rows went."""
    rates = metrics.column("time/steps_per_second")
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return ThroughputFacts()
    recent = [metrics.column(f"time/share_{name}")[-20:] for name in SHARES]
    shares = tuple(float(np.nanmean(part)) if np.isfinite(part).any() else 0.0 for part in recent)
    now = float(rates[-1])
    return ThroughputFacts(
        now=now if view.state == "running" else None,
        mean=view.mean_rate or now,
        recent=tuple(rates[-RECENT:].tolist()),
        shares=shares,
        limit=float(rates[-20:].mean()) / shares[0] if shares[0] > 0 else None,
    )


def processes(view: RunView, now: float) -> list[ProcessRow]:
    """All that beat, the learners first; ages only while they are to beat."""
    ages = view.heartbeat_ages(now) if view.is_live else {}
    restarts = view.restarts
    rows = []
    for name in sorted(
        ages or view.heartbeat_ages(now),
        key=lambda name: (not name.startswith("learner"), name != "evaluator", name),
    ):
        row = view.processes[name]
        phase, cpu = str(row.get("phase", "")), row.get("cpu_percent")
        rows.append(
            ProcessRow(
                name=name,
                phase=phase,
                age=None if phase in ("left", "stopped") else ages.get(name),
                restarts=restarts[name],
                cpu_percent=cpu if is_number(cpu) else None,
                rss_bytes=int(row.get("rss_bytes") or 0),
            )
        )
    return rows


def gpus(view: RunView) -> list[GpuRow]:
    """What the last look at the GPUs found."""
    return [
        GpuRow(
            str(gpu.get("name", "GPU")),
            float(gpu.get("utilization") or 0.0),
            float(gpu.get("memory_used_bytes") or 0.0),
            float(gpu.get("memory_total_bytes") or 0.0),
            gpu.get("temperature"),
        )
        for gpu in view.gpus
    ]


def near(path: Path) -> str:
    """`path` as seen from here, where that is shorter."""
    inside = os.path.relpath(path)
    return inside if len(inside) < len(str(path)) else str(path)


def best(view: RunView) -> BestFacts:
    """The best evaluation and what to do with it."""
    row = view.best
    root = quoted(near(view.layout.root))
    commands = []
    if view.state not in (*LIVE, "finished"):
        commands.append(f"erl resume {root}")
    if row is None:
        return BestFacts(commands=tuple(commands))
    commands += [f"erl eval {root}", f"erl export {root}"]
    link = view.layout.checkpoints / "best"
    with contextlib.suppress(OSError):  # no link yet, or a copy that has a folder there
        link = link.parent / os.readlink(link)
    ci = row.get("return_ci")
    return BestFacts(
        mean=row["return_mean"],
        interval=(number(ci[0]), number(ci[1])) if isinstance(ci, list) and len(ci) == 2 else None,
        episodes=int(row.get("episodes") or 0),
        length=row.get("length_mean"),
        steps=int(row["steps"]),
        target=view.target,
        checkpoint=near(link),
        commands=tuple(commands),
    )


def settable(view: RunView) -> list[tuple[str, float]]:
    """What follows a schedule can be set; what was set since the newest row has its new value."""
    values = {
        f"algorithm.{name.removeprefix('schedule/')}": float(value)
        for name, value in view.last.items()
        if name.startswith("schedule/") and is_number(value)
    }
    steps = view.last.get("steps", 0)
    for row in view.events:
        key, new = str(row.get("key")), row.get("new")
        if row.get("event") == "request" and key in values and is_number(new) and row.get("steps", 0) >= steps:
            values[key] = float(new)
    return list(values.items())
