"""What the scripts here share: settings, repeats by turns, tables, and the page that sections are put into."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

GRACE_SECONDS = 300.0  # that a command may take beyond the budget of its section
SECTION = re.compile(r"<!-- section (\w+) -->\n(.*?)\n<!-- end \1 -->", re.DOTALL)


class NotMeasured(Exception):  # noqa: N818 - it is no error
    """There is no figure, and why."""


@dataclass(frozen=True)
class Settings:
    """How sections measure.

    Attributes:
        peer: python of a venv with stable-baselines3; None where there is none.
        rllib: python of a venv with ray[rllib], likewise.
        repeats: of every figure.
        longer: times the budget of its section that the deadline is away; for the command that is told.
        deadline: on the monotonic clock; another repeat is begun only if it is likely to be over by then.
        quick: the smallest settings that run through everything; their figures mean nothing.
        notes: why figures are missing; shared by all parts of a section, as what follows is.
        facts: what else is to be said above the tables.
        options: of the command, for the peers that were found.
    """

    peer: Path | None = None
    rllib: Path | None = None
    repeats: int = 3
    longer: float = 1.0
    deadline: float = float("inf")
    quick: bool = False
    notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def seconds(self, wanted: float) -> float:
        """Length of a measurement."""
        return min(wanted, 0.5) if self.quick else wanted

    def share(self, parts: int) -> Settings:
        """The settings of the next of so many parts, which has its share of the time that is left."""
        return replace(self, deadline=time.monotonic() + self.left / parts)

    def run(self, *command: str | Path) -> str:
        """Standard output of a command.

        Raises:
            NotMeasured: it failed, or took much longer than the section may.
        """
        words = [str(word) for word in command]
        timeout = None if self.left == float("inf") else max(self.left, 0.0) + GRACE_SECONDS
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"`{' '.join(words)}` took more than {error.timeout:.0f} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise NotMeasured(f"`{' '.join(words)}` left with {done.returncode}: {last}")
        return done.stdout

    def erl(self, *arguments: str) -> Any:
        """What an `erl` command prints with `--json`."""
        return json.loads(self.run(sys.executable, "-m", "erlcli", *arguments, "--json"))

    def bench(self, recipe: str, sets: Sequence[str], seconds: float) -> dict[str, Any]:
        """`erl bench RECIPE --set ...`."""
        return self.erl("bench", recipe, "--seconds", str(self.seconds(seconds)), *flags(sets))


def flags(sets: Sequence[str]) -> list[str]:
    """`--set` before each."""
    return [word for assignment in sets for word in ("--set", assignment)]


def bench_command(recipe: str, sets: Sequence[str]) -> str:
    """The command of a figure, for the page."""
    return f"`{shlex.join(['erl', 'bench', recipe, *flags(sets)])}`"


def by_turns(measures: Mapping[str, Callable[[], Any]], settings: Settings) -> dict[str, list[Any]]:
    """Every measure once, then every measure again ..., so that whatever else the machine does hits all of them.

    Fewer repeats than asked for where the next would go beyond the deadline; none of what can't be measured, which
    leaves a note.
    """
    found: dict[str, list[Any]] = {name: [] for name in measures}
    failed: set[str] = set()
    longest = 0.0
    for _ in range(settings.repeats):
        began = time.monotonic()
        for name, measure in measures.items():
            if name not in failed:
                try:
                    found[name].append(measure())
                except NotMeasured as error:
                    failed.add(name)
                    settings.notes.append(str(error))
        longest = max(longest, time.monotonic() - began)
        if settings.left < longest:
            break
    return found


def die_with_parent() -> None:
    """Linux: SIGTERM to the child when this process is gone, a kill -9 included."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def machine() -> str:
    """The machine and the versions, in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{name} {_version(name)}" for name in ("erlcli", "torch", "gymnasium", "envpool"))
    return f"{usable} cores of {model}, Python {platform.python_version()}, {versions}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def find_peer(settings: Settings) -> Path | None:
    """The peer's python, if it has Stable-Baselines3; else None, and a note."""
    return _found(settings, settings.peer, "Stable-Baselines3", "stable_baselines3", "--peer PEER_VENV/bin/python")


