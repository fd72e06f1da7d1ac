"""How cost grows: with environments, workers, width, replay, the length of a run, the members of a tournament.

    python benchmarks/scaling.py                   everything, some ten minutes on two cores
    python benchmarks/scaling.py --only replay     a part; the others stay as they are
    python benchmarks/scaling.py --redraw          the page anew, e.g. after a note was written into scaling.json
    python benchmarks/scaling.py --quick           whether it all works: tiny settings, nothing is written

Figures go to `scaling.json`, and from there to `scaling.md` and `scaling.svg`. A part has a budget of time: where the
machine is too slow for it, its last points are left out.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
import scaling_page
import torch

from erlcli.core.prioritized import Priorities
from erlcli.core.replay import Replay
from erlcli.core.types import Box, FinalObs, Rollout
from erlcli.engine import build, compute
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.collector import Collector
from erlcli.envs.config import EnvConfig
from erlcli.envs.vecenv import make_vec_env
from erlcli.recipe.load import load
from erlcli.runs.jsonl import Appender, read_json, write_json
from erlcli.runs.view import RunView

DATA = Path(__file__).with_name("scaling.json")
LENGTH = 32  # T of the rollouts here
Point = dict[str, float]


@dataclass(frozen=True)
class Part:
    """One thing that grows.

    Attributes:
        title: of the table and the panel.
        across: what grows.
        unit: of the figures in the picture.
        values: how far.
        measure: one point: the names of figures to their values.
        shown: figures that the picture has; all are in the table.
        budget_seconds: after which no further point is begun.
    """

    title: str
    across: str
    unit: str
    values: Sequence[int]
    measure: Callable[[int, report.Settings], Point]
    shown: Sequence[str]
    budget_seconds: float = 90.0


def ppo_speed(num_envs: int, width: int, seconds: float) -> Point:
    """Steps/s of collecting, and of collecting and learning by PPO: 4 epochs of 4 minibatches."""
    sets = [f"env.num_envs={num_envs}", f"network.hidden=[{width}, {width}]", f"algorithm.rollout_length={LENGTH}",
            f"algorithm.batch_size={num_envs * LENGTH // 4}", "algorithm.epochs=4"]  # fmt: skip
    recipe = load("cartpole_ppo", sets)
    compute.configure_cpu(recipe)
    env = make_vec_env(EnvConfig("torch/CartPole-v1", num_envs=num_envs))
    algorithm = build.algorithm(recipe, env.spec, torch.device("cpu"))
    layout = rollout_layout(env.spec, algorithm.policy, LENGTH, num_envs)
    buffers = Buffers({name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in layout.items()})
    collector = Collector(env, algorithm.policy, LENGTH, 0, lambda _: None)
    collector.restart(0)
    collecting = learning = 0.0
    rollouts = -1  # the first one allocates
    while rollouts < 1 or collecting + learning < seconds:
        began = time.perf_counter()
        collector.collect(buffers)
        collected = time.perf_counter()
        algorithm.update(buffers.rollout(rollouts + 1), 0.0)
        if rollouts >= 0:
            collecting, learning = collecting + collected - began, learning + time.perf_counter() - collected
        rollouts += 1
    env.close()
    steps = rollouts * num_envs * LENGTH
    return {"collecting, steps/s": steps / collecting, "training, steps/s": steps / (collecting + learning)}


def workers(count: int, settings: report.Settings) -> Point:
    """BipedalWalker in gymnasium."""
    sets = ['env.backend="gymnasium"', "env.num_envs=24", "algorithm.rollout_length=64", "algorithm.batch_size=1024",
            "network.hidden=[64, 64]", f"engine.workers={count}"]  # fmt: skip
    found = settings.bench("bipedal_ppo", sets, 5.0)
    collecting = found["steps_per_second"] / (1 - found["share_update"])
    return {"collecting, steps/s": collecting, "training, steps/s": found["steps_per_second"]}


def replay(capacity: int, settings: report.Settings) -> Point:
    """A full ring of small observations: microseconds to add a transition, and to draw 256 of them."""
    envs, length, batch = 8, 64, 256
    bounds = (-1.0,) * 4, (1.0,) * 4
    torch.set_num_threads(1)
    shape = (length, envs)
    no = torch.zeros(shape, dtype=torch.bool)
    none = FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 4))
    rollout = Rollout(
        torch.zeros(length + 1, envs, 4), torch.zeros(*shape, 2), torch.zeros(shape), no, no, ~no, none, {}, 0
    )
    point: Point = {}
    for name, priorities in (("uniform", None), ("prioritised", Priorities())):
        ring = Replay(Box((4,), "float32", *bounds), (2,), torch.float32, num_envs=envs, capacity=capacity, gamma=0.99,
                      priorities=priorities)  # fmt: skip
        adds = -(-capacity // (envs * length))
        began = time.perf_counter()
        for _ in range(adds):
            ring.add(rollout)
        added = time.perf_counter() - began
        generator = torch.Generator().manual_seed(0)
        draws, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < settings.seconds(2.0):
            drawn = ring.sample(batch, generator)
            if priorities:
                ring.update_priorities(drawn.index, drawn.reward)
            draws += 1
        point[f"{name}: add, us a transition"] = 1e6 * added / (adds * envs * length)
        point[f"{name}: draw 256, us"] = 1e6 * spent / draws
    return point


def peak_mb(pid: int) -> float:
    """The most memory that a process has had; rusage would count what its parent had when it was started."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return max((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), default=0.0)


