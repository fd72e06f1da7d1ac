"""`erl compare` of runs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from erlcli.cli.compare import compare
from erlcli.cli.compare_runs import shorten
from erlcli.errors import ErlError, RecipeError
from erlcli.runs.layout import RunLayout

app = typer.Typer()
app.command()(compare)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def figures(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, repr(result.exception)
    return json.loads(result.stdout)


def error_of(*arguments: object) -> RecipeError:
    error = call(*arguments).exception
    assert isinstance(error, RecipeError), repr(error)
    assert error.exit_code == 2
    return error


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five seeds each of a good and of a bad recipe, one of which was never evaluated."""
    monkeypatch.chdir(tmp_path)
    for gamma, base in ((0.9, 100.0), (0.99, 20000.0)):
        for seed in range(5):
            layout = RunLayout(Path("runs") / f"gamma_of_{gamma}_with_a_very_long_name-{seed}")
            layout.root.mkdir(parents=True)
            layout.recipe.write_text(
                f'[train]\nseed = {seed}\n[env]\nid = "Walk-v1"\n[algorithm]\nname = "ppo"\ngamma = {gamma}\n'
            )
            status = {"env": "Walk-v1", "algorithm": "ppo", "target_return": 150.0, "state": "finished", "steps": 3000}
            layout.status.write_text(json.dumps(status))
            rows = [
                {"attempt": 1, "steps": 1000 * n, "kind": "full", "return_mean": value, "return_ci": [value, value]}
                for n, value in enumerate((0.0, base + 99 + seed, base + seed), 1)
            ]
            layout.evals.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "runs"


def test_the_report_fits_80_columns_and_says_who_is_better(runs: Path) -> None:
    result = call(*sorted(runs.glob("*0.9_*")), *sorted(runs.glob("*0.99_*")))
    assert result.exit_code == 0, repr(result.exception)
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    assert "Walk-v1" in lines
    (row,) = (line for line in lines if line.startswith("…_0.99") and "1.00" not in line)
    assert row.split()[1:] == ["5", "20002.0", "[20000.7,", "20003.7]", "20000.0", "5/5", "2.0k"]
    (verdict,) = (line for line in lines if line.startswith("…_0.99") and "1.00" in line)
    assert verdict.split()[1:] == ["1.00", "[1.00,", "1.00]", "better"]
    assert lines[-1] == "comparison.png"
    assert Path("comparison.png").read_bytes().startswith(b"\x89PNG")
    assert not any("Fewer than" in line for line in lines)


def test_groups_by_name_come_in_the_order_given(runs: Path) -> None:
    made = figures("new=runs/gamma_of_0.99*", "old=runs/gamma_of_0.9_*")
    groups = made["environments"][0]["groups"]
    assert [(group["name"], len(group["runs"])) for group in groups] == [("new", 5), ("old", 5)]
    assert (made["against_first"][0]["name"], made["against_first"][0]["probability"]) == ("old", 0.0)
    assert made["picture"] == "comparison.png"
    assert figures(*sorted(runs.iterdir()), "--by", "algorithm")["environments"][0]["groups"][0]["name"] == "ppo"


def test_options_of_scores_and_targets(runs: Path) -> None:
    old = "old=runs/gamma_of_0.9_*"
    group = figures(old, "--score", "best", "--target", "103", "--out", "c.svg")["environments"][0]["groups"][0]
    assert group["scores"] == [199, 200, 201, 202, 203]
    assert group["target_steps"] == [2000] * 5
    assert Path("c.svg").exists()


def test_long_names_are_cut_where_they_are_alike() -> None:
    names = ["a_tournament_of_lunarlander_fast", "a_tournament_of_lunarlander_slow", "short"]
    assert shorten(names) == {
        names[0]: "a_tournamen…lander_fast", names[1]: "a_tournamen…lander_slow", "short": "short"
    }  # fmt: skip
    names = ["the_very_same_beginning_A_the_very_same_end", "the_very_same_beginning_B_the_very_same_end"]
    assert list(shorten(names).values()) == ["…ing_A_the_very_same_en", "…ing_B_the_very_same_en"]


def test_few_runs_get_no_verdict(runs: Path) -> None:
    first, *_, last = sorted(runs.iterdir())
    lines = call(first, last).stdout.splitlines()
    assert any(line.startswith("Fewer than 5 runs") for line in lines)
    assert not any("better" in line.split() and "1.00" in line and "than" not in line for line in lines)


def test_runs_without_an_evaluation_are_named_and_left_out(runs: Path) -> None:
    first, second, *_ = sorted(runs.iterdir())
    (first / "evals.jsonl").unlink()
    result = call(first, second)
    assert "not evaluated yet, left out" in result.stderr
    assert first.name not in result.stdout
    (second / "evals.jsonl").unlink()
    assert "none of the runs" in error_of(first, second).message


def test_a_full_disk_is_said_as_such(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    error = call(next(runs.iterdir())).exception
    assert isinstance(error, ErlError)
    assert (error.exit_code, error.found) == (1, "no space left on device")


def test_what_is_refused(runs: Path) -> None:
    first, *_ = sorted(runs.iterdir())
    assert "named twice" in error_of(first, f"x={first}").message
    assert error_of("x=runs/none*").found == "nothing there"
    assert "two groups" in error_of("ppo=runs/gamma_of_0.9_*", *runs.glob("*0.99*"), "--by", "algorithm").message
    assert "can't be written" in error_of(first, "--out", f"{first}/recipe.toml/c.png").message
