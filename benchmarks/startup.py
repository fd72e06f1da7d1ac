"""How long one waits: for `erl --help`, and from `erl train` to the first env step."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import NotMeasured, Settings, by_turns, spread, table

TITLE = "Start-up"
BUDGET_SECONDS = 30.0
ENV = Path(__file__).with_name("first_step.py")


def help_seconds(settings: Settings) -> float:
    """Wall seconds of `erl --help`."""
    start = time.perf_counter()
    settings.run(Path(sys.executable).parent / "erl", "--help")
    return time.perf_counter() - start


def import_seconds(settings: Settings) -> float:
    """What `import torch` adds to an interpreter that has numpy."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        settings.run(sys.executable, "-c", code)
        return time.perf_counter() - start

    with_it = seconds("import numpy, torch")
    return with_it - seconds("import numpy")


def first_step_seconds(settings: Settings) -> float:
    """From the start of the process to the first env step.

    Raises:
        NotMeasured: there was none.
    """
    with tempfile.TemporaryDirectory(prefix="erl-start-") as folder:
        stepped = Path(folder) / "stepped"
        command = [
            sys.executable, "-m", "erlcli", "train", "cartpole_ppo", "--run-dir", f"{folder}/run", "--json",
            "--set", f'env.id="{ENV}:FirstStep"', "--set", f'env.kwargs={{path="{stepped}"}}',
            "--set", "env.max_episode_steps=500", "--set", "train.total_steps=2048",
        ]  # fmt: skip
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        if not stepped.exists():
            raise NotMeasured(f"`erl train` made no step: {done.stderr.strip()[-200:]}")
        return float(stepped.read_text()) - began


def section(settings: Settings) -> str:
    """See `report.section`."""
    found = by_turns(
        {
            "help": lambda: help_seconds(settings),
            "train": lambda: first_step_seconds(settings),
            "torch": lambda: import_seconds(settings),
        },
        settings,
    )
    share = statistics.median(found["torch"]) / statistics.median(found["train"])
    return table(
        ["what", "seconds"],
        [
            ["`erl --help`", spread(found["help"], "{:.2f}")],
            ["`erl train` on CartPole: start of the process to first env step", spread(found["train"], "{:.2f}")],
            [f"`import torch`, {share:.0%} of that", spread(found["torch"], "{:.2f}")],
        ],
    )