def run_length(rows: int, settings: report.Settings) -> Point:
    """What a run of so many metric rows costs: its writer, its readers, its picture, its dashboard."""
    import dashboard
    import synthetic

    with tempfile.TemporaryDirectory(prefix="erl-scaling-") as folder:
        path = Path(folder) / "run"
        layout = synthetic.write_run(path, rows=rows, state="dead", attempts=1, now=time.time())
        view = RunView(layout, max_rows=1)
        view.refresh()
        appender, count = Appender(layout.metrics), 1000
        began = time.perf_counter()
        for _ in range(count):
            appender.append(view.last)
        logged = (time.perf_counter() - began) / count
        appender.close()
        words = [sys.executable, "-m", "erlcli", "plot", str(path), "--out", f"{folder}/curve.png"]
        began = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as plotting:
            peak = 0.0
            while plotting.poll() is None:
                peak = max(peak, peak_mb(plotting.pid))
                time.sleep(0.01)
        plotted = time.perf_counter() - began
        if plotting.returncode:
            raise report.NotMeasured(f"`erl plot` of {rows:,} rows left with {plotting.returncode}")
        with dashboard.dashboard(path) as terminal:
            painted = terminal.wait_for(dashboard.run_is_shown)
            memory = terminal.rss_mb
    return {
        "log a row, us": 1e6 * logged,
        "erl plot, s": plotted,
        "erl plot, MB": peak,
        "dashboard to first full paint, s": painted,
        "dashboard, MB": memory,
    }


def members(count: int, settings: report.Settings) -> Point:
    """Simulated slices of a minute on as many slots as there are members, up to 256: four of them a member."""
    import tournament

    found = tournament.simulate("tournament", count, min(count, 256), max(4 * count, 40), 30.0, 90.0)
    return {
        "orchestrator, ms a slice": 1e3 * found["orchestrator_seconds_per_slice"],
        "slots idle, %": 100 * found["idle_share"],
    }


def powers(base: int, first: int, last: int, step: int = 1) -> list[int]:
    """Powers of `base` from exponent `first` to `last`."""
    return [base**exponent for exponent in range(first, last + 1, step)]


SPEEDS = ("collecting, steps/s", "training, steps/s")
PARTS = {
    "envs": Part("Environments", "environments", "steps/s", powers(2, 0, 12, 2),
                 lambda value, settings: ppo_speed(value, 64, settings.seconds(3.0)), SPEEDS),
    "workers": Part("Workers, BipedalWalker in gymnasium", "workers", "steps/s", range(5), workers, SPEEDS, 150.0),
    "width": Part("Width of two hidden layers, 64 environments", "units a layer", "steps/s", powers(2, 5, 10),
                  lambda value, settings: ppo_speed(64, value, settings.seconds(3.0)), SPEEDS),
    "replay": Part("Replay", "transitions", "us", powers(10, 4, 7), replay,
                   ("uniform: draw 256, us", "prioritised: draw 256, us", "uniform: add, us a transition",
                    "prioritised: add, us a transition"), 150.0),
    "run_length": Part("Length of a run", "metric rows", "s", powers(10, 3, 6), run_length,
                       ("erl plot, s", "dashboard to first full paint, s"), 120.0),
    "members": Part("Members of a tournament", "members", "ms a slice", powers(10, 0, 3), members,
                    ("orchestrator, ms a slice",), 60.0),
}  # fmt: skip


def points(part: Part, settings: report.Settings) -> Iterator[tuple[int, Point]]:
    """The part's points, as long as its budget lasts."""
    until = time.monotonic() + part.budget_seconds
    for value in part.values[: 2 if settings.quick else None]:
        if time.monotonic() > until:
            settings.notes.append(f"{part.title} beyond {value:,}: the budget of {part.budget_seconds:g} s was used up")
            return
        try:
            yield value, part.measure(value, settings)
        except (report.NotMeasured, ImportError, MemoryError, TimeoutError) as error:
            settings.notes.append(f"{part.title}, {value:,}: {error!r:.200}")
            return


def measure(part: Part, settings: report.Settings) -> dict[str, Any]:
    """A part as `scaling.json` keeps it."""
    rows = []
    for value, point in points(part, settings):
        print(f"{part.title}, {value:,}: " + ", ".join(f"{k} {v:,.4g}" for k, v in point.items()), flush=True)
        rows.append({"value": value, **point})
    return {
        "title": part.title, "across": part.across, "unit": part.unit, "shown": list(part.shown), "points": rows,
        "machine": report.machine(), "date": str(datetime.date.today()), "not_measured": settings.notes, "note": "",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="the first two points of each, nothing is written")
    options = parser.parse_args()
    data: dict[str, Any] = read_json(DATA) or {}
    for name in [] if options.redraw else options.only:
        data[name] = measure(PARTS[name], report.Settings(quick=options.quick))
        if not options.quick:
            write_json(DATA, data)
    if not options.quick:
        scaling_page.write({name: data[name] for name in PARTS if name in data}, DATA.parent)


if __name__ == "__main__":
    main()
