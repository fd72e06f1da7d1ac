"""Runs with two learners: exact over kills, stops and resumes; nothing is left behind, whichever process dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import HashStore

from erlcli.engine import build, checkpoint
from erlcli.engine.group import agree
from erlcli.engine.learners import Departure, Learners
from erlcli.engine.member import Member
from erlcli.errors import EnvError, PeerLostError, RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.load import load, read_toml
from erlcli.recipe.tournament import check_tournament
from erlcli.runs.jsonl import read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import Curve

ENV = Path(__file__).parent / "envs" / "faulty.py"
PATIENCE = 300.0  # seconds until a test gives up on an event; events come within a few
TOTAL = 5_120
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
target_kl = 0.05
[engine]
learners = 2
hang_seconds = 5
[eval]
episodes = 2
probe_episodes = 2
every_steps = 1_000_000_000
[checkpoint]
every_steps = 640
keep = 100
[log]
tensorboard = false
"""


def recipe(folder):
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return path


def erl(*arguments, check=True):
    command = [sys.executable, "-m", "erlcli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not check or done.returncode == 0, done.stderr
    return done


def start(*command):
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def train(folder, *settings):
    layout = RunLayout(folder / "run")
    return layout, start(sys.executable, "-m", "erlcli", "train", recipe(folder), "--run-dir", layout.root, *settings)


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)


def steps_of(layout):
    rows = read(layout.metrics)
    return rows[-1]["steps"] if rows else 0


def pid(layout, process):
    return read_json(layout.process(process))["pid"]


def left_behind(layout):
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if str(layout.root) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(command))
    return found


def end(layout, process):
    """Exit code and stderr; nothing of it may be left behind."""
    _, err = process.communicate(timeout=PATIENCE)
    wait_for(lambda: not left_behind(layout), "leftover processes")
    return process.returncode, err


def events(layout, name):
    return [row for path in (layout.root / "events").glob("*.jsonl") for row in read(path) if row["event"] == name]


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
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    layout, process = train(tmp_path_factory.mktemp("untouched"))
    code, err = end(layout, process)
    assert code == 0, err
    return layout


def test_a_run_is_written_once_and_steps_are_those_of_all(untouched):
    assert [row["steps"] for row in read(untouched.metrics)] == list(range(128, TOTAL + 1, 128))
    assert rows(untouched)[-1]["episodes"] == TOTAL // 20  # of 20 steps each, restart points fall between them
    assert not events(untouched, "learner_restart")
    (started,) = events(untouched, "started")
    assert "2 learners" in started["message"] and started["process"] == "learner"
    assert {path.stem for path in (untouched.root / "processes").glob("*.json")} >= {"learner", "learner-1"}
    assert read_json(untouched.process("learner-1"))["phase"] == "done"


@pytest.mark.slow
def test_verify_trains_with_both_again(untouched):
    verdict = json.loads(erl("resume", untouched.root, "--verify", "--json").stdout)
    assert verdict["equal"] and verdict["rows"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["learner", "learner-1"])
def test_a_killed_learner_costs_nothing_but_time(untouched, tmp_path, victim):
    layout, process = train(tmp_path)
    wait_for(lambda: steps_of(layout) > 1_500, "steps")
    os.kill(pid(layout, victim), signal.SIGKILL)
    code, err = end(layout, process)
    assert code == 0, err
    (restart,) = events(layout, "learner_restart")
    assert restart["learner"] == victim and "SIGKILL" in restart["message"]
    assert_same(untouched, layout)


@pytest.mark.slow
def test_a_killed_supervisor_takes_all_with_it(untouched, tmp_path):
    layout, process = train(tmp_path)
    wait_for(lambda: steps_of(layout) > 700, "steps")
    pids = [pid(layout, name) for name in ("learner", "learner-1")]
    process.kill()
    for number in pids:  # or they would save a checkpoint that the other run doesn't pass through
        os.kill(number, signal.SIGKILL)
    end(layout, process)
    assert erl("resume", layout.root).returncode == 0
    assert_same(untouched, layout)


@pytest.mark.slow
def test_a_stopped_learner_is_found_by_its_silence(tmp_path):
    layout, process = train(tmp_path)
    wait_for(lambda: steps_of(layout) > 300, "steps")
    os.kill(pid(layout, "learner-1"), signal.SIGSTOP)
    code, err = end(layout, process)
    assert code == 0, err
    (restart,) = events(layout, "learner_restart")
    assert restart["learner"] == "learner-1" and "for more than 5 s" in restart["message"]
    assert steps_of(layout) == TOTAL


@pytest.mark.slow
def test_a_request_to_stop_reaches_all_at_once_and_one_learner_can_go_on(tmp_path):
    layout, process = train(tmp_path, "--set", "train.total_steps=1_000_000_000", "--set", "engine.compile=off")
    wait_for(lambda: steps_of(layout) > 300, "steps")
    process.send_signal(signal.SIGINT)
    assert end(layout, process)[0] == 130
    assert not list((layout.root / "errors").glob("*.json"))
    saved = checkpoint.load(checkpoint.numbered(layout)[-1]).state
    assert saved["steps"] == steps_of(layout) and saved["steps"] % 128 == 0
    budget = saved["steps"] + 256
    erl("resume", layout.root, "--set", "engine.learners=1", "--set", f"train.total_steps={budget}")
    assert load(layout.recipe).engine.learners == 1
    assert rows(layout)[-1]["steps"] == budget
    assert not layout.process("learner-1").exists()  # of the earlier attempt


@pytest.mark.slow
def test_an_env_that_fails_always_ends_the_run_with_its_own_words(tmp_path):
    layout, process = train(tmp_path, "--set", 'env.kwargs={fault="raise"}')
    code, err = end(layout, process)
    assert code == 3
    assert "lost its marbles" in err and "Traceback" not in err