def find_rllib(settings: Settings) -> Path | None:
    """The other peer's python, if it has RLlib; else None, and a note."""
    return _found(settings, settings.rllib, "RLlib", "ray.rllib", "--rllib RLLIB_VENV/bin/python")


def _found(settings: Settings, python: Path | None, name: str, package: str, option: str) -> Path | None:
    if python is None:
        settings.notes.append(f"{name}: no `{option}` was given")
        return None
    top = package.partition(".")[0]
    code = f"import {package}, {top}, torch; print(f'{name} {{{top}.__version__}}, torch {{torch.__version__}}')"
    try:
        version = settings.run(python, "-c", code).strip().splitlines()[-1]
    except (NotMeasured, OSError) as error:
        settings.notes.append(f"{name}: {error}")
        return None
    settings.facts.append(f"Peer: {version}.")
    settings.options.append(option)
    return python


def on_policy_peer(python: Path, task: Mapping[str, Any], seconds: float, settings: Settings) -> float:
    """Steps/s of `sb3_on_policy.py` with a task as it takes it."""
    return _peer_speed(python, "sb3_on_policy.py", task, seconds, settings)


def rllib_peer(python: Path, task: Mapping[str, Any], seconds: float, settings: Settings) -> float:
    """Steps/s of `rllib_ppo.py` with the same task."""
    return _peer_speed(python, "rllib_ppo.py", task, seconds, settings)


def _peer_speed(python: Path, script: str, task: Mapping[str, Any], seconds: float, settings: Settings) -> float:
    path, length = Path(__file__).with_name(script), str(settings.seconds(seconds))
    return float(settings.run(python, path, json.dumps(task), "--seconds", length).split()[-1])


def spread(values: Sequence[float | None], form: str = "{:,.0f}") -> str:
    """Median, and all values behind it; None is worse than any number, and - is said of none."""
    if not values:
        return "-"
    each = ", ".join("never" if value is None else form.format(value) for value in values)
    middle = median(values)
    return f"{'never' if math.isinf(middle) else form.format(middle)} ({each})"


def median(values: Sequence[float | None]) -> float:
    """The median; None is worse than any number."""
    return statistics.median(float("inf") if value is None else value for value in values)


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> str:
    """Of the medians; - where there is none."""
    if not ours or not theirs or math.isinf(median(ours)) or math.isinf(median(theirs)):
        return "-"
    return f"{median(ours) / median(theirs):.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def section(title: str, measure: Callable[[Settings], str], name: str, settings: Settings) -> str:
    """A section of the page, measured now."""
    try:
        body = measure(settings)
    except NotMeasured as error:
        settings.notes.append(str(error))
        body = ""
    repeats = [f"--repeats {settings.repeats}"] if settings.repeats != Settings.repeats else []
    longer = [f"--longer {settings.longer:g}"] if settings.longer != 1.0 else []
    command = " ".join(["python benchmarks/run.py --only", name, *repeats, *longer, *settings.options])
    facts = [f"{machine()}; {datetime.date.today()}; `{command}`. Median (each)."]
    notes = "\n".join(f"* not measured: {note}" for note in dict.fromkeys(settings.notes))
    return "\n\n".join(part for part in (f"## {title}", "\n".join(facts + settings.facts), body, notes) if part)


def put(page: str, name: str, text: str, order: Sequence[str], title: str = "Results") -> str:
    """The page with one section replaced or added, all sections in `order`; what is in no section of it is dropped."""
    found = dict(SECTION.findall(page)) | {name: text}
    parts = [f"<!-- section {name} -->\n{found[name]}\n<!-- end {name} -->" for name in order if name in found]
    return "\n\n".join([f"# {title}", *parts]) + "\n"
