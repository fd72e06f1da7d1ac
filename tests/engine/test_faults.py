"""Environments and processes that fail in the middle of real runs: named, bounded, and never trained on."""

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from erlcli.engine import checkpoint, forks
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned

FAULTY = Path(__file__).parent / "envs" / "faulty.py"
PATIENCE = 90.0  # seconds until a test gives up on an event; events come within a few
SLOW = [pytest.mark.slow]

RECIPE = """
[train]
total_steps = {total}
[env]
id = "{env}:Faulty"
num_envs = 4
kwargs = {kwargs}
[network]
hidden = [8]
[algorithm]
name = "ppo"
rollout_length = 32
batch_size = 64
epochs = 1
[engine]
workers = {workers}
hang_seconds = 10
max_restarts = {restarts}
compile = "off"
[eval]
episodes = 4
probe_episodes = 4
every_steps = 1_000_000_000
[checkpoint]
every_steps = 640
[log]
every = 1
tensorboard = false
"""


def toml_table(values):
    return "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.items()) + " }"


class Run:
    """A run in a process of its own."""

    def __init__(self, tmp_path, *, total=2560, workers=0, restarts=2, **kwargs):
        self.layout = RunLayout(tmp_path / "run")
        recipe = tmp_path / "faulty.toml"
        recipe.write_text(
            RECIPE.format(total=total, env=FAULTY, kwargs=toml_table(kwargs), workers=workers, restarts=restarts)
        )
        self.start("train", str(recipe), "--run-dir", str(self.layout.root))

    def start(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "erlcli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def resume(self):
        self.start("resume", str(self.layout.root))
        return self

    def end(self):
        """Exit code, stdout and stderr; nothing of it may be left behind."""
        out, err = self.process.communicate(timeout=PATIENCE)
        wait_for(lambda: not processes_of(self.layout), "leftover processes")
        return self.process.returncode, out, err

    def events(self, name):
        return [
            row for path in (self.layout.root / "events").glob("*.jsonl") for row in read(path) if row["event"] == name
        ]

    def steps(self):
        rows = read(self.layout.metrics)
        return rows[-1]["steps"] if rows else 0

    def pid(self, process):
        return json.loads(self.layout.process(process).read_text())["pid"]


def processes_of(layout):
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if str(layout.root) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for: {what}")


def assert_placed(event):
    """The failure names env, seed and step: step 200 is the 40th since the last checkpoint."""
    index, seed = event["env_index"], event["seed"]
    assert 0 <= index < 4
    assert event["episode"] == 1 and event["step"] == 20
    assert f"step of env {index} (seed {seed}, episode 1, step 20)" in event["message"]


def assert_clean(run):
    """Metric rows in order, without duplicates or holes."""
    from erlcli.runs.view import Curve

    curve = Curve(run.layout.metrics)
    curve.refresh()
    steps = [row["steps"] for row in curve.rows]
    assert steps == list(range(128, steps[-1] + 1, 128))


def cases(**words):
    """`fault, words, workers`: the first in a worker; each other starts many processes for a few lines, and is slow."""
    for number, (fault, said) in enumerate(words.items()):
        for workers in (0, 2):
            yield pytest.param(fault, said, workers, id=f"{fault}-{workers}", marks=SLOW * (number > 0 or not workers))


FAILS = {
    "raise": "lost its marbles",
    "nan_obs": "NaN or infinite observation",
    "wrong_shape": "shape (4,)",
    "inf_reward": "reward of inf",
    "text_reward": "no finite number",
}
EXITS = {"exit_0": "code 0", "exit": "code 7", "sys_exit": "sys.exit"}
ENDS = {"segfault": "SIGSEGV", "exit": "code 7"}


@pytest.mark.parametrize(("fault", "words", "workers"), cases(**FAILS))
def test_env_that_fails_always_is_named_and_bounded(tmp_path, fault, words, workers):
    run = Run(tmp_path, fault=fault, workers=workers)
    code, _, err = run.end()
    assert code == 3
    assert words in err and "seed" in err and "step" in err
    assert "Traceback" not in err
    assert len(run.events("env_restart") + run.events("worker_restart")) <= 2 * 2
    row = json.loads(run.layout.error("learner").read_text())
    assert {"env_index", "seed", "step"} <= row["details"].keys()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=SLOW), 2])
