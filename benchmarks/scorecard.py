"""What the shipped recipes reach, seed by seed, as `benchmarks/scorecard.md` has it.

    python benchmarks/scorecard.py pendulum_sac pendulum_td3 --seeds 0 1 2 3 4 --jobs 2 --write

Each recipe is trained with each seed, where that run isn't there yet; one that was interrupted is resumed. Its best
policy is then played for 400 episodes that neither training nor the choice of the best has seen: of 100, as the run's
own evaluator plays, the mean on Pendulum still strays by 9 with the starts that were drawn. IQM and interval are over
the seeds' means. With --write, rows replace those of the same recipe in scorecard.md, and all others stay.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from report import machine

from erlcli.core.statistics import bootstrap_ci, iqm
from erlcli.recipe.load import load
from erlcli.runs.jsonl import read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count
from erlcli.runs.view import RunView

PAGE = Path(__file__).with_name("scorecard.md")
FRESH_SEED = 20_000  # of episodes that no run evaluates on
EPISODES = 400
HEAD = (
    "| recipe | budget | target | seeds | IQM of returns | 95 % CI | each seed | steps, median | seconds, median "
    "| not finished | command |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)
ROW = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)


@dataclass(frozen=True)
class Seed:
    """What became of one seed.

    Attributes:
        seed: of the run.
        score: return, steps and seconds; None where it did not finish.
        state: of the run, as `erl ps` has it.
    """

    seed: int
    score: dict[str, float] | None
    state: str


def erl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command."""
    return subprocess.run([sys.executable, "-m", "erlcli", *arguments], capture_output=True, text=True)


def train(recipe: str, seed: int, path: Path, view: RunView) -> None:
    """Train to the end, from wherever the run is; nothing where somebody else does, or where it can't be."""
    if view.is_live:
        return
    print(f"training {recipe}, seed {seed}", file=sys.stderr)
    start = ("resume", str(path)) if view.layout.recipe.exists() else ("train", recipe, "--run-dir", str(path))
    done = erl(*start, *(("--seed", str(seed)) if start[0] == "train" else ()), "--no-tui")
    if done.returncode:
        print(f"{recipe}, seed {seed}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)


def score(recipe: str, seed: int, folder: Path, *, may_train: bool) -> Seed:
    """One seed, trained if need be and evaluated once: the result lies in the run."""
    path = folder / f"{recipe}-{seed}"
    view = RunView(RunLayout(path))
    view.refresh()
    if may_train and view.state != "finished":
        train(recipe, seed, path, view)
        view.refresh()
    if view.state != "finished" or view.best is None:
        return Seed(seed, None, view.state if view.layout.recipe.exists() else "not there")
    result = read_json(path / "scorecard.json")
    if result is None or (result["best_steps"], result.get("episodes")) != (view.best["steps"], EPISODES):
        done = erl("eval", str(path), "--episodes", str(EPISODES), "--seed", str(FRESH_SEED), "--json")
        if done.returncode:
            return Seed(seed, None, f"erl eval left with {done.returncode}")
        facts = {"best_steps": view.best["steps"], "episodes": EPISODES}
        result = facts | {"return": json.loads(done.stdout)["return_mean"]}
        write_json(path / "scorecard.json", result)
    summary = view.summary()
    return Seed(seed, {"return": result["return"], **{k: summary[k] for k in ("steps", "seconds")}}, view.state)


def figure(value: float) -> str:
    """A return: of small ones, as where 1 is the most there is, the second decimal counts."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def row(recipe: str, seeds: list[Seed]) -> str | None:
    """A line of the table; None where no seed finished and none was begun."""
    scores = [one.score for one in seeds if one.score is not None]
    left = [one for one in seeds if one.score is None]
    if all(one.state == "not there" for one in seeds):
        return None
    recipe_train = load(recipe).train
    returns = np.asarray([s["return"] for s in scores])
    interval = bootstrap_ci(returns, iqm, 0) if len(scores) > 1 else None
    cells = [
        f"`{recipe}`",
        count(recipe_train.total_steps),
        "-" if recipe_train.target_return is None else f"{recipe_train.target_return:g}",
        str(len(scores)),
        figure(float(iqm(returns))) if scores else "-",
        "-" if interval is None else f"[{figure(interval[0])}, {figure(interval[1])}]",
        ", ".join(map(figure, returns)) or "-",
        count(float(np.median([s["steps"] for s in scores]))) if scores else "-",
        f"{float(np.median([s['seconds'] for s in scores])):.0f}" if scores else "-",
        ", ".join(f"{one.seed}: {one.state}" for one in left) or "-",
        f"`python benchmarks/scorecard.py {recipe} --seeds {' '.join(str(one.seed) for one in seeds)}`",
    ]
    return f"| {' | '.join(cells)} |"


def merge(page: str, rows: dict[str, str]) -> str:
    """The page with these rows, by recipe, instead of its own of the same recipes; in the order of names."""
    merged = {match[1]: match[0] for match in ROW.finditer(page)} | rows
    lines = "\n".join(merged[name] for name in sorted(merged))
    what = f"Returns are means of {EPISODES} fresh episodes that a run's best policy played. Newest rows: {machine()}."
    return f"# Scorecard\n\n{what}\n\n{HEAD}\n{lines}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs/scorecard"))
    parser.add_argument("--no-train", action="store_true", help="only what is there already")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time; their seconds are those of a shared machine"
    )
    parser.add_argument("--write", action="store_true", help="into scorecard.md, too")
    options = parser.parse_args()
    print(HEAD)
    with ThreadPoolExecutor(options.jobs) as pool:
        each = {
            recipe: [
                pool.submit(score, recipe, seed, options.runs, may_train=not options.no_train) for seed in options.seeds
            ]
            for recipe in dict.fromkeys(options.recipes)
        }
        for recipe, futures in each.items():  # a row as soon as it and those before it are there
            line = row(recipe, [future.result() for future in futures])
            if line is None:
                continue
            print(line, flush=True)
            if options.write:
                PAGE.write_text(merge(PAGE.read_text() if PAGE.exists() else "", {recipe: line}))


if __name__ == "__main__":
    main()
