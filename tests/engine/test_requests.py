"""Requests to a run while it trains: answered between two rollouts, refused where they make no sense."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from erlcli.core.types import FinalObs, Rollout
from erlcli.engine import checkpoint, requests
from erlcli.engine.collector import Timing
from erlcli.engine.learner import StopFlag
from erlcli.engine.loop import Loop
from erlcli.engine.requests import Requests, changed
from erlcli.engine.supervisor import Supervisor
from erlcli.engine.verify import newest_stretch, verify
from erlcli.errors import RecipeError
from erlcli.recipe.load import dump, load, validate
from erlcli.runs import control
from erlcli.runs.jsonl import read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.view import Curve, RunView
from erlcli.runs.writer import EventLog, Heartbeat

ENV = Path(__file__).parent / "envs" / "faulty.py"
PATIENCE = 90.0
T, N = 4, 2


class Learner:
    """An algorithm that remembers the learning rate of each update."""

    updates = 0

    replay = None

    def __init__(self, config):
        self.config = config
        self.policy = torch.nn.Linear(1, 1)
        self.rates, self.seeds = [], []

    def update(self, rollout, progress, following=None):
        self.updates += 1
        self.rates.append(self.config.learning_rate(progress))
        return {"schedule/learning_rate": self.rates[-1]}

    def settle(self):
        pass

    def restart(self, seed):
        self.seeds.append(seed)

    def set_acting(self, progress):
        return {}

    def state_dict(self):
        return {"n": self.updates}

    def load_state_dict(self, state):
        self.updates = state["n"]


class Source:
    """A sampler of empty rollouts that calls `then[k]` while it collects rollout k."""

    timing = Timing()

    def __init__(self):
        self.then, self.given, self.restarts = {}, 0, []

    def restart(self, policy, version, seed, rollouts):
        self.restarts.append((version, rollouts))

    def recv(self):
        self.then.get(self.given, lambda: None)()
        self.given += 1
        return Rollout(
            torch.zeros(T + 1, N, 1),
            torch.zeros(T, N, 1),
            torch.ones(T, N),
            torch.zeros(T, N, dtype=torch.bool),
            torch.zeros(T, N, dtype=torch.bool),
            torch.ones(T, N, dtype=torch.bool),
            FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1)),
            {},
            0,
        )

    def send(self, policy, version):
        pass


RECIPE = {
    "train": {"total_steps": 80},
    "env": {"id": "Any-v0", "num_envs": N},
    "algorithm": {
        "name": "ppo", "rollout_length": T, "batch_size": 8,
        "learning_rate": {"kind": "linear", "start": 1.0, "end": 0.0},
    },
    "checkpoint": {"every_steps": 40, "keep": 100},
    "log": {"every": 1},
}  # fmt: skip


@pytest.fixture
def loop(tmp_path):
    """A run of ten rollouts with planned checkpoints at 0, 40 and 80 steps."""
    layout = RunLayout(tmp_path / "run")
    layout.create()
    recipe = validate(RECIPE, "test")
    layout.recipe.write_text("# What this is.\n" + dump(recipe))
    beat, events = Heartbeat(layout, "learner"), EventLog(layout, "learner", 1)
    made = Loop(layout, recipe, Learner(recipe.algorithm), Source(), beat, events, lambda: False, 1)
    made.requests = Requests(layout, events, threading.Event())
    yield made
    beat.close()


def ask(loop, kind, **facts):
    """A request, and what the thread that watches the folder does then."""
    name = control.request(loop.layout, kind, **facts)
    loop.requests._asked.set()
    return name


def answers(layout):
    return [row for row in read(layout.events("learner")) if row["event"] == "request"]


def answer(layout, name):
    (row,) = [row for row in answers(layout) if row["request"] == name]
    return row


def saved(loop):
    return [int(path.name) for path in checkpoint.numbered(loop.layout)]


def test_a_checkpoint_now(loop):
    names = []
    loop.sampler.then[2] = lambda: names.append(ask(loop, "checkpoint"))
    loop.run()
    assert saved(loop) == [0, 24, 40, 80]
    state = json.loads((loop.layout.checkpoints / checkpoint.name_of(24) / checkpoint.STATE).read_text())
    assert not state["planned"] and state["version"] == 3
    row = answer(loop.layout, names[0])
    assert row["message"] == "checkpoint saved at 24 steps" and row["level"] == "info" and row["steps"] == 24
    assert loop.sampler.restarts == [(0, 5), (5, 5)]  # no restart point


def test_a_checkpoint_where_one_was_just_planned_stays_planned(loop):
    loop.sampler.then[4] = lambda: ask(loop, "checkpoint")
    loop.run()
    state = json.loads((loop.layout.checkpoints / checkpoint.name_of(40) / checkpoint.STATE).read_text())
    assert state["planned"]
    assert answers(loop.layout)[0]["message"] == "checkpoint was saved already at 40 steps"


def test_another_learning_rate_from_the_next_rollout_on(loop):
    names = []
    key = "algorithm.learning_rate"
    loop.sampler.then[2] = lambda: names.append(ask(loop, "set", key=key, value=0.25))
    loop.run()
    assert loop.algorithm.rates == pytest.approx([1.0, 0.9, 0.8] + [0.25] * 7)
    curve = Curve(loop.layout.metrics)
    curve.refresh()
    assert curve.column("schedule/learning_rate")[1][2:4] == pytest.approx([0.8, 0.25])
    row = answer(loop.layout, names[0])
    assert row["message"] == "algorithm.learning_rate set to 0.25, was 0.7 (of a linear schedule), at 24 steps"
    assert (row["key"], row["old"], row["new"]) == (key, pytest.approx(0.7), 0.25)


def test_another_value_is_a_restart_point_of_its_own(loop):
    loop.sampler.then[2] = lambda: ask(loop, "set", key="algorithm.learning_rate", value=0.25)
    loop.run()
    assert saved(loop) == [0, 24, 40, 80]
    assert loop.sampler.restarts == [(0, 5), (3, 2), (5, 5)]
    assert len(set(loop.algorithm.seeds)) == 3
    first, last = newest_stretch(loop.layout)
    assert (first.steps, last.steps) == (40, 80)


def test_nothing_before_a_changed_value_is_repeated_with_it(loop):
    loop.sampler.then[6] = lambda: ask(loop, "set", key="algorithm.learning_rate", value=0.25)
    loop.until = 9
    loop.run()
    assert saved(loop) == [0, 40, 56, 72]  # the last one is not planned
    with pytest.raises(RecipeError, match="nothing to verify"):
        newest_stretch(loop.layout)


def test_the_recipe_of_the_run_says_what_it_trains_with(loop):
    loop.sampler.then[1] = lambda: (
        ask(loop, "set", key="algorithm.learning_rate", value=0.5),
        ask(loop, "set", key="algorithm.entropy_coef", value=0.01),
    )
    loop.run()
    assert loop.layout.recipe.read_text().startswith("# What this is.\n[train]")
    recipe = load(loop.layout.recipe)
    assert recipe.algorithm.learning_rate(0.9) == 0.5 and recipe.algorithm.entropy_coef(0.9) == 0.01
    assert recipe == loop.recipe


def test_whoever_dies_while_a_value_changes_goes_on_as_if_nobody_had_asked(loop, monkeypatch):
    def die(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "write_text", die)
    loop.sampler.then[2] = lambda: ask(loop, "set", key="algorithm.learning_rate", value=0.25)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert load(loop.layout.recipe).algorithm.learning_rate.kind == "linear"
    assert checkpoint.newest(loop.layout)[1].state["steps"] == 24


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"key": "algorithm.gamma", "value": 0.9}, "algorithm.gamma: can't change while a run trains; expected: "),
        ({"key": "algorithm.learning_rat", "value": 1}, "did you mean algorithm.learning_rate?"),
        ({"key": "algorithm.learning_rate", "value": "fast"}, 'wrong type; expected: a number; found: "fast" (text)'),
        ({"key": "algorithm.learning_rate", "value": True}, "found: true (a boolean)"),
        ({"key": "algorithm.learning_rate", "value": -1.0}, "algorithm.learning_rate: out of range"),
        ({"key": "algorithm.learning_rate", "value": float("inf")}, "wrong type"),  # JSON has none: it became text
        ({"key": "algorithm.learning_rate", "value": 10**400}, "a number of 64 bits"),
        ({"key": "algorithm.learning_rate"}, "wrong type"),
        ({}, "can't change while a run trains"),
        ({"key": "learning_rate\x1b[2J", "value": 1}, "learning_rate\\x1b[2J"),
    ],
)
def test_what_makes_no_sense_is_refused_and_training_goes_on(loop, facts, expected):
    loop.sampler.then[2] = lambda: ask(loop, "set", **facts)
    loop.run()
    (row,) = answers(loop.layout)
    assert row["level"] == "warning" and row["message"].startswith("refused: ") and expected in row["message"]
    assert "\n" not in row["message"]
    assert loop.counters.steps == 80 and load(loop.layout.recipe) == validate(RECIPE, "test")
    assert saved(loop) == [0, 40, 80]


def test_what_is_no_request_is_passed_over(loop):
    def clutter():
        folder = loop.layout.requests
        (folder / "1.json").mkdir(parents=True)
        (folder / "2.json").write_text("{")
        (folder / "3.json").write_text("[]")
        write_json(folder / "4.json", {"do": "explode"})
        write_json(folder / "5.json", {"do": "checkpoint"})  # without an id
        loop.requests._asked.set()

    loop.sampler.then[2] = clutter
    loop.run()
    assert [row["message"] for row in answers(loop.layout)] == ["checkpoint saved at 24 steps"]
    assert os.listdir(loop.layout.requests) == ["1.json"]


def test_a_full_disk_refuses_a_checkpoint_and_training_goes_on(loop, monkeypatch):
    def full():
        def save(**how):
            monkeypatch.undo()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(loop, "save", save)
        ask(loop, "checkpoint")

    loop.sampler.then[2] = full
    loop.run()
    (row,) = answers(loop.layout)
    assert row["level"] == "warning" and "No space left" in row["message"]
    assert loop.counters.steps == 80


def paused(loop, while_paused):
    """Let a loop run into a pause and call `while_paused` each time that it looks for requests; the pause's request."""
    names = []
    loop.sampler.then[2] = lambda: names.append(ask(loop, "pause"))
    looks = iter(while_paused)
    wait = loop.requests._asked.wait
    assert callable(wait)
    loop.requests._asked.wait = lambda seconds: next(looks)()
    loop.run()
    return names[0]


