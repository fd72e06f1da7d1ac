import json
import os
import time

import pytest

from erlcli.runs import view as view_module
from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.view import RunView


def write(path, *pairs, **more):
    """Append (attempt, steps) rows."""
    appender = Appender(path)
    for attempt, steps in pairs:
        appender.append({"attempt": attempt, "steps": steps, "value": attempt * 1000 + steps, **more})
    appender.close()


@pytest.fixture
def run(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    return layout


def test_a_view_of_a_run_that_has_not_begun(run):
    view = RunView(run)
    view.refresh()
    assert (view.state, view.last, view.best, view.events) == ("dead", {}, None, [])
    summary = view.summary()
    assert (summary["steps"], summary["best_return"], summary["target_reached"]) == (0, None, False)


@pytest.mark.parametrize("state", ["starting", "running", "paused", "stopping", "evaluating"])
def test_a_run_whose_owner_is_gone_is_dead(run, state):
    write_json(run.status, {"state": state})
    lock = RunLock.acquire(run.lock)
    view = RunView(run)
    view.refresh()
    assert (view.state, view.is_live) == (state, True)
    assert not view.refresh()
    lock.release()
    assert view.refresh()  # although no file has changed
    assert (view.state, view.is_live) == ("dead", False)


@pytest.mark.parametrize("state", ["finished", "interrupted", "failed"])
def test_a_run_that_said_goodbye_is_not_dead(run, state):
    write_json(run.status, {"state": state})
    view = RunView(run)
    view.refresh()
    assert view.state == state


def test_a_torn_status_keeps_the_last_good_one(run):
    write_json(run.status, {"state": "finished", "steps": 7})
    view = RunView(run)
    view.refresh()
    run.status.write_text('{"state": "fin')
    view.refresh()
    assert (view.state, view.summary()["steps"]) == ("finished", 7)


def test_best_is_the_highest_full_evaluation(run):
    appender = Appender(run.evals)
    rows = [
        (10, "full", 5.0),
        (20, "probe", 99.0),
        (30, "full", float("nan")),
        (40, "full", 7.0),
        (50, "full", 6.0),
    ]
    for steps, kind, score in rows:
        appender.append({"attempt": 1, "steps": steps, "kind": kind, "return_mean": score})
    view = RunView(run)
    view.refresh()
    assert view.best["steps"] == 40
    assert (view.summary()["best_return"], view.summary()["best_steps"]) == (7.0, 40)


def test_a_best_that_was_superseded_is_none(run):
    write(run.evals, (1, 10), (1, 20), kind="full", return_mean=9.0)
    write(run.evals, (2, 10), kind="full", return_mean=3.0)
    view = RunView(run)
    view.refresh()
    assert view.best["return_mean"] == 3.0


def test_events_of_all_processes_come_by_time_and_once(run, tmp_path):
    def event(process, time):
        appender = Appender(run.events(process))
        appender.append({"process": process, "time": time})
        appender.close()

    event("learner", 2.0)
    event("supervisor", 1.0)
    view = RunView(run)
    view.refresh()
    view.refresh()
    assert [row["time"] for row in view.events] == [1.0, 2.0]
    event("learner", 3.0)
    view.refresh()
    assert [row["time"] for row in view.events] == [1.0, 2.0, 3.0]
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(run.events("learner").read_bytes())
    os.replace(copy, run.events("learner"))
    view.refresh()
    assert sorted(row["time"] for row in view.events) == [1.0, 2.0, 3.0]


def test_heartbeats_by_process(run):
    write_json(run.process("learner"), {"pid": 1})
    write_json(run.process("worker-0"), {"pid": 2})
    view = RunView(run)
    view.refresh()
    assert {name: row["pid"] for name, row in view.processes.items()} == {"learner": 1, "worker-0": 2}


def test_the_summary_takes_the_furthest_steps_that_are_known(run):
    write(run.metrics, (1, 100), (1, 200))
    write_json(run.status, {"state": "finished", "steps": 250, "total_steps": 1000, "exit_code": 0})
    view = RunView(run)
    view.refresh()
    summary = view.summary()
    assert (summary["steps"], summary["total_steps"], summary["exit_code"]) == (250, 1000, 0)
    assert summary["age_seconds"] >= 0


@pytest.mark.parametrize(("heard", "age"), [(None, 60), ("soon", 60), (7200, 0), (-30, 30)])
def test_the_age_is_that_of_the_last_word_or_of_the_recipe_and_never_negative(run, heard, age):
    now = time.time()
    run.recipe.touch()
    os.utime(run.recipe, (now - 60, now - 60))
    write_json(run.status, {"state": "running", "time": now + heard if isinstance(heard, int) else heard})
    view = RunView(run)
    view.refresh()
    assert view.summary()["age_seconds"] == pytest.approx(age, abs=5)
    assert view.summary()["age_seconds"] >= 0


def test_values_that_are_no_numbers_are_none(run):
    run.status.write_text(
        '{"state": "finished", "time": "soon", "steps": 1e999, "total_steps": 1e999, "seconds": "x", '
        '"target_return": []}'
    )
    run.evals.write_text(
        '{"attempt": 1, "steps": 1, "kind": "full", "return_mean": 5}\n'
        '{"attempt": 1, "steps": 2, "kind": "full", "return_mean": 1e999}\n'
        '{"steps": 3, "kind": "full", "return_mean": -1e999}\n'
    )
    view = RunView(run)
    view.refresh()
    summary = view.summary()
    assert [summary[name] for name in ("steps", "total_steps", "seconds", "target_return")] == [0, None, 0.0, None]
    assert (summary["best_return"], summary["best_steps"]) == (5, 1)
    json.dumps(summary, allow_nan=False)


def append(path, *rows):
    appender = Appender(path)
    for row in rows:
        appender.append(row)
    appender.close()


def test_refresh_says_whether_anything_has_changed(run, tmp_path):
    view = RunView(run)
    assert not view.refresh()
    changes = [
        lambda: write_json(run.status, {"state": "finished"}),
        lambda: write(run.metrics, (1, 10)),
        lambda: write(run.evals, (1, 10)),
        lambda: write_json(run.process("learner"), {"time": 1.0}),
        lambda: write_json(run.process("learner"), {"time": 2.0}),
        lambda: append(run.events("learner"), {"time": 1.0}),
    ]
    for change in changes:
        change()
        assert view.refresh()
        assert not view.refresh()


def test_files_that_have_not_changed_are_not_opened(run, monkeypatch):
    write_json(run.status, {"state": "finished"})
    write(run.metrics, (1, 10))
    write_json(run.process("learner"), {"time": 1.0})
    append(run.events("learner"), {"time": 1.0})
    view = RunView(run)
    view.refresh()

    def opened(path, *arguments, **more):
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(type(run.status), "open", opened)
    monkeypatch.setattr(type(run.status), "read_bytes", opened)
    assert not view.refresh()


def test_progress_and_pace(run):
    write_json(run.status, {"state": "running", "env": "E", "algorithm": "ppo", "steps": 1_500, "seconds": 16.0,
                            "total_steps": 5_000, "target_return": 9})  # fmt: skip
    write_json(run.process("learner"), {"phase": "update", "device": "cuda:0", "time": 100.0})
    for steps, seconds, rate in ((500, 5.0, 100.0), (1_000, 15.0, 50.0)):
        append(run.metrics, {"attempt": 1, "steps": steps, "time/seconds": seconds, "time/steps_per_second": rate})
    lock = RunLock.acquire(run.lock)
    view = RunView(run)
    view.refresh()
    assert (view.env, view.algorithm, view.device, view.phase, view.target) == ("E", "ppo", "cuda:0", "update", 9.0)
    assert (view.steps, view.total_steps, view.elapsed) == (1_500, 5_000, 16.0)
    assert (view.rate, view.mean_rate) == (50.0, pytest.approx(1_000 / 15.0))
    # The last 1,000 steps took 500/100 + 500/50 = 15 s; 3,500 are left.
    assert view.eta_seconds == pytest.approx(3_500 / (1_000 / 15.0))
    lock.release()
    view.refresh()
    assert view.eta_seconds is None


def test_nothing_is_known_of_a_run_that_has_not_begun(run):
    view = RunView(run)
    view.refresh()
    assert (view.env, view.algorithm, view.device, view.phase) == ("", "", "", "")
    assert (view.steps, view.total_steps, view.target, view.elapsed) == (0, None, None, 0.0)
    assert (view.rate, view.mean_rate, view.eta_seconds) == (None, None, None)
    assert (view.series, view.gpus, view.heartbeat_ages(1.0), dict(view.restarts)) == ([], [], {}, {})


def test_heartbeat_ages_leave_out_what_is_no_process(run):
    write_json(run.process("learner"), {"time": 90.0})
    write_json(run.process("worker-0"), {"time": 103.0})  # its clock is ahead
    write_json(run.process("torn"), {})
    write_json(run.process("gpu"), {"time": 95.0, "gpus": [{"name": "X"}, "damaged"]})
    view = RunView(run)
    view.refresh()
    assert view.heartbeat_ages(100.0) == {"learner": 10.0, "worker-0": 0.0}
    assert view.gpus == [{"name": "X"}]


def test_restarts_are_counted_by_process_and_survive_the_bound_of_the_events(run, monkeypatch):
    monkeypatch.setattr(view_module, "MAX_EVENTS", 10)
    append(
        run.events("supervisor"), {"time": 1.0, "event": "learner_restart"}, {"time": 2.0, "event": "evaluator_restart"}
    )
    append(run.events("learner"), {"time": 3.0, "event": "worker_restart", "worker": 3}, {"event": "env_restart"})
    append(run.events("learner"), *[{"time": 10.0 + n, "event": "checkpoint"} for n in range(50)])
    append(run.events("supervisor"), {"time": 99.0, "event": "learner_restart"})
    view = RunView(run, max_rows=4096)
    view.refresh()
    assert view.restarts == {"learner": 2, "evaluator": 1, "worker-3": 1}
    assert (len(view.events), view.event_total, view.events[-1]["time"]) == (10, 55, 99.0)
    append(run.events("learner"), {"time": 100.0})
    view.refresh()
    assert (len(view.events), view.event_total, view.events[-1]["time"]) == (10, 56, 100.0)


def test_restarts_of_a_replaced_file_count_once(run, tmp_path):
    append(run.events("supervisor"), {"time": 1.0, "process": "supervisor", "event": "learner_restart"})
    view = RunView(run)
    view.refresh()
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(run.events("supervisor").read_bytes())
    os.replace(copy, run.events("supervisor"))
    view.refresh()
    assert view.restarts == {"learner": 1}


def test_series_are_all_numeric_columns(run):
    append(run.metrics, {"attempt": 1, "steps": 1, "version": 1, "loss/policy": 0.5, "note": "text"})
    append(run.evals, {"attempt": 1, "steps": 1, "version": 1, "kind": "full", "return_mean": 1.0, "return_ci": [0, 2]})
    view = RunView(run)
    view.refresh()
    assert view.series == ["eval/return_mean", "loss/policy"]


def test_a_bounded_view_bounds_the_metrics_and_keeps_all_evaluations(run):
    for path in (run.metrics, run.evals):
        write(path, *[(1, n) for n in range(6_000)], kind="full", return_mean=1.0)
    write(run.evals, (1, 6_001), kind="full", return_mean=2.0)
    view = RunView(run, max_rows=2_000)
    view.refresh()
    assert len(view.metrics.rows) <= 2_000
    assert len(view.evals.rows) == 6_001 and view.best["steps"] == 6_001
