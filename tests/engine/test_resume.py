"""Resuming is exact: killed and resumed runs end with the bits of a run that nobody touched."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.plan import Plan
from erlcli.engine.verify import newest_stretch
from erlcli.errors import RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import Curve

ENV = Path(__file__).parent / "envs" / "faulty.py"
PATIENCE = 90.0
TOTAL = 6_400
RECIPE = f"""
[train]
total_steps = {TOTAL}
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
name = "ppo"
rollout_length = 32
batch_size = 64
epochs = 2
learning_rate = {{ kind = "linear", start = 1e-2, end = 0.0 }}
[eval]
episodes = 4
probe_episodes = 2
every_steps = 3_200
[checkpoint]
every_steps = 1_280
keep = 100
[log]
tensorboard = false
"""
SETTINGS = {
    "inline": [],
    "two_workers": ["--set", "engine.workers=2", "--set", "engine.compile=on"],
    "compiled": ["--set", "engine.compile=on"],
    "two_workers_lag": ["--set", "engine.workers=2", "--set", "engine.lag=1"],
}


def erl(*arguments, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "erlcli", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def train(folder, name, settings, *more):
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    erl("train", recipe, "--run-dir", folder / name, *SETTINGS[settings], *more)
    return RunLayout(folder / name)


# With workers and lag most can differ; the others take a minute each. `test_resume_replay.py` is inline.
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("inline", "two_workers", "compiled")]


@pytest.fixture(scope="module", params=["two_workers_lag", *OTHERS])
def untouched(request, tmp_path_factory):
    return request.param, train(tmp_path_factory.mktemp("run"), "untouched", request.param)


SHORT = ("--set", "train.total_steps=1280")
ENDLESS = ("--set", "train.total_steps=1_000_000_000", "--set", "engine.compile=off")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run that has come to its end; to be left as it is."""
    return train(tmp_path_factory.mktemp("run"), "short", "inline", *SHORT)


def rows(layout):
    curve = Curve(layout.metrics)
    curve.refresh()
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k != "attempt"} for row in curve.rows]


def last(layout):
    saved = checkpoint.load(checkpoint.numbered(layout)[-1])
    return checkpoint.flatten({"policy": saved.policy, "learner": saved.learner})[0]


def assert_same(one, two):
    assert rows(one) == rows(two)
    a, b = last(one), last(two)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_killed_and_resumed_equals_untouched(untouched, tmp_path):
    settings, reference = untouched
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    layout = RunLayout(tmp_path / "killed")
    command = [sys.executable, "-m", "erlcli", "train", str(recipe), "--run-dir", str(layout.root), *SETTINGS[settings]]
    draw = random.Random(7)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kill_at(process, layout, draw.randrange(500, 3000))
        command = [sys.executable, "-m", "erlcli", "resume", str(layout.root)]
    done = erl("resume", layout.root, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(reference, layout)


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


def test_verify(untouched):
    _, layout = untouched
    before = sorted(str(p) for p in layout.root.rglob("*"))
    verdict = json.loads(erl("resume", layout.root, "--verify", "--json").stdout)
    assert verdict["equal"] and verdict["rows"] == 10
    assert verdict["to_steps"] - verdict["from_steps"] == 1_280
    assert sorted(str(p) for p in layout.root.rglob("*")) == before


def test_verify_sees_a_difference(untouched, tmp_path):
    """The end of the stretch with one bit changed, and a manifest that agrees with it."""
    _, layout = untouched
    copy = RunLayout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root, symlinks=True)
    path = newest_stretch(copy)[1].path
    saved = checkpoint.load(path)
    saved.policy["network.0.bias"][0] += 1e-7
    checkpoint.save(path, saved)
    verdict = json.loads(erl("resume", copy.root, "--verify", "--json", check=False).stdout)
    assert not verdict["equal"]
    assert verdict["differing_tensors"] == ["policy/network.0.bias"]
    assert verdict["differing_rows"] == []


@pytest.mark.slow
def test_same_seed_same_rows(untouched, tmp_path):
    settings, reference = untouched
    assert_same(reference, train(tmp_path, "again", settings))


@pytest.mark.slow
def test_another_seed_other_rows(short, tmp_path):
    assert rows(short)[-1] != rows(train(tmp_path, "two", "inline", "--seed", "2", *SHORT))[-1]


