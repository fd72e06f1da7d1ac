"""Runs that look real and were never trained; see `synthetic.py`."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erlcli.runs.jsonl import Appender, encode, read, write_json, write_text
from erlcli.runs.layout import RunLayout

NOW = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC
STEPS_PER_ROW = 16_384
LIVE = ("starting", "running", "paused", "stopping", "evaluating")
PROGRESS = {"finished": 1.0, "failed": 0.45, "dead": 0.55, "interrupted": 0.7, "starting": 0.01}  # else 0.62
EXIT_CODES = {"finished": 0, "failed": 4, "interrupted": 130}
RESTART_SECONDS = 42.0
CHUNK = 20_000  # rows turned into text at a time
ROW = (
    '{"attempt":%d,"steps":%d,"version":%d,"updates":%d,"episodes":%d,"episode/return":%.4f,"episode/length":%.2f,'
    '"loss/policy":%.5f,"loss/value":%.5f,"policy/entropy":%.5f,"policy/kl":%.6f,"policy/clip_fraction":%.5f,'
    '"policy/epochs":10,"loss/grad_norm":%.5f,"value/explained_variance":%.5f,"schedule/learning_rate":%.8f,'
    '"schedule/clip_range":0.2,"schedule/entropy_coef":0.0,"time/seconds":%.3f,"time/wall":%.3f,'
    '"time/steps_per_second":%.1f,"time/share_env":%.4f,"time/share_act":%.4f,"time/share_wait":%.4f,'
    '"time/share_update":%.4f}\n'
)
RECIPE = """# Resolved: `erl train` of this file repeats the run.
[train]
total_steps = {total}
target_return = {target}
seed = {seed}
device = "cpu"

[env]
id = "{env}"
backend = "envpool"
num_envs = 64

[algorithm]
name = "{algorithm}"
rollout_length = 256
batch_size = 1024

