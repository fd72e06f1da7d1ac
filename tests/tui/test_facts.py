"""What the run screen shows, worked out of files."""

import json
import math

import numpy as np
import pytest

from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView
from erlcli.tui.curves import Columns, default_metrics, learning_curve, minis, number
from erlcli.tui.facts import facts_of
from erlcli.tui.output import OUTPUT_LINES, Output

ROWS = [
    {"steps": 10, "time/seconds": 1.0, "loss/value": 3.0},
    {"steps": 20, "time/seconds": 0.5, "loss/value": "nan"},
    {"steps": 30, "time/seconds": 2.0},
    {"steps": 40, "time/seconds": 3.0, "loss/value": 1, "flag": True},
]


def look(layout, now):
    view = RunView(layout, 4096)
    view.refresh()
    return view, facts_of(view, Columns(view.metrics.rows), Output(layout), now)


def test_columns_have_what_rows_have_and_nothing_else():
    columns = Columns(ROWS)
    x, y = columns.pairs("loss/value", "steps")
    assert (x.tolist(), y.tolist()) == ([10, 40], [3, 1])
    x, _ = columns.pairs("steps", "seconds")
    assert x.tolist() == [1, 1, 2, 3], "time never runs backwards"
    assert columns.pairs("loss/value", "steps")[0] is columns.pairs("loss/value", "steps")[0]
    assert len(columns.pairs("nothing", "steps")[0]) == 0
    assert math.isnan(number(True)) and math.isnan(number("inf")) and number(3) == 3.0


def test_columns_stay_what_they_are_while_rows_are_added():
    rows = list(ROWS)
    columns = Columns(rows)
    assert columns.refreshed(rows) is columns
    rows.append({"steps": 50})
    assert len(columns.column("steps")) == 4
    assert len(columns.refreshed(rows).column("steps")) == 5


def test_the_usual_metrics_come_first_and_in_order():
    names = ["critic", "loss/b", "loss/value", "policy/epochs", "policy/kl", "schedule/learning_rate", "time/wall"]
    assert default_metrics(names) == ["loss/value", "policy/kl", "schedule/learning_rate", "loss/b"]


def test_the_learning_curve_has_bands_where_evaluations_have_intervals():
    evals = Columns(
        [
            {"steps": 10, "return_mean": 5.0, "return_ci": [4.0, 6.0]},
            {"steps": 20, "return_mean": "nan", "return_ci": [1.0, 2.0]},
            {"steps": 30, "return_mean": 7.0},
        ]
    )
    series, marks = learning_curve(Columns(ROWS), evals, {"steps": 30, "return_mean": 7.0}, "steps")
    assert [s.name for s in series] == ["training return", "evaluation"]
    assert series[1].y.tolist() == [5, 7]
    np.testing.assert_array_equal(series[1].low, [4, np.nan])
    assert (marks[0].x, marks[0].y) == (30, 7)
    assert learning_curve(Columns(ROWS), Columns(), None, "steps")[1] == []
    assert [mini.name for mini in minis(Columns(ROWS), ["loss/value"])] == ["loss/value"]


def test_a_live_run(fixed_run, clock):
    view, facts = look(fixed_run, clock())
    assert facts.state == "running" and facts.live
    head = facts.header
    assert (head.name, head.task, head.algorithm) == ("bipedal_ppo", "BipedalWalker-v3", "ppo")
    assert head.setup == "64 envs (envpool), 2 workers, cpu, 2 threads"
    assert head.steps == view.last["steps"] and head.target == 300 and head.left > 0
    assert [row.name for row in facts.processes] == ["learner", "evaluator", "worker-0", "worker-1"]
    assert [row.restarts for row in facts.processes] == [2, 0, 0, 1]
    assert all(0 <= row.age < 2 for row in facts.processes)
    assert facts.gpus[0].utilization == 71
    assert facts.throughput.now and sum(facts.throughput.shares) == pytest.approx(1, abs=0.02)
    assert facts.throughput.limit == pytest.approx(facts.throughput.now / facts.throughput.shares[0], rel=0.2)
    assert facts.best.checkpoint.endswith(f"best-{facts.best.steps:012d}")
    assert dict(facts.settable)["algorithm.learning_rate"] == view.last["schedule/learning_rate"]
    assert facts.header_at(clock() + 2, "").elapsed == pytest.approx(head.elapsed + 2)
    assert facts.header_at(clock() + 100, "").elapsed == pytest.approx(head.elapsed + 5), "nobody says it still runs"
    assert facts.processes_at(clock() + 10)[0].late


