"""When a function is run, recorded and replayed, with a recorder that only counts."""

from dataclasses import dataclass

import pytest
import torch

from erlcli.core.graphs import Graphs, Recorder


class Counter(Recorder):
    def __init__(self, error=None):
        self.calls, self.error, self.generators = [], error, []

    def warm_up(self, run):
        self.calls.append("warm up")
        return run()

    def record(self, run, generators):
        self.calls.append("record")
        self.generators.append(list(generators))
        if self.error is not None:
            raise self.error
        return lambda: self.calls.append("replay"), run()


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    extras: dict
    version: int


def inputs(x, version=0):
    return Inputs(x, {"y": x[1:]}, version)


@pytest.fixture
def made():
    recorder, told, source = Counter(), [], torch.Generator()
    graphs = Graphs(recorder, lambda name, reason: told.append((name, reason)))
    return recorder, told, graphs.capture("sum", lambda at: at.x.sum(), [source])


def test_the_second_call_records_and_later_ones_replay(made):
    recorder, told, captured = made
    x = torch.ones(3)
    results = [captured(inputs(x, version)) for version in range(4)]
    assert recorder.calls == ["warm up", "record", "replay", "replay", "replay"]
    assert told == [("sum", None)]
    assert results[1] is results[2] is results[3]
    assert len(recorder.generators[0]) == 1


def test_other_addresses_begin_anew(made):
    recorder, _, captured = made
    x, y = torch.ones(3), torch.ones(3)
    for at in (x, x, y, y, x):
        captured(inputs(at))
    assert recorder.calls == ["warm up", "record", "replay"] * 2 + ["warm up"]


def test_what_is_forgotten_is_recorded_anew(made):
    recorder, _, captured = made
    x = torch.ones(3)
    captured(inputs(x))
    captured(inputs(x))
    captured.forget()
    captured(inputs(x))
    assert recorder.calls == ["warm up", "record", "replay", "warm up"]


def test_a_refused_capture_is_told_once_and_runs_as_it_is():
    told, x = [], torch.ones(3)
    recorder = Counter(RuntimeError("operation not permitted\nand much more"))
    captured = Graphs(recorder, lambda name, reason: told.append((name, reason))).capture("sum", lambda at: at.x.sum())
    assert [captured(inputs(x)).item() for _ in range(4)] == [3.0] * 4
    assert recorder.calls == ["warm up", "record"]
    assert told == [("sum", "operation not permitted")]


def test_what_ended_a_capture_is_the_reason():
    told, x = [], torch.ones(3)
    error = RuntimeError("capture was invalidated")
    error.__context__ = ValueError("state[0].item()")
    captured = Graphs(Counter(error), lambda name, reason: told.append(reason)).capture("sum", lambda at: at.x.sum())
    for _ in range(2):
        captured(inputs(x))
    assert told == ["state[0].item()"]


def test_a_reason_not_to_is_told_at_once_where_there_is_a_recorder():
    told = []
    for recorder in (Counter(), None):
        graphs = Graphs(recorder, lambda name, reason: told.append((name, reason)))
        captured = graphs.capture("sum", lambda at: at.x.sum(), refusal="too large")
        assert captured(inputs(torch.ones(2))).item() == 2.0
    assert told == [("sum", "too large")]
