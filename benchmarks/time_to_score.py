"""Wall seconds from the start of `erl train` to the snapshot that first scores the target over 20 episodes.

    python benchmarks/time_to_score.py cartpole_ppo --seeds 0 1 2

The clock starts with the process, so interpreter start, imports and process spawning count. Snapshots carry the time
at which they were written; they are evaluated on gymnasium after the run, in order, on episodes that the run itself
does not use, so evaluation costs nothing here, though the run's own evaluator does compete for the cores. The snapshot
that ended the run counts by the run's own 100 episodes, where it does not pass on these 20.
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
from safetensors import safe_open

from erlcli.engine import build
from erlcli.engine.evaluate import Evaluation
from erlcli.envs.config import env_config
from erlcli.recipe.load import load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout

EPISODES = 20
SEED = 1000


def train(recipe: str, seed: int, root: Path) -> dict:
    """Train to the end; the run's own summary, when it started, and its peak memory over all processes."""
    command = [sys.executable, "-m", "erlcli", "train", recipe, "--run-dir", str(root), "--seed", str(seed), "--json"]
    command += ["--set", "eval.keep_snapshots=true"]
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


def first_score(root: Path, target: float) -> tuple[int, float, float] | None:
    """Steps, wall time and score of the first snapshot at the target."""
    confirmed = {
        row["steps"]: row["return_mean"]
        for row in read(RunLayout(root).evals)
        if row["kind"] == "full" and row["return_mean"] >= target
    }
    recipe = load(RunLayout(root).recipe)
    evaluation = Evaluation(env_config(recipe.env, 10), SEED)
    policy = build.policy(recipe, evaluation.spec)
    for path in sorted(RunLayout(root).snapshots.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            facts = file.metadata()
            policy.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        returns = evaluation.run(policy, range(EPISODES)).returns
        mean = sum(returns) / len(returns)
        steps = int(facts["steps"])
        if mean >= target or steps in confirmed:
            return steps, float(facts["wall"]), max(mean, confirmed.get(steps, mean))
    return None


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
            "seconds": hit[1] - run["started"] if hit else None,
            "steps": hit[0] if hit else run["steps"],
            "score": hit[2] if hit else None,
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