def test_extended_run_goes_on(short, tmp_path):
    layout = RunLayout(shutil.copytree(short.root, tmp_path / "run", symlinks=True))
    assert "nothing is left to do" in erl("resume", layout.root).stdout
    assert json.loads(erl("resume", layout.root, "--json").stdout)["state"] == "finished"
    before = layout.recipe.read_bytes()
    assert "has used its budget" in erl("resume", layout.root, "--set", "train.total_steps=256").stdout
    assert layout.recipe.read_bytes() == before
    erl("resume", layout.root, "--set", "train.total_steps=2560")
    assert [row["steps"] for row in rows(layout)] == list(range(128, 2561, 128))
    assert load(layout.recipe).train.total_steps == 2560


@pytest.mark.parametrize(
    "change",
    [
        "env.num_envs=8",
        "network.hidden=[16]",
        "network.share_trunk=true",
        "normalize.obs=false",
        "algorithm.squash=true",
    ],
)
def test_what_checkpoints_are_made_for_stays(short, change):
    before = short.recipe.read_text()
    done = erl("resume", short.root, "--set", "train.total_steps=2560", "--set", change, check=False)
    assert done.returncode == 2
    assert change.split("=")[0] in done.stderr and "new run" in done.stderr
    assert short.recipe.read_text() == before


@pytest.mark.parametrize("way", ["override", "file"])
def test_a_run_does_not_go_on_in_other_spaces(short, tmp_path, way):
    """Nor does a try leave anything behind that would keep the run from going on."""
    layout = RunLayout(shutil.copytree(short.root, tmp_path / "run", symlinks=True))
    wrappers = 'env.wrappers=[{path="gymnasium.wrappers:FrameStackObservation", kwargs={stack_size=2}}]'
    changes = ["train.total_steps=2560", wrappers]
    if way == "file":
        layout.recipe.write_text(dump(load(layout.recipe, changes)))
        changes = []
    spec, recipe = layout.spec.read_bytes(), layout.recipe.read_bytes()
    done = erl("resume", layout.root, *(word for change in changes for word in ("--set", change)), check=False)
    assert done.returncode == 2
    assert "another observation space than the run's checkpoints" in done.stderr
    assert "[3]" in done.stderr and "[2, 3]" in done.stderr
    assert (layout.spec.read_bytes(), layout.recipe.read_bytes()) == (spec, recipe)


@pytest.mark.slow
def test_reached_target_ends_the_run_and_does_not_end_it_twice(tmp_path):
    reachable = ["--set", "train.target_return=0.0", "--set", "eval.every_steps=1280"]
    layout = train(tmp_path, "run", "inline", *reachable, *ENDLESS)
    assert json.loads(layout.status.read_text())["target_reached"]
    reached = steps_of(layout)
    assert "reached its target" in erl("resume", layout.root).stdout
    erl("resume", layout.root, "--set", f"train.total_steps={reached + 5000}")
    assert steps_of(layout) >= reached + 5000


def test_nothing_to_verify(short, tmp_path):
    layout = RunLayout(shutil.copytree(short.root, tmp_path / "run", symlinks=True))
    for path in checkpoint.numbered(layout)[1:]:
        shutil.rmtree(path)
    with pytest.raises(RecipeError, match="nothing to verify"):
        newest_stretch(layout)
    assert erl("resume", layout.root, "--verify", check=False).returncode == 2


def test_a_stretch_does_not_lead_over_a_point_that_somebody_went_on_from(tmp_path):
    """Of a run that was interrupted off the grid and resumed: other numbers were drawn from there on."""
    layout = RunLayout(tmp_path / "run")
    layout.create()
    for steps, planned, attempt in ((100, True, 1), (200, True, 1), (250, False, 1), (300, True, 2)):
        state = {"steps": steps, "version": steps, "attempt": attempt, "planned": planned}
        checkpoint.save(layout.checkpoints / checkpoint.name_of(steps), Checkpoint({}, {}, state))
        if steps in (200, 250):  # a point off the grid is no obstacle while nobody has gone on from it
            assert [point.steps for point in newest_stretch(layout)] == [100, 200]
    with pytest.raises(RecipeError, match="nothing to verify"):
        newest_stretch(layout)
    state |= {"steps": 400, "version": 400}
    checkpoint.save(layout.checkpoints / checkpoint.name_of(400), Checkpoint({}, {}, state))
    assert [point.steps for point in newest_stretch(layout)] == [300, 400]


def test_plan_counts_iterations(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    recipe = load(tmp_path / "recipe.toml")
    assert Plan.of(recipe) == Plan(log=1, snapshot=25, checkpoint=10)
    long = load(tmp_path / "recipe.toml", ["train.total_steps=12_800_000", 'eval.every_steps="auto"'])
    assert Plan.of(long).log == 20 and Plan.of(long).snapshot == 2_000