[algorithm.learning_rate]
kind = "linear"
start = 0.001
end = 0.0
"""
Column = NDArray[np.float64]


class Columns:
    """What a whole run of PPO on BipedalWalker would write, row by row.

    Args:
        planned: rows of the whole run.
        seed: of the noise.
        low: return of an untrained policy.
        high: return that training ends at.
    """

    def __init__(self, planned: int, seed: int, low: float = -110.0, high: float = 302.0) -> None:
        noise = np.random.default_rng(seed)
        share = np.arange(1, planned + 1) / planned

        def wobble(width: int = 24) -> Column:
            """Noise of unit size with a memory of some rows."""
            white = noise.standard_normal(planned + width - 1)
            return np.convolve(white, np.ones(width) / math.sqrt(width), "valid")

        learnt = 1.0 / (1.0 + np.exp(-14.0 * (share - 0.24 - 0.05 * noise.standard_normal())))
        learnt = learnt * (0.93 + 0.07 * share)
        returns = low + (high - low) * learnt + wobble() * (4.0 + 46.0 * learnt * (1.05 - learnt))
        rate = (15_500 + 700 * wobble(48)).clip(2_000) * np.where(noise.random(planned) < 0.004, 0.45, 1.0)
        env = (0.63 + 0.015 * wobble(8)).clip(0.3, 0.9)
        act = (0.03 + 0.002 * wobble(8)).clip(0.005, 0.08)
        wait = np.abs(0.004 * wobble(4))
        index = np.arange(1, planned + 1)
        self.attempt = np.ones(planned)
        self.steps = index * STEPS_PER_ROW - noise.integers(0, 90, planned)
        self.returns = returns
        self.seconds = np.cumsum(STEPS_PER_ROW / rate)
        self.columns: list[Any] = [
            self.steps, index, index * 160, np.cumsum(noise.integers(9, 15, planned)), returns,
            np.clip(90 + 1500 * learnt - 600 * share * learnt + 40 * wobble(), 40, 1600),
            -0.02 - 0.006 * wobble(4), 0.45 * np.exp(-6 * share) + np.exp(0.9 * wobble(4) - 4.5),
            5.67 - 4.9 * share**0.8 + 0.02 * wobble(), (0.0135 + 0.002 * wobble(6)).clip(0.0005),
            (0.19 + 0.02 * wobble(6)).clip(0.01), 0.45 + 0.9 * share + 0.08 * wobble(4),
            (0.9 - np.exp(-30 * share) - 0.12 * np.abs(wobble(6))).clip(-1), 1e-3 * (1 - share), self.seconds,
            rate, env, act, wait, (1 - env - act - wait).clip(0),
        ]  # fmt: skip

    def lines(self, index: NDArray[np.int64], attempt: NDArray[np.int64], wall: Column) -> Iterator[str]:
        """Text of the rows `index`, (rows,), written by `attempt` at `wall`, some thousands of rows at a time."""
        for start in range(0, len(index), CHUNK):
            part = slice(start, start + CHUNK)
            rows = index[part]
            chosen = [column[rows].tolist() for column in self.columns]
            columns = [attempt[part].tolist(), *chosen[:15], wall[part].tolist(), *chosen[15:]]
            yield "".join(ROW % row for row in zip(*columns, strict=True))


def write_run(
    path: Path,
    *,
    rows: int = 1_000,
    seed: int = 0,
    state: str = "finished",
    now: float = NOW,
    planned: int | None = None,
    attempts: int = 1,
    workers: int = 0,
    gpu: bool = False,
    age_seconds: float | None = None,
    env: str = "BipedalWalker-v3",
    algorithm: str = "ppo",
    target: float = 300.0,
    high: float = 302.0,
) -> RunLayout:
    """Write a run directory.

    Args:
        path: of the run; must be empty or not there.
        rows: metric rows that count; with several attempts the file has some superseded ones beside.
        seed: of the noise.
        state: as in status.json, or `dead`: killed while it ran. Live ones look dead too unless someone holds the lock.
        now: seconds since the epoch at which a reader looks.
        planned: rows that the whole budget would give; as the state suggests if None.
        attempts: starts of the learner.
        workers: worker processes.
        gpu: whether there are figures of a GPU.
        age_seconds: since it was last heard of; 0.3 for live runs and an hour for others if None.
        env: id of the environment.
        algorithm: name of the algorithm.
        target: return to reach.
        high: return that training ends at.
    """
    layout = RunLayout(Path(path))
    layout.create()
    planned = max(planned or round(rows / PROGRESS.get(state, 0.62)), rows)
    age = age_seconds if age_seconds is not None else 0.3 if state in LIVE else 3600.0
    data = Columns(planned, seed, high=high)
    index, attempt = _written(rows, attempts)
    spent = np.diff(data.seconds, prepend=0.0)[index] + RESTART_SECONDS * (np.diff(attempt, prepend=1) > 0)
    wall = now - age - spent.sum() + np.cumsum(spent)
    with layout.metrics.open("w") as file:
        file.writelines(data.lines(index, attempt, wall))
    write_text(layout.recipe, RECIPE.format(total=planned * STEPS_PER_ROW, target=target, seed=seed, env=env,
                                            algorithm=algorithm))  # fmt: skip
    os.utime(layout.recipe, (wall[0] - spent[0],) * 2)
    best = _write_evals(layout, data, index, attempt, wall, seed)
    steps, seconds = int(data.steps[rows - 1]), float(data.seconds[rows - 1])
    _write_events(layout, data, index, attempt, wall, state, workers, env)
    write_processes(layout, steps, seconds, float(wall[0]), now - age, state, workers, gpu)
    reached = state == "finished" and best >= target
    error = "loss/policy became NaN at update 1,204\n  remedy:   lower algorithm.learning_rate"
    write_json(
        layout.status,
        {
            "state": "running" if state == "dead" else state, "pid": 4242, "attempt": attempts, "time": now - age,
            "name": layout.root.name, "env": env, "backend": "envpool", "algorithm": algorithm, "steps": steps,
            "seconds": round(seconds, 1), "total_steps": planned * STEPS_PER_ROW, "target_return": target,
            "target_reached": reached, "exit_code": EXIT_CODES.get(state),
            "error": error if state == "failed" else None,
        },
    )  # fmt: skip
    layout.lock.touch()
    return layout


def _written(rows: int, attempts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of rows in the order of the file, and who wrote them: each attempt but the last loses some rows."""
    bounds = [rows * i // attempts for i in range(attempts + 1)]
    lost = max(2, rows // 40)
    parts = [
        np.arange(start, min(stop + (lost if stop < rows else 0), rows)) for start, stop in itertools.pairwise(bounds)
    ]
    numbers = np.concatenate([np.full(len(part), i + 1) for i, part in enumerate(parts)])
    return np.concatenate(parts), numbers


def _write_evals(
    layout: RunLayout, data: Columns, index: NDArray[np.int64], attempt: NDArray[np.int64], wall: Column, seed: int
) -> float:
    """Some fifty evaluations; the best mean. The best policy's folder is there, without weights."""
    noise, out, best = np.random.default_rng(seed + 1), Appender(layout.evals), -math.inf
    every = max(1, int(index.max() + 1) // 50)
    for place in np.flatnonzero((index + 1) % every == 0):
        i = int(index[place])
        spread = 8.0 + 60.0 * math.exp(-((data.returns[i] - 120.0) ** 2) / 8000.0)
        mean = float(data.returns[max(0, i - 3) : i + 1].mean() + 4.0 + noise.standard_normal() * spread / 8)
        full = mean > best
        episodes = 100 if full else 20
        half = 1.96 * spread / math.sqrt(episodes)
        length = float(data.columns[5][i])
        row = {
            "attempt": int(attempt[place]), "steps": int(data.steps[i]), "version": i + 1,
            "kind": "full" if full else "probe", "episodes": episodes, "return_mean": round(mean, 4),
            "return_std": round(spread, 4), "return_median": round(mean + 1, 4), "return_iqm": round(mean + 0.8, 4),
            "return_min": round(mean - 2.6 * spread, 4), "return_max": round(mean + 2 * spread, 4),
            "return_ci": [round(mean - half, 4), round(mean + half, 4)],
            "return_iqm_ci": [round(mean - half, 4), round(mean + half, 4)], "length_mean": round(length, 2),
            "length_ci": [round(length - 9, 2), round(length + 9, 2)], "time/seconds": round(float(data.seconds[i]), 3),
            "time/wall": round(float(wall[place]), 3), "time/eval_seconds": 7.5 if full else 1.6,
        }  # fmt: skip
        out.append(row)
        if full:
            best, crowned = mean, row
    out.close()
    if best > -math.inf:
        folder = layout.checkpoints / f"best-{crowned['steps']:012d}"
        state = {key: crowned[key] for key in ("steps", "version", "return_mean", "return_std", "episodes")}
        write_json(folder / "state.json", state)
        (layout.checkpoints / "best").symlink_to(folder.name)
    return best


def _write_events(
    layout: RunLayout,
    data: Columns,
    index: NDArray[np.int64],
    attempt: NDArray[np.int64],
    wall: Column,
    state: str,
    workers: int,
    env: str,
) -> None:
    """What learner, evaluator and supervisor would tell."""
    rows: dict[str, list[dict[str, Any]]] = {"learner": [], "evaluator": [], "supervisor": []}

    def tell(process: str, at: float, number: int, event: str, message: str, level: str = "info", **facts: Any) -> None:
        row = {"time": round(at, 3), "process": process, "attempt": number, "level": level, "event": event}
        rows[process].append({**row, "message": message, **facts})

    where = f"{workers} workers" if workers else "one process"
    for number in range(1, int(attempt.max()) + 1):
        place = int(np.flatnonzero(attempt == number)[0])
        at, steps = float(wall[place]), int(data.steps[index[place]])
        if number > 1:
            killed = f"learner was killed by SIGKILL; started anew from the last checkpoint ({number - 1} in a row)"
            tell("supervisor", at - 9.0, number, "learner_restart", killed, "warning", found="signal 9")
            tell("learner", at - 2.0, number, "restored", f"restored from {steps:,} steps", steps=steps)
        tell("learner", at - 1.0, number, "started", f"64 x {env} (envpool), {where}, cpu, 2 threads", steps=steps)
    every = max(1, int(index.max() + 1) // 10)
    for place in np.flatnonzero((index + 1) % every == 0):
        steps = int(data.steps[index[place]])
        message = f"saved at {steps:,} steps"
        tell("learner", float(wall[place]), int(attempt[place]), "checkpoint", message, steps=steps)
    last, number = float(wall[-1]), int(attempt[-1])
    if workers:
        message = "worker-1: the env raised ValueError: bad contact; started anew, its unfinished rollout is dropped"
        tell(
            "learner", float(wall[len(wall) // 3]), 1, "worker_restart", message + " (1 in a row)", "warning", worker=1
        )
    if state == "failed":
        tell("learner", last, number, "diverged", "loss/policy became NaN at update 1,204", "error")
        write_json(layout.error("learner"), {"kind": "DivergedError", "exit_code": 4, "message": "loss/policy is NaN"})
    best = -math.inf
    for row in read(layout.evals):
        if row["kind"] == "full" and row["return_mean"] > best:
            best = row["return_mean"]
            at = row["time/wall"] + row["time/eval_seconds"]
            message = f"best {best:.1f} at {row['steps']:,} steps"
            tell("evaluator", min(at, last), row["attempt"], "best", message, steps=row["steps"])
    for process, told in rows.items():
        told.sort(key=lambda row: float(row["time"]))
        write_text(layout.events(process), "".join(encode(row) + "\n" for row in told))
    write_text(layout.output("learner"), "pybox2d: contact solver warm-started\nwalker: terrain seed 17 loaded\n")


def write_processes(
    layout: RunLayout, steps: int, seconds: float, started: float, at: float, state: str, workers: int, gpu: bool
) -> None:
    """Heartbeats of a run that started at `started`, seen at `at`."""
    beat = {"started": started, "idle_seconds": 0.02, "time": at}
    phases = {"paused": "paused", "finished": "done", "interrupted": "stopped", "failed": "update"}
    phase = phases.get(state, "update")
    facts = {"steps": steps, "version": steps // STEPS_PER_ROW + 1, "seconds": round(seconds, 1), "device": "cpu"}
    write_json(layout.process("learner"), {
        "pid": 4243, "phase": phase, "rss_bytes": 401_000_000, "cpu_percent": 148.0, **beat, **facts,
    })  # fmt: skip
    over = state not in LIVE and state != "dead"
    write_json(layout.process("evaluator"), {
        "pid": 4244, "phase": "left" if over else "waiting", "rss_bytes": 322_000_000, "cpu_percent": 12.0, **beat,
        "time": at - 0.4,
    })  # fmt: skip
    for i in range(workers):
        write_json(layout.process(f"worker-{i}"), {
            "pid": 4300 + i, "phase": "env step", "rss_bytes": 180_000_000 + 3_000_000 * i, "cpu_percent": 93.0 - i,
            **beat, "time": at - 0.1 * i,
        })  # fmt: skip
    if gpu:
        write_json(layout.process("gpu"), {"time": at, "gpus": [{
            "name": "NVIDIA H100 80GB HBM3", "utilization": 71, "memory_used_bytes": 9_400_000_000,
            "memory_total_bytes": 85_520_809_984, "temperature": 54,
        }]})  # fmt: skip
