"""All figures of this folder on this machine, into `results.md`: `make bench`, or `python benchmarks/run.py`.

Leave the machine alone meanwhile: whole-process wall times on all cores are what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from time_to_score import measure

RESULTS = Path(__file__).parent / "results.md"
TARGETS = {"cartpole_ppo": 475, "lunarlander_continuous_ppo": 200, "bipedal_ppo": 300}


def machine() -> str:
    """The machine in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, torch {torch.__version__}"


def erl(*arguments: str) -> str:
    """Standard output of an `erl` command."""
    return subprocess.run(
        [sys.executable, "-m", "erlcli", *arguments], capture_output=True, text=True, check=True
    ).stdout


def help_seconds(repeats: int = 9) -> list[float]:
    """Wall seconds of `erl --help`."""
    command = [str(Path(sys.executable).parent / "erl"), "--help"]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return times


def throughput(repeats: int) -> list[dict]:
    """`erl bench bipedal_ppo --json`, several times."""
    return [json.loads(erl("bench", "bipedal_ppo", "--seconds", "15", "--json")) for _ in range(repeats)]


def spread(values: list[float], form: str = "{:.1f}") -> str:
    """Median, and all values behind it."""
    return f"{form.format(statistics.median(values))} ({', '.join(form.format(v) for v in values)})"


def report(seeds: list[int], repeats: int) -> str:
    """The page, measured."""
    lines = ["# Results", "", f"{machine()}, {datetime.date.today()}, seeds {seeds}. Median (each).", ""]
    lines += ["| what | figure | command |", "| --- | --- | --- |"]
    lines.append(f"| `erl --help`, seconds | {spread(help_seconds(), '{:.2f}')} | `erl --help` |")
    speed = throughput(repeats)
    for key, name, form in (
        ("steps_per_second", "BipedalWalker training, steps/s", "{:,.0f}"),
        ("env_limit_steps_per_second", "its envs alone, steps/s", "{:,.0f}"),
        ("share_of_limit", "share of that limit", "{:.0%}"),
    ):
        lines.append(f"| {name} | {spread([s[key] for s in speed], form)} | `erl bench bipedal_ppo` |")
    for recipe, target in TARGETS.items():
        result = measure(recipe, seeds, target)
        rows = result["rows"]
        command = f"`python benchmarks/time_to_score.py {recipe} --target {target}`"
        seconds = [r["seconds"] if r["seconds"] is not None else float("inf") for r in rows]
        lines.append(f"| {recipe}: seconds to {result['target']:g} | {spread(seconds)} | {command} |")
        lines.append(f"| {recipe}: steps to {result['target']:g} | {spread([r['steps'] for r in rows], '{:,.0f}')} | |")
        confirmed = spread([r["confirmed_return"] for r in rows])
        lines.append(f"| {recipe}: mean of 100 episodes that ended the run | {confirmed} | |")
        memory = spread([r["peak_megabytes"] for r in rows], "{:.0f}")
        lines.append(f"| {recipe}: peak memory of all processes, MB | {memory} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=3, help="of the throughput")
    arguments = parser.parse_args()
    RESULTS.write_text(report(arguments.seeds, arguments.repeats))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
