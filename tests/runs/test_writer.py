"""Events and heartbeats, as a process writes them."""

import time

import pytest

from erlcli.runs import writer
from erlcli.runs.jsonl import read, read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def times(monkeypatch):
    """Clocks that stand still until they are told; a heart that beats when it is told."""

    class Times:
        wall, cpu = 100.0, 7.0

    class Never:
        def __init__(self, *args, **kwargs):
            pass

        def start(self):
            pass

        def join(self):
            pass

    monkeypatch.setattr(writer.time, "monotonic", lambda: Times.wall)
    monkeypatch.setattr(writer.time, "process_time", lambda: Times.cpu)
    monkeypatch.setattr(writer.threading, "Thread", Never)
    return Times


def beat(heart, layout):
    heart._beat()
    return read_json(layout.process("learner"))


def test_cpu_percent_is_of_one_core_between_two_beats(layout, times):
    heart = Heartbeat(layout, "learner")
    assert read_json(layout.process("learner"))["cpu_percent"] == 0.0
    times.wall, times.cpu = 101.0, 7.5
    assert beat(heart, layout)["cpu_percent"] == 50.0
    times.wall, times.cpu = 103.0, 12.5
    assert beat(heart, layout)["cpu_percent"] == 250.0  # of several threads
    times.wall = 104.0
    assert beat(heart, layout)["cpu_percent"] == 0.0
    times.cpu += 1.0
    heart.close()  # within the same instant: no division by zero
    assert read_json(layout.process("learner"))["cpu_percent"] > 0


def test_phase_idle_time_and_facts(layout, times):
    heart = Heartbeat(layout, "learner", lambda: {"steps": 5})
    heart.progress("update")
    times.wall += 3.0
    row = beat(heart, layout)
    assert (row["phase"], row["idle_seconds"], row["steps"]) == ("update", 3.0, 5)
    assert row["rss_bytes"] > 0


def test_a_beat_that_can_not_be_written_is_no_reason_to_die(layout, times, monkeypatch, capsys):
    heart = Heartbeat(layout, "learner")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_json", full)
    heart._beat()
    assert "No space left" in capsys.readouterr().err


def test_events(layout):
    log = EventLog(layout, "learner", 2)
    before = time.time()
    log.write("checkpoint", "saved", steps=5)
    log.write("oddity", "hm", level="warning")
    one, two = read(layout.events("learner"))
    assert before <= one.pop("time") <= time.time()
    assert one == {
        "process": "learner", "attempt": 2, "level": "info", "event": "checkpoint", "message": "saved", "steps": 5,
    }  # fmt: skip
    assert two["level"] == "warning"
