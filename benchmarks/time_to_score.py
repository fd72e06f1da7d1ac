"""Wall seconds from the start of `erl train` to the snapshot that first scores the target over 20 episodes.

    python benchmarks/time_to_score.py cartpole_ppo --seeds 0 1 2

The clock starts with the process, so interpreter start, imports and process spawning count. It stops at the time
at which the snapshot was written that the run's own evaluator then found to be at the target. How long finding out took
does not count, but the evaluator competes for the cores while the learner trains, and skips snapshots when it falls
behind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from erlcli.recipe.load import load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout


def train(recipe: str, seed: int, root: Path) -> dict:
    """Train to the end; the run's own summary, when it started, and its peak memory over all processes."""
    command = [sys.executable, "-m", "erlcli", "train", recipe, "--run-dir", str(root), "--seed", str(seed), "--json"]
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = [0]
    threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True).start()
    out, _ = process.communicate()
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


def measure(recipe: str, seeds: list[int], target: float | None = None) -> dict:
    """Time to score over seeds, each a run of its own, one after the other; the target is the recipe's by default."""
    target = load(recipe).train.target_return if target is None else target
    rows = []
    for seed in seeds:
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
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    times = [row["seconds"] if row["seconds"] is not None else float("inf") for row in rows]
    return {"recipe": recipe, "target": target, "median_seconds": statistics.median(times), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.recipe, arguments.seeds, arguments.target), indent=2))


if __name__ == "__main__":
    main()