def test_env_that_raises_once_is_healed(tmp_path, workers):
    run = Run(tmp_path, fault="raise", once=str(tmp_path / "flag"), workers=workers)
    code, _, err = run.end()
    assert code == 0, err
    assert len(run.events("env_restart") + run.events("worker_restart")) == 1
    assert run.steps() == 2560
    assert_clean(run)


@pytest.mark.parametrize(("fault", "words", "workers"), cases(**ENDS))
def test_env_that_ends_its_process_once_is_healed(tmp_path, fault, words, workers):
    run = Run(tmp_path, fault=fault, once=str(tmp_path / "flag"), workers=workers, at=200)
    code, _, err = run.end()
    assert code == 0, err
    restarts = run.events("learner_restart") + run.events("worker_restart")
    assert len(restarts) == 1
    assert_placed(restarts[0])
    assert words in restarts[0]["message"]
    assert "goodbye" in restarts[0]["found"] or fault == "segfault"
    assert run.steps() == 2560
    assert_clean(run)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=SLOW)])
def test_env_that_hangs_once_is_named_with_its_stack_and_healed(tmp_path, workers):
    run = Run(tmp_path, fault="hang", once=str(tmp_path / "flag"), workers=workers, at=200)
    code, _, err = run.end()
    assert code == 0, err
    (restart,) = run.events("learner_restart") + run.events("worker_restart")
    assert "hangs in step of env" in restart["message"]
    assert_placed(restart)
    assert "faulty.py" in restart["found"]
    assert run.steps() == 2560


@pytest.mark.slow
def test_env_that_hangs_in_evaluation_ends_the_run(tmp_path):
    run = Run(tmp_path, fault="hang", only_process="evaluator", at=10, restarts=1)
    code, _, err = run.end()
    assert code == 3
    assert "evaluator hangs in step of env" in err and "faulty.py" in err
    assert len(run.events("evaluator_restart")) == 1


@pytest.mark.parametrize(("fault", "words", "workers"), cases(**EXITS))
def test_env_that_always_exits_ends_the_run(tmp_path, fault, words, workers):
    run = Run(tmp_path, fault=fault, workers=workers, restarts=1)
    code, _, err = run.end()
    assert code == 3
    assert words in err
    assert "goodbye" in err or fault == "sys_exit"


def test_env_that_fails_at_reset(tmp_path):
    run = Run(tmp_path, fault="raise", where="reset", at=0)
    code, _, err = run.end()
    assert code == 3 and "reset of env 0" in err


@pytest.mark.parametrize("role", ["learner", *(pytest.param(role, marks=SLOW) for role in ("evaluator", "worker-1"))])
def test_killed_children_heal(tmp_path, role):
    run = Run(tmp_path, total=12_800, workers=2)
    wait_for(lambda: run.steps() >= 1280, "training")
    wait_for(lambda: run.layout.process(role).exists(), role)
    os.kill(run.pid(role), signal.SIGKILL)
    code, _, err = run.end()
    assert code == 0, err
    (restart,) = run.events(f"{role.split('-')[0]}_restart")
    assert "SIGKILL" in restart["message"]
    assert run.steps() == 12_800
    assert_clean(run)


@pytest.mark.skipif(not forks.possible(), reason="no forks on this system")
def test_a_killed_fork_server_heals(tmp_path):
    """All processes of the run go with it, and come back."""
    run = Run(tmp_path, total=12_800, workers=2)
    wait_for(lambda: run.steps() >= 1280, "training")
    learner = psutil.Process(run.pid("learner"))
    learner.parent().kill()
    code, _, err = run.end()
    assert code == 0, err
    (restart,) = run.events("learner_restart")
    assert "SIGKILL" in restart["message"]
    assert not learner.is_running() and run.pid("learner") != learner.pid
    assert run.steps() == 12_800
    assert_clean(run)


