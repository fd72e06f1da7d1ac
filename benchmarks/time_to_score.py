"""Wall seconds from the start of `erl train` to the snapshot that first scores the target over 20 episodes.

    python benchmarks/time_to_score.py cartpole_ppo --seeds 0 1 2

The clock starts with the process, so interpreter start, imports and process spawning count. It stops at the time
at which the snapshot was written that the run's own evaluator then found to be at the target. How long finding out took
does not count, but the evaluator competes for the cores while the learner trains, and skips snapshots when it falls
behind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from report import NotMeasured, Settings, by_turns, find_peer, ratio, spread, table

from erlcli.recipe.load import load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout

TITLE = "Time to score"
BUDGET_SECONDS = 480.0
TARGETS = {"cartpole_ppo": 475, "lunarlander_continuous_ppo": 200, "bipedal_ppo": 300}


def train(recipe: str, seed: int, root: Path) -> dict:
    """Train to the end; the run's own summary, when it started, and its peak memory over all processes."""
    command = [sys.executable, "-m", "erlcli", "train", recipe, "--run-dir", str(root), "--seed", str(seed), "--json"]
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = [0]
    threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True).start()
    try:
        out, _ = process.communicate()
    finally:
        process.terminate()  # where this script is interrupted; it has ended otherwise
    if not out:
        raise NotMeasured(f"`{' '.join(command)}` left with {process.returncode}")
    return {"started": started, "exit_code": process.returncode, "peak_bytes": peak[0], **json.loads(out)}


def watch_memory(pid: int, peak: list[int]) -> None:
    """Proportional set size, which counts shared pages once, of a process and its children, twice a second."""
    try:
        root = psutil.Process(pid)
        while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
            family = [root, *root.children(recursive=True)]
            sizes = []
            for process in family:
                try:
                    sizes.append(process.memory_full_info().pss)
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], sum(sizes))
            time.sleep(0.5)
    except psutil.Error:
        return


def first_score(root: Path, target: float) -> dict | None:
    """The first evaluation at the target: of 20 episodes, or of 100 where those 20 were promising."""
    rows = (row for row in read(RunLayout(root).evals) if row["return_mean"] >= target)
    return min(rows, key=lambda row: row["time/wall"], default=None)


def measure(recipe: str, seed: int, target: float) -> dict:
    """Time to score of one seed, in a run of its own."""
    with tempfile.TemporaryDirectory(prefix="erl-score-") as folder:
        root = Path(folder) / "run"
        run = train(recipe, seed, root)
        hit = first_score(root, target)
    row = {
        "seed": seed,
        "seconds": hit["time/wall"] - run["started"] if hit else None,
        "steps": hit["steps"] if hit else run["steps"],
        "score": hit["return_mean"] if hit else None,
        "episodes": hit["episodes"] if hit else None,
        "confirmed_return": run["best_return"],
        "peak_megabytes": run["peak_bytes"] / 1e6,
        "run_seconds": run["seconds"],
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def peer_seconds(python: Path, seed: int, settings: Settings) -> float | None:
    """Seconds of the peer on CartPole; None where it did not get there."""
    script = Path(__file__).with_name("sb3_time_to_score.py")
    last = settings.run(python, script, "cartpole", str(seed)).strip().splitlines()[-1]
    seconds = float(last.partition(": ")[2].split()[0])
    return seconds if seconds < float("inf") else None


def section(settings: Settings) -> str:
    """See `report.section`."""
    python = find_peer(settings)
    rows, targets = [], dict(list(TARGETS.items())[: 1 if settings.quick else None])
    for place, (recipe, target) in enumerate(targets.items()):
        measures: dict[str, Callable[[], Any]] = {"erl": _seeds(lambda s, r=recipe, t=target: measure(r, s, t))}
        if python is not None and recipe == "cartpole_ppo":
            measures["peer"] = _seeds(lambda s: peer_seconds(python, s, settings))
        found = by_turns(measures, settings.share(len(targets) - place))
        ours, theirs = found["erl"], found.get("peer", [])
        seconds = [row["seconds"] for row in ours]
        command = f"`python benchmarks/time_to_score.py {recipe} --target {target}`"
        name = f"{recipe}: seconds to {target}"
        rows.append([name, spread(seconds, "{:.1f}"), spread(theirs, "{:.1f}"), ratio(theirs, seconds), command])
        for name, key, form in (
            (f"steps to {target}", "steps", "{:,.0f}"),
            ("mean of 100 episodes that ended the run", "confirmed_return", "{:.1f}"),
            ("peak memory of all processes, MB", "peak_megabytes", "{:.0f}"),
        ):
            rows.append([f"{recipe}: {name}", spread([row[key] for row in ours], form), "", "", ""])
    return table(["seeds 0, 1, 2 ...", "erl", "Stable-Baselines3", "its time by ours", "command"], rows)


def _seeds(one: Callable[[int], Any]) -> Callable[[], Any]:
    """A seed a call: 0, 1, 2 ..."""
    seeds = itertools.count()
    return lambda: one(next(seeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float)
    arguments = parser.parse_args()
    target = load(arguments.recipe).train.target_return if arguments.target is None else arguments.target
    if target is None:
        parser.error(f"{arguments.recipe} has no train.target_return: give --target")
    rows = [measure(arguments.recipe, seed, target) for seed in arguments.seeds]
    times = [row["seconds"] if row["seconds"] is not None else float("inf") for row in rows]
    found = {"recipe": arguments.recipe, "target": target, "median_seconds": statistics.median(times), "rows": rows}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