def test_time_is_added_from_the_moment_that_a_figure_belongs_to(fixed_run, clock):
    """A status that was written once, at the start of a slice, says nothing about how old the newest row is."""
    view, _ = look(fixed_run, clock())
    row = view.last | {"time/seconds": view.elapsed + 30.0, "time/wall": clock() - 1.0, "steps": view.steps + 1}
    Appender(fixed_run.metrics).append(row)
    assert look(fixed_run, clock())[1].header.elapsed == pytest.approx(row["time/seconds"] + 1.0)
    beat = json.loads(fixed_run.process("learner").read_text())  # told every second, also while nothing is trained
    write_json(fixed_run.process("learner"), beat | {"seconds": round(row["time/seconds"], 1), "time": clock() + 9.0})
    assert look(fixed_run, clock() + 9.0)[1].header.elapsed == pytest.approx(row["time/seconds"], abs=0.05)


def test_a_value_that_was_set_is_the_present_one(fixed_run, clock):
    view, _ = look(fixed_run, clock())
    asked = {"time": clock(), "event": "request", "do": "set", "key": "algorithm.learning_rate", "steps": view.steps}
    rows = Appender(fixed_run.events("learner"))
    rows.append(asked | {"new": 1.0, "steps": 1})
    assert dict(look(fixed_run, clock())[1].settable)["algorithm.learning_rate"] == view.last["schedule/learning_rate"]
    rows.append(asked | {"new": 0.004})
    rows.append(asked | {"new": 0.0005})
    rows.append(asked | {"level": "warning"})  # a refusal
    assert dict(look(fixed_run, clock())[1].settable)["algorithm.learning_rate"] == 0.0005


def test_the_task_of_an_env_from_a_file_is_told_without_its_folder(fixed_run, clock):
    env = "/a/long/path/to/fenv.py:Env"
    status = json.loads(fixed_run.status.read_text())
    write_json(fixed_run.status, status | {"env": env})
    told = {"time": clock(), "event": "started", "message": "4 x fenv.py:Env (gymnasium), one process, cpu"}
    Appender(fixed_run.events("learner")).append(told)
    head = look(fixed_run, clock())[1].header
    assert (head.task, head.setup) == ("fenv.py:Env", "4 envs (gymnasium), one process, cpu")


def test_a_run_that_is_over(finished_run, failed_run, clock):
    _, facts = look(finished_run, clock())
    assert not facts.live and facts.header.left is None and facts.throughput.now is None
    assert all(row.age is None for row in facts.processes)
    assert [command.split()[1] for command in facts.best.commands] == ["eval", "export"]
    _, facts = look(failed_run, clock())
    assert facts.best.commands[0].startswith("erl resume")
    assert facts.header_at(clock() + 2, "").elapsed == facts.header.elapsed


def test_a_run_without_anything(tmp_path, clock):
    _, facts = look(RunLayout(tmp_path), clock())
    assert facts.header.elapsed is None and facts.best.mean is None and facts.throughput.mean is None
    assert facts.processes == [] and facts.gpus == [] and facts.settable == [] and facts.entries == []


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "errors").mkdir()
    return RunLayout(tmp_path)


def test_output_is_read_line_by_line(layout):
    output, log = Output(layout), layout.output("learner")
    assert not output.refresh(0.0)
    log.write_bytes(b"one\ntw")
    assert output.refresh(5.0) and not output.refresh(5.0)
    with log.open("ab") as file:
        file.write("o\n\nthree\x1b]0;title\x07 \x1b[1mbold\x1b[0m\ttab\xff é\r\n".encode("latin-1"))
    assert output.refresh(9.0)
    assert [entry.text for entry in output.entries["learner"]] == ["one", "two", "three bold  tab� �"]
    assert output.entries["learner"][-1].time == 9.0


def test_output_that_is_written_anew_replaces_the_old(layout):
    output, log = Output(layout), layout.output("learner")
    log.write_text("a long line of the first attempt\n")
    output.refresh(1.0)
    log.write_text("short\n")
    output.refresh(2.0)
    assert [entry.text for entry in output.entries["learner"]] == ["short"]


def test_output_is_bounded(layout):
    output, log = Output(layout), layout.output("learner")
    log.write_text("".join(f"{i}\n" for i in range(200_000)))
    output.refresh(1.0)
    kept = output.entries["learner"]
    assert len(kept) == OUTPUT_LINES and kept[-1].text == "199999"
