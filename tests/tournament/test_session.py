"""The orchestrator's process, and what readers make of its directory."""

import subprocess
import sys

from erlcli.cli.tournament import create
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.journal import Journal
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.listing import RunList
from erlcli.runs.lock import RunLock
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


def test_a_tournament_is_no_run_for_those_who_want_one(tmp_path):
    layout = create("tournament_cartpole", [], None, tmp_path / "t")
    done = subprocess.run([sys.executable, "-m", "erlcli", "eval", str(layout.root)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert RunLayout(layout.root).recipe.exists()
