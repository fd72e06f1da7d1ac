"""What runs have in common on the command line: names, lines, and what is said to whom."""

import subprocess
import sys

import pytest

from erlcli.cli import background
from erlcli.cli.live import Watcher
from erlcli.engine import supervisor
from erlcli.engine.stop_signals import LEAVE_SECONDS
from erlcli.engine.supervisor import Supervisor
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


def test_a_reader_that_leaves_is_no_failure():
    writer = subprocess.Popen(
        [sys.executable, "-m", "erlcli", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.close()
    assert writer.wait(60) == 0
    assert writer.stderr.read() == b""
    writer.stderr.close()
