"""Resuming is exact with a replay too: killed and resumed runs end with the bits of a run that nobody touched."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from erlcli.engine import checkpoint
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import Curve

ENV = Path(__file__).parent / "envs" / "faulty.py"
PATIENCE = 90.0
RECIPE = f"""
[train]
total_steps = 6_400
seed = 5
[env]
id = "{ENV}:Faulty"
num_envs = 4
[network]
hidden = [8]
[normalize]
obs = true
reward = true
[algorithm]
name = "d3qn"
rollout_length = 8
batch_size = 16
n_step = 3
warmup_steps = 200
updates_per_step = 0.3
target_interval = 7
replay = {{ capacity = 1_500, prioritized = true }}
[eval]
episodes = 4
probe_episodes = 2
every_steps = 3_200
[checkpoint]
every_steps = 640
keep = 100
[log]
tensorboard = false
"""
SETTINGS = {"inline": [], "two_workers_lag": ["--set", "engine.workers=2", "--set", "engine.lag=1"]}


def erl(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "erlcli", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS if name != "inline"]


@pytest.fixture(scope="module", params=["inline", *OTHERS])
def untouched(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.toml").write_text(RECIPE)
    erl("train", folder / "recipe.toml", "--run-dir", folder / "untouched", *SETTINGS[request.param])
    return request.param, RunLayout(folder / "untouched")


def rows(layout):
    curve = Curve(layout.metrics)
    curve.refresh()
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k != "attempt"} for row in curve.rows]


def last(layout):
    """Every tensor of the last checkpoint, the replay's rows put together."""
    saved = checkpoint.load(checkpoint.numbered(layout)[-1])
    tensors = checkpoint.flatten({"policy": saved.policy, "learner": saved.learner})[0]
    from erlcli.engine.replay_parts import COLUMNS, read

    parts = [read(part.path) for part in saved.replay]
    return tensors | {
        f"replay/{name}": torch.cat([getattr(part, name)[: len(part.reward)] for part in parts])[-375:]
        for name in COLUMNS
    }


def test_killed_and_resumed_equals_untouched(untouched, tmp_path):
    settings, reference = untouched
    (tmp_path / "recipe.toml").write_text(RECIPE)
    layout = RunLayout(tmp_path / "killed")
    base = [sys.executable, "-m", "erlcli"]
    command = [*base, "train", tmp_path / "recipe.toml", "--run-dir", layout.root, *SETTINGS[settings]]
    draw = random.Random(7)
    for _ in range(2):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kill_at(process, layout, draw.randrange(800, 2000))
        command = [*base, "resume", layout.root]
    erl("resume", layout.root)
    assert rows(reference) == rows(layout)
    a, b = last(reference), last(layout)
    assert a.keys() == b.keys() and len(a["replay/reward"]) == 375
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert not list(layout.checkpoints.glob(".*"))


def kill_at(process, layout, steps):
    """SIGKILL the supervisor, and the learner, which could otherwise still save, once `steps` more are taken."""
    target = steps_of(layout) + steps
    deadline = time.monotonic() + PATIENCE
    while steps_of(layout) < target and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    if process.poll() is None:
        learner = json.loads(layout.process("learner").read_text())["pid"]
        process.kill()
        os.kill(learner, signal.SIGKILL)
    process.wait()


def steps_of(layout):
    curve = Curve(layout.metrics)
    curve.refresh()
    return curve.rows[-1]["steps"] if curve.rows else 0


def test_verify_compares_the_replay_too(untouched):
    _, layout = untouched
    verdict = json.loads(erl("resume", layout.root, "--verify", "--json"))
    assert verdict["equal"] and verdict["rows"] == 20


def test_the_curve_tells_of_warm_up_and_updates(untouched):
    """0.3 updates a step, from step 200 on: floor(0.3 * (steps - 200))."""
    _, layout = untouched
    for row in rows(layout):
        assert row["updates"] == max(0, (row["steps"] - 200) * 3 // 10)
        assert row["replay/size"] == min(row["steps"], 1500)


def test_a_replay_that_does_not_fit_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    arguments = ["train", tmp_path / "recipe.toml", "--run-dir", tmp_path / "run"]
    arguments += ["--set", "algorithm.replay.capacity=2_000_000_000"]
    done = subprocess.run(
        [sys.executable, "-m", "erlcli", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert "algorithm.replay.capacity" in done.stderr and "GiB" in done.stderr
    assert not (tmp_path / "run").exists()