def test_killed_supervisor_needs_one_resume(tmp_path):
    run = Run(tmp_path, total=19_200, workers=2)
    wait_for(lambda: run.steps() >= 1280, "training")
    run.process.kill()
    run.process.communicate()
    wait_for(lambda: not processes_of(run.layout), "orphans that leave")
    wait_for(lambda: not is_owned(run.layout.lock), "the lock")  # a process closes its files after its memory
    reached = run.steps()
    code, _, err = run.resume().end()
    assert code == 0, err
    assert run.steps() == 19_200 > reached
    assert_clean(run)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(number, marks=SLOW) for number in (signal.SIGINT, signal.SIGHUP))]
)
def test_one_signal_leaves_a_checkpoint(tmp_path, number):
    run = Run(tmp_path, total=10_000_000)
    wait_for(lambda: run.steps() >= 1280, "training")
    run.process.send_signal(number)
    code, out, err = run.end()
    assert code == 130, err
    assert "erl resume" in out
    newest = max(int(p.name) for p in run.layout.checkpoints.glob("[0-9]*"))
    assert newest >= run.steps()
    assert not is_owned(run.layout.lock)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=SLOW), 1])
def test_a_signal_to_every_process_leaves_a_checkpoint(tmp_path, workers):
    """As batch systems send it at the end of a job's time."""
    run = Run(tmp_path, total=10_000_000, workers=workers)
    wait_for(lambda: run.steps() >= 1280, "training")
    owner = psutil.Process(run.process.pid)
    for process in [*owner.children(recursive=True), owner]:
        process.terminate()
    code, out, err = run.end()
    assert code == 130, err
    assert "erl resume" in out
    assert max(int(p.name) for p in run.layout.checkpoints.glob("[0-9]*")) >= run.steps()


def test_second_signal_leaves_at_once(tmp_path):
    run = Run(tmp_path, total=10_000_000, fault="hang", at=300)
    wait_for(lambda: run.steps() >= 640, "training")
    run.process.send_signal(signal.SIGINT)
    wait_for(lambda: json.loads(run.layout.status.read_text())["state"] == "stopping", "stopping")
    run.process.send_signal(signal.SIGINT)
    code, _, _ = run.end()
    assert code == 130


