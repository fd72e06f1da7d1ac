"""Films of the agent: made when somebody looks, in little time, and without a trace in what is measured."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from erlcli.engine import build, checkpoint, film
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.evaluator import Evaluator
from erlcli.engine.failures import Interrupted
from erlcli.engine.film import Filmer, Reel, Subject
from erlcli.envs.config import env_config
from erlcli.envs.position import PositionLog
from erlcli.recipe.load import dump, validate
from erlcli.runs import control
from erlcli.runs.agent import read_agent
from erlcli.runs.jsonl import read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import Heartbeat

ENV = Path(__file__).parent / "envs" / "drawn.py"


class Set:
    """A run with an env that draws, a policy, and a filmer."""

    def __init__(self, root, env="Drawn", modes=("rgb_array",), stop=lambda: False, **kwargs):
        self.layout = RunLayout(root)
        self.layout.create()
        self.recipe = validate(
            {
                "train": {"total_steps": 1000},
                "env": {"id": f"{ENV}:{env}", "num_envs": 2, "kwargs": kwargs},
                "network": {"hidden": [4]},
                "algorithm": {"name": "ppo", "rollout_length": 8, "batch_size": 8},
                "eval": {"episodes": 3, "probe_episodes": 2, "num_envs": 2},
                "log": {"tensorboard": False},
            },
            "test",
        )
        self.layout.recipe.write_text(dump(self.recipe))
        self.beat = Heartbeat(self.layout, "evaluator")
        evaluation = Evaluation(env_config(self.recipe.env, 1), 1)
        torch.manual_seed(0)
        self.policy = build.policy(self.recipe, evaluation.spec)
        evaluation.close()
        self.modes, self.stop = list(modes), stop
        self.filmer = self.another()

    def another(self):
        """A filmer, as an evaluator that is started anew makes one."""
        return Filmer(self.layout, self.recipe, self.beat, PositionLog(), self.modes, self.stop)

    def subject(self, steps=100, length=0.0):
        return Subject(self.policy, 1, steps, length)

    @property
    def latest(self):
        return read_json(self.layout.agent / "latest.json")

    @property
    def films(self):
        return sorted(path.name for path in self.layout.agent.glob("*"))


@pytest.fixture
def made(tmp_path):
    sets = []

    def make(**settings):
        sets.append(Set(tmp_path / f"run{len(sets)}", **settings))
        return sets[-1]

    yield make
    for one in sets:
        one.filmer.close()
        one.beat.close()


def test_a_film_and_its_facts(made):
    run = made()
    control.watch_agent(run.layout)
    run.filmer.offer(run.subject())
    row = run.latest
    assert run.films == ["100.webp", "latest.json"]
    assert {k: row[k] for k in ("file", "steps", "attempt", "episode", "seed", "return", "length", "complete")} == {
        "file": "100.webp", "steps": 100, "attempt": 1, "episode": 0, "seed": 1, "return": 50.0, "length": 50,
        "complete": True,
    }  # fmt: skip
    # 30 pictures a second are more than a terminal shows: every second step, from step 0 to step 50.
    assert (row["stride"], row["fps"], row["env_fps"], row["frames"]) == (2, 15.0, 30.0, 26)
    assert (row["width"], row["height"]) == (320, 21)
    with Image.open(run.layout.agent / row["file"]) as picture:
        assert picture.size == (320, 21) and picture.n_frames == 26
        picture.seek(25)
        edge = np.asarray(picture.convert("L"))[10] > 128
        assert abs(int(edge.argmax()) - 50 * 320 / 600) <= 2  # the last picture is the last step
    facts = read_agent(run.layout)
    assert (facts.path, facts.total, facts.quickness) == (run.layout.agent / "100.webp", 50.0, 1.0)


def test_nobody_looks(made):
    run = made()
    run.filmer.offer(run.subject())
    assert run.latest is None
    control.watch_agent(run.layout)
    long_ago = time.time() - control.WATCH_SECONDS - 1.0
    os.utime(run.layout.agent_request, (long_ago, long_ago))
    run.filmer.offer(run.subject())
    assert run.latest is None


def test_films_are_rare_and_each_shows_something_new(made, monkeypatch):
    run = made()
    control.watch_agent(run.layout)
    now = [100.0]
    monkeypatch.setattr(film.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(run.filmer, "_film", lambda subject, frames, deadline: now.__setitem__(0, now[0] + 0.1))
    run.filmer.offer(run.subject(100))
    assert run.filmer._due == pytest.approx(100.1 + film.MIN_REST_SECONDS)
    now[0] = 200.0
    monkeypatch.setattr(run.filmer, "_film", lambda subject, frames, deadline: now.__setitem__(0, now[0] + 3.0))
    run.filmer.offer(run.subject(200))
    assert run.filmer._due == pytest.approx(203.0 + 50 * 3.0)
    before = now[0]
    run.filmer.offer(run.subject(300))
    assert now[0] == before


def test_the_same_policy_is_filmed_once_and_older_films_go(made):
    run = made()
    control.watch_agent(run.layout)
    run.filmer.offer(run.subject(100))
    first = run.latest
    run.filmer._due = 0.0
    run.filmer.offer(run.subject(100))
    assert run.latest == first
    run.filmer.offer(run.subject(200))
    assert run.films == ["200.webp", "latest.json"]
    assert run.latest["episode"] == 1


def test_a_long_episode_has_at_most_300_pictures_evenly_spaced(made):
    run = made(length=2000, size=(4, 8))
    control.watch_agent(run.layout)
    run.filmer.offer(run.subject())
    row = run.latest
    assert row["stride"] == 8 and row["frames"] == 251 and row["length"] == 2000
    assert row["fps"] == film.SLOWEST_FPS  # 3.75 of its own: shown in quick motion
    assert read_agent(run.layout).quickness == pytest.approx(8 * 8.0 / 30.0)


def test_reel():
    reel = Reel(4, 3)
    for step in range(0, 40):
        if reel.wants(step):
            reel.add(step)
    assert (reel.frames, reel.stride) == ([0, 12, 24, 36], 12)
    reel.end(36, "never")
    assert reel.frames == [0, 12, 24, 36]
    reel.end(39, 39)
    assert reel.frames == [0, 12, 24, 39]


def test_the_last_film_is_short_and_needs_no_one_to_look(made, monkeypatch):
    monkeypatch.setattr(film, "LAST_SECONDS", 60.0)  # the frames are what is counted here
    run = made(length=2000, size=(4, 8))
    run.filmer.last(run.subject(length=2000.0))
    assert run.latest["frames"] <= film.LAST_FRAMES + 1 and run.latest["complete"]
    stamp = run.latest["time"]
    run.filmer.last(run.subject())
    assert run.latest["time"] == stamp


def test_an_episode_that_takes_too_long_is_cut(made, monkeypatch):
    run = made(length=10**9, size=(4, 8))
    run.filmer._film(run.subject(), 300, time.monotonic() + 0.2)
    row = run.latest
    assert not row["complete"] and row["return"] == row["length"] > 0


def test_no_pictures_is_said_once_and_nothing_is_made_for_it(made, monkeypatch):
    run = made(env="Unseen", modes=())
    monkeypatch.setattr(film, "Evaluation", None)  # would raise
    control.watch_agent(run.layout)
    run.filmer.offer(run.subject(100))
    row = run.latest
    assert "render_modes" in row["unavailable"] and ENV.name in row["unavailable"]
    run.filmer.offer(run.subject(200))
    run.filmer.last(run.subject(300))
    assert run.latest == row
    assert read_agent(run.layout).unavailable == row["unavailable"]


def test_drawing_that_fails_is_unavailable(made):
    run = made(fault="ImportError")
    run.filmer.last(run.subject())
    assert "no EGL here" in run.latest["unavailable"] and run.films == ["latest.json"]


def test_a_full_disk_is_no_reason_to_give_up(made, monkeypatch, capsys):
    run = made()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(film, "_save", full)
        run.filmer.last(run.subject())
    assert run.latest is None and "No space left" in capsys.readouterr().err
    run.filmer.last(run.subject())
    assert run.latest["steps"] == 100


def test_stop_ends_a_film(made):
    stopped = []
    run = made(length=10**9, size=(4, 8), stop=lambda: bool(stopped))
    threading.Timer(0.2, lambda: stopped.append(True)).start()
    with pytest.raises(Interrupted):
        run.filmer.last(run.subject())
    assert run.films == []


def test_random_numbers_are_left_as_they_were(made):
    run = made()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    run.filmer.last(run.subject())
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected


def test_an_evaluator_that_died_while_it_filmed_tries_once_more(made):
    run = made()
    marker = run.layout.agent / "filming.json"
    write_json(marker, {"deaths": 0})  # as a killed one leaves it
    second = run.another()
    assert second._deaths == 1
    second.last(run.subject())
    assert run.latest["steps"] == 100 and not marker.exists()
    write_json(marker, {"deaths": 1})
    third = run.another()
    third.last(run.subject(200))
    assert "died 2 times" in run.latest["unavailable"]


def evaluations(root, watched, snapshots=(100, 200, 300)):
    """Rows that an evaluator writes of some snapshots."""
    run = Set(root, length=20)
    policies = []
    for number in snapshots:
        torch.manual_seed(number)
        for tensor in run.policy.parameters():
            torch.nn.init.normal_(tensor)
        policies.append({name: t.clone() for name, t in run.policy.state_dict().items()})
    evaluator = Evaluator(run.layout, run.recipe, 1, threading.Event())
    if watched:
        evaluator.filmer.offer = lambda subject: evaluator.filmer.last(subject)  # always due
    pending = list(zip(snapshots, policies, strict=True))

    look = evaluator._next

    def next_look():
        if pending:
            steps, weights = pending.pop(0)
            facts = {"steps": str(steps), "version": "1", "attempt": "1", "seconds": "1.0", "wall": "1.0"}
            checkpoint.save_snapshot(run.layout, weights, steps, facts)
        else:
            (run.layout.control / "finish").touch()
        return look()

    evaluator._next = next_look
    assert evaluator.run() == 0
    run.beat.close()
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read(run.layout.evals)]
    return run, rows


def test_evaluations_are_the_same_with_and_without_films(tmp_path):
    watched, rows = evaluations(tmp_path / "watched", True)
    unwatched, others = evaluations(tmp_path / "unwatched", False)
    assert rows == others and len(rows) == 3
    assert watched.latest["steps"] == 300 and watched.latest["episode"] == 2
    assert unwatched.latest["steps"] == 300 and unwatched.latest["episode"] == 0  # a finished run shows its agent


def test_a_run_that_is_stopped_leaves_without_a_film(tmp_path):
    run = Set(tmp_path / "run")
    stop = threading.Event()
    evaluator = Evaluator(run.layout, run.recipe, 1, stop)
    evaluator.subject = run.subject()
    stop.set()
    assert evaluator.run() == 0
    run.beat.close()
    assert run.latest is None


def test_a_real_run_films_for_whoever_looks_and_at_its_end(tmp_path):
    run = Set(tmp_path / "template", length=20)
    run.beat.close()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(run.layout.recipe.read_text().replace("total_steps = 1000\n", "total_steps = 1_000_000_000\n"))
    layout = RunLayout(tmp_path / "run")
    more = ["--set", "eval.every_steps=2000", "--set", "engine.compile=off", "--run-dir", str(layout.root)]
    process = subprocess.Popen(
        [sys.executable, "-m", "erlcli", "train", str(recipe), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 90.0
        asked = False
        while not (layout.agent / "latest.json").exists():
            assert time.monotonic() < deadline and process.poll() is None
            if layout.control.exists():
                control.watch_agent(layout)
            if not asked and read(layout.evals):
                control.request(layout, "pause")  # the evaluator is content with the cores that training leaves
                asked = True
            time.sleep(0.05)
        row = json.loads((layout.agent / "latest.json").read_text())
        assert row["return"] == row["length"] == 20 and (layout.agent / row["file"]).exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(90.0) == 130
    finally:
        process.kill()
        process.wait()
