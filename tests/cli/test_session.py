"""What runs have in common on the command line: names, lines, and what is said to whom."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys

import pytest

from erlcli.cli import background, session
from erlcli.cli.live import Watcher, eval_line
from erlcli.core.types import Box, Discrete, EnvSpec
from erlcli.engine import checkpoint, supervisor
from erlcli.engine.stop_signals import LEAVE_SECONDS
from erlcli.engine.supervisor import Supervisor
from erlcli.errors import ErlError, RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs import view
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.view import RunView
from erlcli.runs.writer import EventLog


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    made.recipe.write_text(dump(load("cartpole_ppo")))
    return made


def test_jobs_that_start_together_get_names_of_their_own(tmp_path, monkeypatch):
    """Another one makes the directory between the look and the making."""
    monkeypatch.chdir(tmp_path)
    look = background.next_free

    def slow_look(folder, name):
        found = look(folder, name)
        if not (tmp_path / "raced").exists():
            (tmp_path / "raced").touch()
            found.mkdir(parents=True)
        return found

    monkeypatch.setattr(background, "next_free", slow_look)
    names = [background.place("recipes/my.toml", None, None).root.name for _ in range(2)]
    assert names == ["my-2", "my-3"]


@pytest.mark.parametrize("directory", [None, "mine"])
def test_a_full_disk_leaves_no_run_and_no_name_taken(tmp_path, monkeypatch, directory):
    def full(*paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    run_dir = None if directory is None else tmp_path / directory
    with pytest.raises(ErlError, match="can't be written") as caught:
        session.create("cartpole_ppo", [], None, run_dir)
    assert caught.value.exit_code == 1
    assert "free space" in caught.value.remedy
    assert not (tmp_path / "mine").exists()
    assert not list(tmp_path.glob("runs/*"))


def test_commands_are_quoted_for_a_shell(layout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunLayout(layout.root.rename(tmp_path / "my run"))
    row = {"attempt": 1, "steps": 1000, "kind": "full", "return_mean": 100.0}
    run.evals.write_text(json.dumps(row) + "\n")
    write_json(run.status, {"state": "finished", "steps": 1000, "total_steps": 2000})
    view = RunView(run)
    view.refresh()
    lines = [*session.closing_lines(view, "interrupted"), *session.detached_lines(run)]
    commands = [line for line in lines if "  erl " in line]
    assert len(commands) == 6
    assert all("'my run'" in line for line in commands)
    assert "in the background: my run" in lines[6]
    with pytest.raises(RecipeError) as caught, background.making(run):
        run.create()
    assert "erl resume 'my run'," in caught.value.remedy


def test_what_is_not_ours_survives_a_failure(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(RecipeError), background.making(RunLayout(tmp_path)):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert (tmp_path / "precious").exists()


def test_every_event_is_told_once_however_many_there_were(layout, monkeypatch):
    """A view keeps the newest ones only."""
    monkeypatch.setattr(view, "MAX_EVENTS", 5)
    log = EventLog(layout, "learner", 1)
    for number in range(7):
        log.write("warning", f"old {number}")
    watcher = Watcher(RunView(layout))
    told = []
    for number in range(8):
        log.write("warning", f"new {number}")
        if number % 3:
            told += [row["message"] for row in watcher.refresh()[0]]
    assert told == [f"new {number}" for number in range(8)]
    assert watcher.refresh()[0] == []


@pytest.mark.parametrize(("asked", "given"), [(None, LEAVE_SECONDS), (1.0, LEAVE_SECONDS), (300.0, 300.0)])
def test_a_learner_gets_the_time_for_its_last_checkpoint_that_was_asked_for(layout, monkeypatch, asked, given):
    watched = Supervisor(layout, RunLock.acquire(layout.lock))
    now = 1000.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    assert not watched._out_of_patience()
    write_json(layout.stop_request, {"reason": "user"} | ({} if asked is None else {"seconds": asked}))
    assert not watched._out_of_patience()
    now += given - 0.1
    assert not watched._out_of_patience()
    now += 0.2
    assert watched._out_of_patience()


def test_a_change_is_resolved_as_at_the_start_of_a_run(layout):
    session.change(layout, ['engine.compile="off"', 'env.backend="gymnasium"'])
    session.change(layout, ['engine.compile="auto"', "train.total_steps=100_000_000"])
    assert load(layout.recipe).engine.compile == "on"


def test_an_env_may_change_as_long_as_its_spaces_stay(layout):
    box = Box((4,), "float32", (-math.inf,) * 4, (math.inf,) * 4)
    write_json(layout.spec, EnvSpec(box, Discrete(2), 1).to_json())
    (layout.checkpoints / checkpoint.name_of(1024)).mkdir()
    session.change(layout, ["env.kwargs={sutton_barto_reward=true}"])
    after = layout.recipe.read_text()
    assert "sutton_barto_reward = true" in after
    with pytest.raises(RecipeError, match="another observation space"):
        session.change(layout, ['env.wrappers=["gymnasium.wrappers:TimeAwareObservation"]'])
    assert layout.recipe.read_text() == after
    shutil.rmtree(layout.checkpoints)  # nothing was trained yet
    layout.checkpoints.mkdir()
    session.change(layout, ['env.wrappers=["gymnasium.wrappers:TimeAwareObservation"]'])


def test_an_evaluation_of_one_episode_says_so():
    row = {"steps": 1000, "return_mean": 2.0, "return_ci": [2.0, 2.0], "episodes": 1}
    assert eval_line(row).endswith("  1 episode")
    assert eval_line(row | {"episodes": 20}).endswith("  20 episodes")


def test_a_reader_that_leaves_is_no_failure():
    writer = subprocess.Popen(
        [sys.executable, "-m", "erlcli", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.close()
    assert writer.wait(60) == 0
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_a_device_is_checked_by_its_own_name():
    assert session.on_device("cuda:1") == 'train.device="cuda:1"'
    with pytest.raises(RecipeError):
        session.on_device("cpu\n")
    with pytest.raises(RecipeError) as caught:
        session.on_device('a"b')
    assert caught.value.message == "--device: no such device"
    assert caught.value.found == '"a\\"b" (text)'
