"""How a supervisor tells the end of a run."""

import errno
import shutil

import pytest

from erlcli.engine import failures
from erlcli.engine.supervisor import Outcome, Supervisor, outcome_of
from erlcli.errors import EnvError, ErlError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import Appender, read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.writer import Heartbeat


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    made.recipe.write_text(dump(load("cartpole_ppo")))
    return made


@pytest.fixture
def supervisor(layout):
    lock = RunLock.acquire(layout.lock)
    yield Supervisor(layout, lock)
    lock.release()


class NoChild:
    """Stands in for learners and for an evaluator that never leave by themselves."""

    running = ()
    together = False

    def __init__(self, wait=lambda: None):
        self._wait = wait

    def start(self, attempt):
        pass

    def wait(self, seconds):
        self._wait()

    def poll(self):
        return None

    def end(self, grace_seconds=0.0):
        pass


def fail_with(error):
    return lambda tick: Outcome(error.exit_code, "failed", error)


def test_a_failure_is_an_event_that_a_dashboard_can_find(supervisor, layout, monkeypatch):
    error = EnvError("learner: the env raised ValueError: boom", found="line 1\nline 2", remedy="mend it")
    monkeypatch.setattr(supervisor, "_supervise", fail_with(error))
    assert supervisor.run().error is error
    (row,) = read(layout.events("supervisor"))
    assert (row["event"], row["level"]) == ("failed", "error")
    assert row["message"] == "learner: the env raised ValueError: boom; found: line 1 line 2; remedy: mend it"
    assert read_json(layout.status)["error"] == str(error)


def test_a_full_disk_does_not_keep_the_outcome_back(supervisor, monkeypatch):
    error = EnvError("the env raised")
    monkeypatch.setattr(supervisor, "_supervise", fail_with(error))

    def full(*args, **facts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor._events, "write", full)
    assert supervisor.run() == Outcome(3, "failed", error)


def test_the_last_status_is_as_new_as_the_newest_row(supervisor, layout, monkeypatch):
    def supervise(tick):
        write_json(layout.process("learner"), {"phase": "env step", "steps": 5888, "seconds": 4.9})
        Appender(layout.metrics).append({"attempt": 1, "steps": 7168, "time/seconds": 5.713})
        return fail_with(EnvError("the env raised"))(tick)

    monkeypatch.setattr(supervisor, "_supervise", supervise)
    supervisor.run()
    status = read_json(layout.status)
    assert (status["steps"], status["seconds"]) == (7168, 5.713)


@pytest.mark.parametrize("moved", [True, False])
def test_a_directory_that_is_gone_is_told_and_does_not_come_back(supervisor, layout, monkeypatch, moved):
    elsewhere = layout.root.with_name("elsewhere")
    take_away = (lambda: layout.root.rename(elsewhere)) if moved else (lambda: shutil.rmtree(layout.root))
    monkeypatch.setattr(supervisor, "_learners", NoChild(take_away))
    monkeypatch.setattr(supervisor, "_spawn_evaluator", NoChild)
    outcome = supervisor.run()
    assert outcome.exit_code == 1 and "is gone: moved or deleted" in outcome.error.message
    assert outcome_of(layout, 1).error.message == outcome.error.message
    assert not layout.root.exists()
    if moved:
        (row,) = read(RunLayout(elsewhere).events("supervisor"))
        assert row["event"] == "failed"


def test_its_processes_leave_nothing_where_it_was(layout):
    beat = Heartbeat(layout, "learner")
    shutil.rmtree(layout.root)
    try:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "snapshots/1")
    except FileNotFoundError as error:
        assert failures.report("learner", layout, error) == ErlError.exit_code
    beat.close()
    assert not layout.root.exists()
