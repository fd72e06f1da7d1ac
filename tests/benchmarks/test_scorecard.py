"""Rows of the scorecard: what finished, what did not, and what stays on the page."""

import json
import subprocess

import scorecard
from scorecard import HEAD, Seed, figure, merge, row


def test_a_row_by_hand():
    scores = [
        Seed(n, {"return": value, "steps": 1e5, "seconds": 10.0 + n}, "finished")
        for n, value in ((0, 480.0), (1, 500.0))
    ]
    text = row("cartpole_ppo", [*scores, Seed(2, None, "failed")])
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    assert len(cells) == HEAD.splitlines()[0].count("|") - 1
    assert cells[:5] == ["`cartpole_ppo`", "200.0k", "475", "2", "490.0"]
    assert cells[5:9] == ["[480.0, 500.0]", "480.0, 500.0", "100.0k", "10"]
    assert cells[9:] == ["2: failed", "`python benchmarks/scorecard.py cartpole_ppo --seeds 0 1 2`"]


def test_recipes_that_were_never_begun_have_no_row_but_failures_do():
    assert row("cartpole_ppo", [Seed(0, None, "not there")]) is None
    assert "| 0: dead, 1: not there |" in row("cartpole_ppo", [Seed(0, None, "dead"), Seed(1, None, "not there")])


def test_rows_replace_those_of_the_same_recipe():
    page = merge("", {"b": "| `b` | 1 |", "c": "| `c` | 1 |"})
    page = merge(page, {"c": "| `c` | 2 |", "a": "| `a` | 2 |"})
    assert page.splitlines()[-3:] == ["| `a` | 2 |", "| `b` | 1 |", "| `c` | 2 |"]
    assert page.count(HEAD.splitlines()[0]) == 1


def test_an_interrupted_run_is_resumed_and_evaluated_once(tmp_path, monkeypatch):
    """`erl` is played by a function that leaves the files that the real one would leave."""
    calls = []
    path = tmp_path / "cartpole_ppo-3"
    path.mkdir()
    (path / "recipe.toml").touch()
    (path / "status.json").write_text('{"state": "interrupted"}')

    def erl(*arguments):
        calls.append(arguments)
        (path / "status.json").write_text('{"state": "finished", "steps": 900, "seconds": 5.0}')
        (path / "evals.jsonl").write_text('{"attempt": 1, "steps": 800, "kind": "full", "return_mean": 1.0}\n')
        return subprocess.CompletedProcess(arguments, 0, json.dumps({"return_mean": 480.0}), "")

    monkeypatch.setattr(scorecard, "erl", erl)
    for _ in range(2):
        found = scorecard.score("cartpole_ppo", 3, tmp_path, may_train=True)
        assert found.score == {"return": 480.0, "steps": 900, "seconds": 5.0}
    assert [arguments[0] for arguments in calls] == ["resume", "eval"]
    assert scorecard.score("cartpole_ppo", 4, tmp_path, may_train=False) == Seed(4, None, "not there")


def test_small_returns_keep_their_second_decimal():
    assert [figure(value) for value in (0.956, -9.99, 10.04, -152.26)] == ["0.96", "-9.99", "10.0", "-152.3"]