@pytest.mark.slow
def test_workers_of_two_learners_change_nothing(untouched, tmp_path):
    layout, process = train(tmp_path, "--set", "engine.workers=1", "--set", "train.total_steps=1280")
    code, err = end(layout, process)
    assert code == 0, err
    assert {path.stem for path in (layout.root / "processes").glob("worker*.json")} == {"worker-0", "worker-1"}
    assert [r["episode/return"] for r in rows(layout)] == [r["episode/return"] for r in rows(untouched)[:10]]
    assert [r["loss/value"] for r in rows(layout)] == [r["loss/value"] for r in rows(untouched)[:10]]


@pytest.mark.slow
def test_torchrun_starts_them_and_starts_them_anew(untouched, tmp_path):
    layout = RunLayout(tmp_path / "run")
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-m", "erlcli"]
    process = start(
        sys.executable,
        "-m",
        *command,
        "train",
        recipe(tmp_path),
        "--run-dir",
        layout.root,
        "--set",
        "engine.learners=1",
    )
    wait_for(lambda: steps_of(layout) > 700, "steps")
    os.kill(pid(layout, "learner-1"), signal.SIGKILL)
    code, err = end(layout, process)
    assert code == 0, err
    assert load(layout.recipe).engine.learners == 2
    assert read_json(layout.status)["state"] == "finished"
    assert_same(untouched, layout)
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command), "resume", layout.root], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.count("nothing is left to do")) == (0, 1), done.stderr


@pytest.mark.slow
def test_two_learners_solve_cartpole(tmp_path):
    layout = RunLayout(tmp_path / "run")
    erl("train", "cartpole_ppo", "--run-dir", layout.root, "--set", "engine.learners=2")
    assert read_json(layout.status)["target_reached"]


def test_what_the_dead_left_in_torchruns_store_does_not_mislead_the_living():
    store, names = HashStore(), []
    store.set("number/1", "of the dead")
    store.set("name/of the dead", "an old group")
    members = [Member(rank, 3, rank, "env://") for rank in range(3)]
    for _ in range(2):  # a restart
        threads = [threading.Thread(target=lambda m=m: names.append(agree(store, m)), daemon=True) for m in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(names) == 6 and "an old group" not in names
    assert len(set(names[:3])) == len(set(names[3:])) == 1 and names[0] != names[3]


class Gone:
    """A child that has left, or that goes on."""

    def __init__(self, name, code):
        self.name, self.code, self.pid = name, code, 1

    def poll(self):
        return self.code

    def wait(self, seconds):
        return self.code


LOST, KILLED = PeerLostError.exit_code, -9


@pytest.mark.parametrize(
    ("codes", "phases", "told", "expected"),
    [
        ((None, None), ("env step",) * 2, None, None),
        ((KILLED, None), ("env step",) * 2, None, Departure("learner", KILLED)),
        ((LOST, KILLED), ("update",) * 2, None, Departure("learner-1", KILLED)),
        ((LOST, 0), ("update", "env step"), None, Departure("learner-1", 0)),  # os._exit(0) in an env
        ((LOST, None), ("update",) * 2, None, None),  # until the culprit is found, or for a while
        ((LOST, None), ("update",) * 2, "learner-1", Departure("learner-1", 3)),  # on another machine
        ((4, 4), ("update",) * 2, None, Departure("learner", 4)),
        ((1, 3), ("update",) * 2, "learner-1", Departure("learner-1", 3)),
        ((0, None), ("done", "checkpoint"), None, None),
        ((0, 0), ("done", "done"), None, Departure("learner", 0, done=True)),
        ((0, 0), ("stopped", "stopped"), None, Departure("learner", 0, done=True)),
    ],
)
def test_the_one_that_failed_decides(tmp_path, codes, phases, told, expected):
    layout = RunLayout(tmp_path)
    members = [Member(rank, 2, rank, "file:///x") for rank in range(2)]
    learners = Learners(layout, members, 0)
    learners._children = [Gone(member.name, code) for member, code in zip(members, codes, strict=True)]
    for member, phase in zip(members, phases, strict=True):
        write_json(layout.process(member.name), {"pid": 1, "phase": phase, "time": 0.0})
    if told is not None:
        write_json(layout.error(told), EnvError("it broke").to_json())
    assert learners.wait(0.0) == expected


def test_after_a_while_one_that_has_lost_the_others_is_taken_for_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("erlcli.engine.learners.BLAME_SECONDS", -1.0)
    learners = Learners(RunLayout(tmp_path), [Member(0, 2), Member(1, 2)], 0)
    learners._children = [Gone("learner", None), Gone("learner-1", LOST)]
    assert learners.wait(0.0) == Departure("learner-1", LOST)


def test_every_learner_takes_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [str(build.device("auto", n)) for n in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert str(build.device("cuda:1", 1)) == "cuda:2"
    assert str(build.device("cpu", 1)) == "cpu"
    assert str(build.device("auto")) == "cuda:0"
    with pytest.raises(RecipeError, match="more learners than GPUs"):
        build.device("cuda:1", 2)


def test_a_tournament_has_members_with_one_learner(tmp_path):
    text = read_toml(shipped.find("tournament_cartpole"))
    text["engine"] = {**text.get("engine", {}), "learners": 2}
    with pytest.raises(RecipeError, match=r"engine.learners: a member of a tournament has one learner"):
        check_tournament(text, "test")


def test_a_member_survives_the_command_line():
    for member in (Member(), Member(3, 8, 1, "env://"), Member(1, 2, 1, "file:///tmp/a b@c/1")):
        assert Member.from_argument(member.to_argument()) == member
    assert (Member().name, Member(2, 3).name) == ("learner", "learner-2")
