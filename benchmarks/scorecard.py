"""What the shipped recipes reach, seed by seed, as `benchmarks/scorecard.md` has it.

    python benchmarks/scorecard.py pendulum_sac pendulum_td3 --seeds 0 1 2 3 4 --runs runs/scorecard

Each recipe is trained with each seed, where that run isn't there yet, and its best policy is then played for 100
episodes that neither training nor the choice of the best has seen. IQM and interval are over the seeds' means.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from erlcli.core.statistics import bootstrap_ci, iqm
from erlcli.recipe.load import load
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count
from erlcli.runs.view import RunView

FRESH_SEED = 20_000  # of episodes that no run evaluates on
HEAD = (
    "| recipe | budget | target | seeds | IQM of returns | 95 % CI | each seed | steps, median | seconds, median |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def erl(*arguments: str) -> str:
    """Standard output of one command."""
    command = [sys.executable, "-m", "erlcli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def score(recipe: str, seed: int, folder: Path, *, train: bool) -> dict[str, float] | None:
    """Return, steps and seconds of one seed; None where there is no finished run and none shall be trained."""
    path = folder / f"{recipe}-{seed}"
    view = RunView(RunLayout(path))
    view.refresh()
    if view.state != "finished":
        if not train:
            return None
        print(f"training {recipe}, seed {seed}", file=sys.stderr)
        erl("train", recipe, "--seed", str(seed), "--run-dir", str(path), "--no-tui")
        view.refresh()
    result = json.loads(erl("eval", str(path), "--episodes", "100", "--seed", str(FRESH_SEED), "--json"))
    summary = view.summary()
    return {"return": result["return_mean"], "steps": summary["steps"], "seconds": summary["seconds"]}


def row(recipe: str, scores: list[dict[str, float]]) -> str:
    """A line of the table."""
    train = load(recipe).train
    returns = np.asarray([s["return"] for s in scores])
    low, high = bootstrap_ci(returns, iqm, 0)
    cells = [
        f"`{recipe}`",
        count(train.total_steps),
        "-" if train.target_return is None else f"{train.target_return:g}",
        str(len(scores)),
        f"{float(iqm(returns)):.1f}",
        f"[{low:.1f}, {high:.1f}]" if len(scores) > 1 else "-",
        ", ".join(f"{value:.0f}" for value in returns),
        count(float(np.median([s["steps"] for s in scores]))),
        f"{float(np.median([s['seconds'] for s in scores])):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs/scorecard"))
    parser.add_argument("--no-train", action="store_true", help="only what is there already")
    options = parser.parse_args()
    print(HEAD)
    for recipe in options.recipes:
        found = [score(recipe, seed, options.runs, train=not options.no_train) for seed in options.seeds]
        scores = [s for s in found if s is not None]
        if scores:
            print(row(recipe, scores), flush=True)


if __name__ == "__main__":
    main()