def test_pause_and_resume(loop, monkeypatch):
    seen = []

    def look():
        seen.append((loop.beat.phase, loop.counters.steps, loop.sampler.given))

    name = paused(loop, [look, look, lambda: ask(loop, "resume")])
    assert seen == [("paused", 24, 3)] * 2
    assert [row["message"] for row in answers(loop.layout)] == ["paused at 24 steps", "training goes on at 24 steps"]
    assert answer(loop.layout, name)["do"] == "pause"
    assert loop.counters.steps == 80 and loop.sampler.restarts == [(0, 5), (5, 5)]
    assert not (loop.layout.control / "paused").exists()


def test_paused_time_is_no_time_of_training(loop, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("erlcli.engine.loop.time.monotonic", lambda: now[0])
    loop._since = (1000.0, None)
    loop.clock.started = 1000.0
    frozen, started = [], []

    def hours():
        now[0] += 7200.0
        frozen.append(loop.seconds)
        started.append(loop.clock.started)

    loop.sampler.then[0] = lambda: now.__setitem__(0, now[0] + 10.0)

    def third():
        now[0] += 1.0
        started.append(loop.clock.started)

    loop.sampler.then[3] = third
    paused(loop, [hours, hours, lambda: ask(loop, "resume")])
    assert frozen == [10.0, 10.0]
    rows = read(loop.layout.metrics)
    assert [row["time/seconds"] for row in rows][:5] == [10.0, 10.0, 10.0, 11.0, 11.0]
    assert started[2] - started[0] == pytest.approx(14400.0)  # the rate of the next row is of the time that it trained
    assert checkpoint.newest(loop.layout)[1].state["seconds"] == 11.0


def test_all_else_is_done_while_paused(loop):
    key = "algorithm.learning_rate"
    steps = [
        lambda: ask(loop, "checkpoint"),
        lambda: ask(loop, "set", key=key, value=0.25),
        lambda: ask(loop, "pause"),
        lambda: ask(loop, "resume"),
    ]
    paused(loop, steps)
    assert [row["message"].split(",")[0] for row in answers(loop.layout)] == [
        "paused at 24 steps",
        "checkpoint saved at 24 steps",
        "algorithm.learning_rate set to 0.25",
        "is paused already",
        "training goes on at 24 steps",
    ]
    assert loop.algorithm.rates[3] == 0.25
    assert loop.sampler.restarts == [(0, 5), (3, 2), (5, 5)]


def test_stop_ends_a_pause(loop):
    stopped = []
    loop.stop = lambda: bool(stopped)
    paused(loop, [lambda: stopped.append(True)])
    assert loop.counters.steps == 24 and saved(loop) == [0, 24]
    assert not (loop.layout.control / "paused").exists()


def test_a_learner_that_is_killed_while_paused_has_a_paused_successor(loop):
    """The supervisor starts it anew; it must not train by itself."""
    write_json(loop.layout.control / "paused", {})
    seen = []
    loop.requests._asked.wait = lambda seconds: (seen.append(loop.sampler.given), ask(loop, "resume"))
    loop.run()
    assert seen == [0] and loop.counters.steps == 80


def test_too_late(loop):
    loop.sampler.then[9] = lambda: ask(loop, "pause")
    loop.run()
    (row,) = answers(loop.layout)
    assert row["level"] == "warning" and row["message"] == "too late: training has ended"


def test_the_control_thread_sees_requests(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    flag = StopFlag(layout).watch()
    assert not flag.asked.is_set()
    control.request(layout, "pause")
    assert flag.asked.wait(PATIENCE) and not flag()
    control.stop(layout)
    assert flag._event.wait(PATIENCE)


def test_only_schedules_can_change():
    recipe = validate(RECIPE, "test")
    assert changed(recipe, "algorithm.clip_range", 1).algorithm.clip_range(0.5) == 1.0
    with pytest.raises(RecipeError) as caught:
        changed(recipe, "train.total_steps", 1)
    assert caught.value.expected == "algorithm.entropy_coef, algorithm.learning_rate, algorithm.clip_range"


def test_a_new_supervisor_clears_old_requests_and_says_so_when_paused(tmp_path, monkeypatch):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    layout.recipe.write_text(dump(validate(RECIPE, "test")))
    control.request(layout, "pause")
    control.stop(layout)
    lock = RunLock.acquire(layout.lock)
    supervisor = Supervisor(layout, lock)
    states = []

    def supervise(tick):
        assert list(layout.control.iterdir()) == []
        for phase, state in (("paused", "running"), ("paused", "stopping"), ("update", "running")):
            write_json(layout.process("learner"), {"phase": phase, "steps": 1})
            supervisor._write_status(state)
            view = RunView(layout)
            view.refresh()
            states.append((read_json(layout.status)["state"], view.state))
        control.request(layout, "pause")
        return __import__("erlcli.engine.supervisor", fromlist=["Outcome"]).Outcome(0, "finished")

    monkeypatch.setattr(supervisor, "_supervise", supervise)
    assert supervisor.run().state == "finished"
    assert states == [("paused", "paused"), ("stopping", "stopping"), ("running", "running")]
    (late,) = read(layout.events("supervisor"))
    assert late["event"] == "request" and late["level"] == "warning"
    write_json(layout.status, {"state": "paused"})
    lock.release()
    view = RunView(layout)
    view.refresh()
    assert view.state == "dead"


REAL = f"""
[train]
total_steps = 1_000_000_000
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
[eval]
episodes = 2
probe_episodes = 2
every_steps = 1_000_000
[engine]
compile = "off"
[checkpoint]
every_steps = 6_400
keep = 100
[log]
every = 1
tensorboard = false
"""


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param([], id="inline"),
        pytest.param(["--set", "engine.workers=2", "--set", "engine.lag=1"], id="lag", marks=pytest.mark.slow),
    ],
)
def test_a_real_run_is_paused_changed_and_stopped_and_stays_exact(tmp_path, settings):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(REAL)
    layout = RunLayout(tmp_path / "run")
    command = [sys.executable, "-m", "erlcli", "train", str(recipe), "--run-dir", str(layout.root), *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: read(layout.metrics), "no rows")

        def done(kind, **facts):
            name = control.request(layout, kind, **facts)
            return wait_for(lambda: [row for row in answers(layout) if row["request"] == name], kind)[0]

        done("pause")
        wait_for(lambda: (read_json(layout.status) or {}).get("state") == "paused", "not paused")
        rows = len(read(layout.metrics))
        change = done("set", key="algorithm.learning_rate", value=0.002)
        assert change["level"] == "info", change
        assert len(read(layout.metrics)) == rows
        done("resume")
        wait_for(lambda: len([p for p in checkpoint.numbered(layout) if int(p.name) > change["steps"]]) >= 1, "no more")
        control.stop(layout)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    first, _ = newest_stretch(layout)
    assert first.steps == change["steps"] or first.steps % 6_400 == 0
    verdict = verify(layout, lambda run: None)
    assert verdict.equal and verdict.rows > 0, verdict
    values = {row["schedule/learning_rate"] for row in read(layout.metrics) if row["steps"] > change["steps"]}
    assert values == {0.002}
