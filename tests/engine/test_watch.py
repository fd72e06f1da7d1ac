"""When a process counts as hung or crashed too often, and when the watcher itself was away."""

from types import SimpleNamespace

import pytest

from erlcli.engine import failures
from erlcli.engine.failures import Watch, hung, point_to_traceback, silent
from erlcli.engine.supervisor import Supervisor
from erlcli.errors import EnvError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(failures, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


@pytest.fixture
def layout(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    return layout


def watched(watch, clock, seconds, question):
    """The answer after a question each second."""
    answer = question()
    for _ in range(seconds):
        clock.now += 1.0
        answer = question()
    return answer


def beat(layout, at, phase="env step", idle=0.0):
    write_json(layout.process("learner"), {"pid": 7, "phase": phase, "time": at, "idle_seconds": idle})


@pytest.mark.parametrize("phase", ["env step", "update"])
def test_one_that_is_stuck_in_an_env_is_found_out_when_its_time_is_over(layout, clock, monkeypatch, phase):
    monkeypatch.setattr(failures, "stack_of", lambda *_: "a stack")
    watch = Watch(60.0)

    def question():
        beat(layout, clock.now, phase, idle=clock.now - NOW)  # the thread that beats lives on
        return hung("learner", 7, layout, watch)

    assert watched(watch, clock, 59, question) is None
    error = watched(watch, clock, 1, question)
    assert error is None if phase == "update" else "hangs in env step for more than 60 s" in str(error)


def test_silence(layout, clock):
    watch = Watch(60.0)
    beat(layout, NOW, "update")
    assert watched(watch, clock, 59, lambda: silent("learner", 7, layout, watch)) is None
    assert silent("learner", 8, layout, watch) is None  # the word is another process's
    assert silent("learner-1", 7, layout, watch) is None
    clock.now += 1.0
    assert "silent for more than 60 s" in str(silent("learner", 7, layout, watch))


@pytest.mark.parametrize("pause", [40.0, 4000.0, -500.0])
def test_what_was_said_before_a_pause_of_everybody_is_no_hang(layout, clock, pause):
    """A suspended job, a laptop that was shut, a clock that was set."""
    watch = Watch(60.0)
    beat(layout, NOW)
    assert watched(watch, clock, 30, lambda: hung("learner", 7, layout, watch)) is None
    clock.now += pause
    assert watched(watch, clock, 59, lambda: hung("learner", 7, layout, watch)) is None
    beat(layout, clock.now)
    assert watched(watch, clock, 59, lambda: hung("learner", 7, layout, watch)) is None


def test_after_a_pause_one_that_says_nothing_more_is_found_out_again(layout, clock, monkeypatch):
    monkeypatch.setattr(failures, "stack_of", lambda *_: "")
    watch = Watch(60.0)
    beat(layout, NOW)
    watched(watch, clock, 30, lambda: hung("learner", 7, layout, watch))
    clock.now += 4000.0
    assert watched(watch, clock, 60, lambda: hung("learner", 7, layout, watch)) is not None


def test_an_evaluator_that_gets_something_done_may_crash_again(layout, monkeypatch):
    layout.recipe.write_text(dump(load("cartpole_ppo", ["engine.max_restarts=2"])))
    supervisor = Supervisor(layout, SimpleNamespace(fd=0))
    monkeypatch.setattr(supervisor, "_spawn_evaluator", lambda: None)
    crashed = SimpleNamespace(poll=lambda: -9, end=lambda: None)
    for evaluations in range(5):
        layout.evals.write_text("{}\n" * evaluations)
        assert supervisor._heal_evaluator(crashed)
    assert supervisor._heal_evaluator(crashed)
    assert not supervisor._heal_evaluator(crashed)


def test_a_traceback_is_pointed_to_where_there_is_one_and_no_better_advice(tmp_path):
    for remedy, traceback, told in (
        (None, "Traceback ...", f"the env's own traceback is in {tmp_path / 'errors'}"),
        (None, None, None),
        ("mend it", "Traceback ...", "mend it"),
    ):
        error = EnvError("it fails", remedy=remedy, details={"traceback": traceback})
        point_to_traceback(error, RunLayout(tmp_path))
        assert error.remedy == told
