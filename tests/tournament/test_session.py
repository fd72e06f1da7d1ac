"""The orchestrator's process, and what readers make of its directory."""

import json
import subprocess
import sys

import pytest

from erlcli.cli.tournament import create
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.journal import Journal
from erlcli.runs.jsonl import read, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.listing import RunList
from erlcli.runs.lock import RunLock
from erlcli.tournament import session
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend
from erlcli.tournament.words import describe, summary


def test_the_orchestrator_is_free_of_torch_and_environments():
    heavy = ("torch", "numpy", "gymnasium", "envpool", "matplotlib")
    code = f"import sys, erlcli.tournament.session; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_readers_see_a_tournament(tmp_path):
    layout = create("tournament_cartpole", ["tournament.budget.steps=100_000"], None, tmp_path / "runs" / "t")
    lock = RunLock.acquire(layout.lock)
    store = MemoryStore(slice_steps=10_240)
    recipe = load_tournament(layout.recipe)
    orchestrator = Orchestrator(layout, recipe, SimulatedBackend(store), store)
    seen = []

    def tick():
        seen.append(summary(layout)["state"])

    outcome = orchestrator.run(["cpu:0", "cpu:1"], tick)
    lock.release()
    assert outcome.state == "finished"
    assert set(seen) == {"running", "finished"}
    runs = RunList(tmp_path / "runs")
    runs.refresh()
    [entry] = runs.entries
    assert (entry.kind, entry.state, entry.env, entry.algorithm) == ("tournament", "finished", "CartPole-v1", "ppo")
    journal = Journal(layout.root)
    journal.refresh()
    assert journal.board.skipped == 0
    crown = orchestrator.ledger.crown
    assert summary(layout)["score"] == entry.best_return == crown.mean
    low, high = summary(layout)["ci"]
    assert low < crown.mean < high
    texts = [text for row in read(layout.root / "journal.jsonl") if (text := describe(row)) is not None]
    assert any(text.startswith("champion: m") for text in texts)
    assert texts[-1] == "finished: budget used"
    assert not any("None" in text for text in texts)


@pytest.fixture
def layout(tmp_path):
    return create("tournament_cartpole", [], None, tmp_path / "t")


def write_rows(layout, *rows):
    text = "".join(json.dumps({"seq": number, "time": 1.0, **row}) + "\n" for number, row in rows)
    (layout.root / "journal.jsonl").write_text(text)


def test_one_that_was_killed_before_it_had_slots_gets_all_there_are(layout, monkeypatch):
    monkeypatch.setattr("erlcli.tournament.slots.gpus", list)
    monkeypatch.setattr("erlcli.tournament.slots.cores", lambda: (0, 1, 2))
    lock, recipe = RunLock.acquire(layout.lock), load_tournament(layout.recipe)
    assert session._backend(layout, lock, recipe, [])[1] == ["cpu:0", "cpu:1", "cpu:2"]
    assert session._backend(layout, lock, recipe, ["cpu:7"])[1] == ["cpu:7"]
    write_rows(layout, (1, {"event": "slots", "slots": []}))
    assert session._backend(layout, lock, recipe, [])[1] == []  # as somebody wanted it
    lock.release()


def conducted(layout):
    lock = RunLock.acquire(layout.lock)
    try:
        return session.conduct(layout, lock, ["cpu:0"])
    finally:
        lock.release()


def test_what_fails_before_it_begins_is_in_the_status(layout):
    (layout.root / "backend.json").write_text('{"kind": "ray"}')
    outcome = conducted(layout)
    row = summary(layout)
    assert (outcome.exit_code, row["state"], row["mode"], row["slices"]) == (6, "failed", "tournament", 0)
    assert row["total_steps"] == load_tournament(layout.recipe).budget_steps
    assert "backend.json" in read_json(layout.status)["error"]
    assert read_json(layout.error("orchestrator"))["kind"] == "DamagedError"


def test_a_resume_that_fails_is_no_longer_finished_and_what_it_did_still_counts(layout):
    write_rows(layout, (1, {"event": "open"}), (3, {"event": "open"}))
    write_json(layout.status, {"state": "finished", "slices": 7, "exit_code": 0, "error": None})
    assert conducted(layout).exit_code == 6
    status = read_json(layout.status)
    assert (status["state"], status["slices"], status["exit_code"]) == ("failed", 7, 6)
    assert "rows are missing" in status["error"]


def test_a_tournament_is_no_run_for_those_who_want_one(tmp_path):
    layout = create("tournament_cartpole", [], None, tmp_path / "t")
    done = subprocess.run([sys.executable, "-m", "erlcli", "eval", str(layout.root)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert RunLayout(layout.root).recipe.exists()