def test_one_owner(tmp_path):
    run = Run(tmp_path, total=10_000_000)
    wait_for(lambda: run.steps() >= 128, "training")
    second = subprocess.run(
        [sys.executable, "-m", "erlcli", "resume", str(run.layout.root)], capture_output=True, text=True
    )
    assert second.returncode == 5
    assert str(run.process.pid) in second.stderr and "erl stop" in second.stderr
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes runs of 1280 steps that have come to their end."""
    folder = tmp_path_factory.mktemp("finished")
    run = Run(folder, total=1280)
    assert run.end()[0] == 0

    def make(path):
        shutil.copytree(folder, path, symlinks=True, dirs_exist_ok=True)
        copied = copy.copy(run)
        copied.layout = RunLayout(path / "run")
        return copied

    return make


def test_damaged_newest_checkpoint_falls_back(finished, tmp_path):
    run = finished(tmp_path)
    paths = sorted(p for p in run.layout.checkpoints.glob("[0-9]*"))
    with (paths[-1] / "learner.safetensors").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    run.start("resume", str(run.layout.root), "--set", "train.total_steps=2560")
    code, _, err = run.end()
    assert code == 0, err
    assert run.events("damaged_checkpoint")
    assert run.steps() == 2560
    assert_clean(run)


def test_no_whole_checkpoint(finished, tmp_path):
    run = finished(tmp_path)
    for path in run.layout.checkpoints.glob("[0-9]*/state.json"):
        path.write_text("{}")
    run.start("resume", str(run.layout.root), "--set", "train.total_steps=2560")
    code, _, err = run.end()
    assert code == 6
    assert "no checkpoint is whole" in err


def test_divergence_is_named_and_the_last_checkpoint_is_good(tmp_path):
    run = Run(tmp_path, total=64_000, fault="huge_reward", at=300)
    code, out, err = run.end()
    assert code == 4
    assert "diverged" in err and "not finite" in err and "learning_rate" in err
    assert "erl resume" in out
    newest = sorted(run.layout.checkpoints.glob("[0-9]*"))[-1]
    saved = checkpoint.load(newest)
    assert all(bool(torch.isfinite(t).all()) for t in saved.policy.values() if t.is_floating_point())
    assert 0 < int(newest.name) <= 1280


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_full_disk_is_told_and_costs_no_checkpoint(small_disk, tmp_path):
    run = Run(small_disk, total=1280)
    assert run.end()[0] == 0
    before = sorted(run.layout.checkpoints.glob("[0-9]*"))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    run.start("resume", str(run.layout.root))
    code, _, err = run.end()
    assert code == 0  # nothing is left to do, and nothing has to be written for that
    run.start("resume", str(run.layout.root), "--set", "train.total_steps=2560")
    code, _, err = run.end()
    assert code == 1
    assert "o space left on" in err and "Traceback" not in err
    assert [p for p in before if p.exists()] == before
    filler.unlink()
    run.start("resume", str(run.layout.root), "--set", "train.total_steps=2560")
    code, _, err = run.end()
    assert code == 0, err
    assert run.steps() == 2560
    assert_clean(run)


BAD = {
    "unknown env": (["env.id=CartPol-v1"], "CartPole-v1"),
    "unknown file": (["env.id=./nowhere.py:Env"], "nowhere.py"),
    "unknown class": ([f"env.id={FAULTY}:Fault"], "Faulty"),
    "env argument": (["env.kwargs={ no_such = 1 }"], "no_such"),
    "big batch": (["algorithm.batch_size=1000"], "algorithm.batch_size"),
    "small budget": (["train.total_steps=10"], "train.total_steps"),
    "uneven workers": (["engine.workers=3"], "engine.workers"),
    "lag without workers": (["engine.lag=1"], "engine.lag"),
    "no such device": (["train.device=cuda:9"], "train.device"),
    "action space": (["env.wrappers=['./actions.py:NoActions']"], "action space"),
    "backend without the id": (["env.backend=envpool"], "envpool"),
}


# What a recipe alone shows is told at once, the rest by a learner, which takes seconds to start.
BY_THE_LEARNER = ("unknown file", "unknown class", "env argument", "no such device", "action space",
                  "backend without the id")  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, marks=SLOW * (case in BY_THE_LEARNER)) for case in BAD])
def test_what_can_not_be_trained_leaves_nothing(tmp_path, case):
    overrides, words = BAD[case]
    (tmp_path / "actions.py").write_text(
        "import gymnasium\nclass NoActions(gymnasium.Wrapper):\n    action_space = gymnasium.spaces.Text(4)\n"
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(total=2560, env=FAULTY, kwargs="{}", workers=0, restarts=1))
    command = [sys.executable, "-m", "erlcli", "train", str(recipe), "--run-dir", str(tmp_path / "run")]
    for override in overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_run_directories_that_exist_or_can_not_be_made(finished, tmp_path):
    run = finished(tmp_path)
    before = sorted(p for p in run.layout.root.rglob("*"))
    run.start("train", str(tmp_path / "faulty.toml"), "--run-dir", str(run.layout.root))
    code, _, err = run.end()
    assert code == 2 and "erl resume" in err
    assert sorted(p for p in run.layout.root.rglob("*")) == before
    run.start("train", str(tmp_path / "faulty.toml"), "--run-dir", "/proc/erl/run")
    code, _, err = run.end()
    assert code == 2 and "/proc/erl/run" in err and "--run-dir" in err
