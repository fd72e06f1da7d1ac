"""The H-term's claim: PPO against PPO with the H-term on Hopper-v5, seed by seed, as `benchmarks/h_term.md` has it.

    python benchmarks/h_term.py --seeds 0 1 2 3 4 5 6 7 --steps 1_000_000 --runs runs/h_term
    python benchmarks/h_term.py --set algorithm.h_term.weight=0.05 --label "weight 0.05"

The claim is that with the term the spread across runs falls to a third or less at an equal mean. Both sides have the
same recipe, code and seeds, and no target, so that every run uses its budget. Runs take turns, one at a time: baseline
and term of a seed, then the next seed. A run that is finished is not trained again.

A run is scored twice over the last 20 % of its steps: by its training episodes (`episode/return`, the policy that
explores, the mean over all rollouts), and by its evaluations (`evals.jsonl`, the deterministic policy, each snapshot
once, by the most episodes it was played; how many there are depends on how busy the machine is). The tables have the
mean and the standard deviation of these scores across seeds, the worst seed, and the mean standard deviation of a run's
own returns over the same stretch, which is how much its curve still moves.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from erlcli.recipe.load import load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count
from erlcli.runs.view import RunView

RESULTS = Path(__file__).parent / "h_term.md"
BASELINE = "PPO"
LAST = 0.2  # share of the steps whose evaluations count
DRAWS = 20_000  # of the bootstrap
HEAD = (
    "| what | seeds | mean | std across seeds | worst | best | std within a run | seconds a run | each seed |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Side:
    """One of the sides that are compared.

    Attributes:
        label: for the table.
        recipe: shipped name.
        overrides: as of `--set`.
    """

    label: str
    recipe: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """What one run came to over its last steps.

    Attributes:
        training: returns of its training episodes, one mean a rollout.
        evaluations: mean returns of the snapshots that were played.
        seconds: of the whole run.
    """

    training: np.ndarray
    evaluations: np.ndarray
    seconds: float


def train(side: Side, seed: int, steps: int, folder: Path) -> Path:
    """The run of one seed, trained where there is no finished one.

    Raises:
        SystemExit: a finished run of that name has another recipe.
    """
    path = folder / f"{side.label.lower().replace(' ', '-')}-{count(steps)}-{seed}"
    overrides = [f"train.total_steps={steps}", *side.overrides]
    view = RunView(RunLayout(path))
    view.refresh()
    if view.state == "finished":
        wanted, found = load(side.recipe, overrides).to_toml(), load(path / "recipe.toml").to_toml()
        if any(found[section] != wanted[section] for section in ("algorithm", "network", "normalize")):
            raise SystemExit(f"{path}: trained with another recipe; give another --runs or --label")
        return path
    print(f"training {side.label}, seed {seed}, {count(steps)} steps", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "erlcli", "train", side.recipe, "--run-dir", str(path), "--seed", str(seed)]
    for override in (*overrides, "train.target_return=1e9"):  # beyond reach: TOML has no null to unset it with
        command += ["--set", override]
    subprocess.run([*command, "--no-tui"], check=True, capture_output=True)
    return path


def score(path: Path, steps: int) -> Score:
    """Of one run."""
    layout = RunLayout(path)
    view = RunView(layout)
    view.refresh()
    first = steps * (1 - LAST)
    best: dict[int, tuple[int, float]] = {}  # by steps: episodes, mean return
    for row in read(layout.evals):
        at, episodes = int(row["steps"]), int(row["episodes"])
        if at >= first and episodes >= best.get(at, (0, 0.0))[0]:
            best[at] = (episodes, float(row["return_mean"]))
    last = [row for row in read(layout.metrics) if int(row["steps"]) >= first]
    training = [float(row["episode/return"]) for row in last if "episode/return" in row]
    if not best or not training:
        raise SystemExit(f"{path}: no evaluation or no episode in the last {LAST:.0%} of {steps:,} steps")
    evaluations = [value for _, value in best.values()]
    return Score(np.array(training), np.array(evaluations), float(view.summary()["seconds"]))


def table(sides: dict[str, list[Score]], measure: str) -> str:
    """The sides by one attribute of their scores, and how they compare."""
    lines = [HEAD]
    means: list[np.ndarray] = []
    for label, scores in sides.items():
        returns: list[np.ndarray] = [getattr(s, measure) for s in scores]
        means.append(np.array([r.mean() for r in returns]))
        cells = [
            label,
            str(len(scores)),
            f"{means[-1].mean():.0f}",
            f"{spread(means[-1]):.0f}" if len(scores) > 1 else "-",
            f"{means[-1].min():.0f}",
            f"{means[-1].max():.0f}",
            f"{np.mean([r.std() for r in returns]):.0f}",
            f"{np.mean([s.seconds for s in scores]):.0f}",
            ", ".join(f"{value:.0f}" for value in means[-1]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(means[0]) > 1:
        lines += ["", verdict(*means)]
    return "\n".join(lines)


def spread(means: np.ndarray) -> float:
    """Standard deviation across seeds, of the sample."""
    return float(means.std(ddof=1))


def verdict(baseline: np.ndarray, term: np.ndarray) -> str:
    """How the two compare, with 95 % intervals by bootstrap over seeds."""
    source = np.random.default_rng(0)
    pairs = [(source.choice(baseline, len(baseline)), source.choice(term, len(term))) for _ in range(DRAWS)]
    # A side whose draws are all one seed has no spread, and says nothing about a ratio.
    ratios = [spread(a) / spread(b) for a, b in pairs if min(np.ptp(a), np.ptp(b)) > 0]
    gaps = [b.mean() - a.mean() for a, b in pairs]
    low, high = np.percentile(ratios, [2.5, 97.5])
    least, most = np.percentile(gaps, [2.5, 97.5])
    ratio, gap = spread(baseline) / spread(term), term.mean() - baseline.mean()
    return (
        f"Spread of {BASELINE} over that with the term: {ratio:.2f}, 95 % interval [{low:.2f}, {high:.2f}]; "
        f"difference of the means: {gap:+.0f} [{least:+.0f}, {most:+.0f}]."
    )


def machine() -> str:
    """The machine in a few words."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/h_term"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="for the side with the term")
    parser.add_argument("--label", default="PPO+H", help="of the side with the term")
    parser.add_argument("--write", action="store_true", help=f"put the section of these steps into {RESULTS.name}")
    options = parser.parse_args()
    sides = [Side(BASELINE, "hopper_ppo"), Side(options.label, "hopper_ppo_h", tuple(options.overrides))]
    scores: dict[str, list[Score]] = {side.label: [] for side in sides}
    for seed in options.seeds:
        for side in sides:
            path = train(side, seed, options.steps, options.runs)
            scores[side.label].append(score(path, options.steps))
            last = scores[side.label][-1]
            print(f"{path.name}: {last.training.mean():.0f} in training, {last.evaluations.mean():.0f} evaluated",
                  file=sys.stderr, flush=True)  # fmt: skip
    text = f"By training episodes:\n\n{table(scores, 'training')}\n\nBy evaluations:\n\n{table(scores, 'evaluations')}"
    print(text)
    if options.write:
        title = f"## {options.label} at {count(options.steps)} steps"
        what = " ".join(options.overrides) or "as shipped"
        put(title, f"{machine()}, {datetime.date.today()}, seeds {options.seeds}; {what}.\n\n{text}")


def put(title: str, text: str) -> None:
    """Write a section of the results, in place of one with the same title."""
    before = RESULTS.read_text() if RESULTS.exists() else "# The H-term\n"
    sections = before.split("\n## ")
    kept = [section for section in sections if f"## {section}".split("\n")[0] != title]
    RESULTS.write_text("\n## ".join([*(s.rstrip("\n") + "\n" for s in kept), f"{title[3:]}\n\n{text}\n"]))


if __name__ == "__main__":
    main()
