"""Rows are written in order, each once its numbers have come."""

import pytest
import torch

from erlcli.core.readback import Readback
from erlcli.engine.episodes import EpisodeTracker
from erlcli.engine.metric_rows import MetricRows
from erlcli.runs.jsonl import read


@pytest.fixture
def far(monkeypatch):
    """A device that is behind until the test says otherwise."""
    arrived = [False]
    monkeypatch.setattr(Readback, "ready", property(lambda self: arrived[0]))
    return arrived


def add(rows, steps, value):
    rows.add({"steps": steps}, EpisodeTracker(1).numbers(), {"loss/x": value, "epochs": 3}, {"time/wall": 1.0})


def test_numbers_that_are_here_are_written_at_once(tmp_path):
    rows = MetricRows(tmp_path / "metrics.jsonl")
    add(rows, 1, torch.tensor(0.1, dtype=torch.float64))
    (row,) = read(tmp_path / "metrics.jsonl")
    assert list(row.items()) == [("steps", 1), ("episodes", 0), ("loss/x", 0.1), ("epochs", 3), ("time/wall", 1.0)]


def test_rows_wait_for_their_numbers_and_keep_what_these_were(tmp_path, far):
    rows, value = MetricRows(tmp_path / "metrics.jsonl"), torch.tensor(1.0)
    for steps in (1, 2, 3):
        add(rows, steps, value)
        value += 1.0  # as the next iteration does
    assert list(read(tmp_path / "metrics.jsonl")) == []
    far[0] = True
    rows.write(wait=False)
    assert [(r["steps"], r["loss/x"]) for r in read(tmp_path / "metrics.jsonl")] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_syncing_waits_for_all(tmp_path, far):
    rows = MetricRows(tmp_path / "metrics.jsonl")
    add(rows, 1, torch.tensor(1.0))
    add(rows, 2, 7.0)
    rows.sync()
    assert [r["loss/x"] for r in read(tmp_path / "metrics.jsonl")] == [1.0, 7.0]
