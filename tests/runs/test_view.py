import os

import pytest

from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.view import Curve, RunView


def write(path, *pairs, **more):
    """Append (attempt, steps) rows."""
    appender = Appender(path)
    for attempt, steps in pairs:
        appender.append({"attempt": attempt, "steps": steps, "value": attempt * 1000 + steps, **more})
    appender.close()


def pairs(curve):
    return [(row["attempt"], row["steps"]) for row in curve.rows]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def run(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    return layout


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ([(1, 10), (1, 20), (1, 30)], [(1, 10), (1, 20), (1, 30)]),
        # back to a checkpoint at 10: 20 and 30 come again
        ([(1, 10), (1, 20), (1, 30), (2, 20), (2, 30)], [(1, 10), (2, 20), (2, 30)]),
        # back to the very start
        ([(1, 10), (1, 20), (2, 10)], [(2, 10)]),
        # nothing lost: the new attempt goes on where the old one stopped
        ([(1, 10), (2, 20)], [(1, 10), (2, 20)]),
        # three attempts, each from further back
        ([(1, 10), (1, 20), (1, 30), (2, 20), (2, 30), (2, 40), (3, 30)], [(1, 10), (2, 20), (3, 30)]),
        ([(1, 10), (1, 20), (2, 20), (3, 10), (3, 20)], [(3, 10), (3, 20)]),
        # an attempt that left before its first row
        ([(1, 10), (1, 20), (4, 20)], [(1, 10), (4, 20)]),
    ],
)
def test_a_newer_attempt_replaces_what_it_superseded(path, written, seen):
    write(path, *written)
    whole, piecewise = Curve(path), Curve(path)
    assert whole.refresh()
    assert pairs(whole) == seen
    # The same when the rows are read one by one, as a dashboard sees them come.
    path.unlink()
    path.touch()
    for pair in written:
        write(path, pair)
        assert piecewise.refresh()
    assert pairs(piecewise) == seen


def test_every_cut_leaves_neither_duplicates_nor_holes(path):
    """A run of 10 rows, killed after k of them and resumed from each earlier point."""
    for k in range(1, 10):
        for back in range(k + 1):
            path.unlink(missing_ok=True)
            write(path, *[(1, n * 10) for n in range(1, k + 1)])
            write(path, *[(2, n * 10) for n in range(back + 1, 11)])
            curve = Curve(path)
            curve.refresh()
            assert [row["steps"] for row in curve.rows] == [n * 10 for n in range(1, 11)]
            assert [row["attempt"] for row in curve.rows] == [1] * back + [2] * (10 - back)


def test_a_probe_and_a_full_evaluation_at_the_same_steps_both_stay(path):
    write(path, (1, 10), (1, 10), (1, 20))
    write(path, (2, 20), (2, 20))
    curve = Curve(path)
    curve.refresh()
    assert pairs(curve) == [(1, 10), (1, 10), (2, 20), (2, 20)]


def test_a_replaced_file_replaces_the_curve(path, tmp_path):
    """As when a copy of a run on another machine is brought up to date."""
    write(path, (1, 10), (1, 20))
    curve = Curve(path)
    curve.refresh()
    fresh = tmp_path / "fresh.jsonl"
    write(fresh, (1, 10), (1, 20), (1, 30))
    os.replace(fresh, path)
    assert curve.refresh()
    assert pairs(curve) == [(1, 10), (1, 20), (1, 30)]
    os.truncate(path, 0)
    assert curve.refresh()
    assert curve.rows == []
    assert not curve.refresh()


def test_rows_without_steps_are_passed_over(path):
    appender = Appender(path)
    for row in ({"value": 1}, {"steps": None}, {"steps": "10"}, {"steps": 10, "attempt": 1}):
        appender.append(row)
    curve = Curve(path)
    curve.refresh()
    assert pairs(curve) == [(1, 10)]


def test_a_column_holds_numbers_only(path):
    appender = Appender(path)
    for steps, value in enumerate([1, 2.5, float("nan"), None, True, "text", 3]):
        appender.append({"steps": steps, "attempt": 1, "x": value})
    appender.append({"steps": 7, "attempt": 1})
    curve = Curve(path)
    curve.refresh()
    assert curve.column("x") == ([0, 1, 6], [1.0, 2.5, 3.0])
    assert curve.column("none") == ([], [])


def test_a_view_of_a_run_that_has_not_begun(run):
    view = RunView(run)
    view.refresh()
    assert (view.state, view.last, view.best, view.events) == ("dead", {}, None, [])
    summary = view.summary()
    assert (summary["steps"], summary["best_return"], summary["target_reached"]) == (0, None, False)


@pytest.mark.parametrize("state", ["starting", "running", "stopping"])
def test_a_run_whose_owner_is_gone_is_dead(run, state):
    write_json(run.status, {"state": state})
    lock = RunLock.acquire(run.lock)
    view = RunView(run)
    view.refresh()
    assert view.state == state
    lock.release()
    assert view.state == "dead"


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
