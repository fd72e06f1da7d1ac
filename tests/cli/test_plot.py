from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from erlcli.cli.plot import plot
from erlcli.errors import ErlError, RecipeError
from erlcli.runs.layout import RunLayout

app = typer.Typer()
app.command()(plot)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunLayout]:
    monkeypatch.chdir(tmp_path)
    layouts = [RunLayout(Path(name)) for name in ("run-1", "run-2")]
    for seed, layout in enumerate(layouts):
        layout.root.mkdir()
        layout.recipe.write_text(f'[train]\nseed = {seed}\n[env]\nid = "CartPole-v1"\n')
        rows = [{"attempt": 1, "steps": n, "episode/return": n, "loss/value": 1, "time/seconds": n} for n in (1, 2, 3)]
        layout.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return layouts


def test_a_single_run_gets_its_picture_in_its_own_folder(runs: list[RunLayout]) -> None:
    result = call("run-1")
    assert (result.exit_code, result.stdout) == (0, "run-1/plots/learning_curve.png\n")
    assert Path("run-1/plots/learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert call("run-1", "--metric", "loss/value").stdout == "run-1/plots/loss_value.png\n"


def test_several_runs_get_theirs_here(runs: list[RunLayout]) -> None:
    assert call("run-1", "run-2").stdout == "learning_curves.png\n"
    assert Path("learning_curves.png").exists()
    assert not Path("run-1/plots").exists()


def test_options_reach_the_picture(runs: list[RunLayout]) -> None:
    call("run-1", "run-2", "--group", "--x", "time", "--smooth", "2", "--out", "out.svg")
    text = Path("out.svg").read_text()
    assert "run, 2 runs" in text
    assert "training time" in text


@pytest.mark.parametrize(
    ("metric", "near"), [("value", "loss/value"), ("loss/valeu", "loss/value"), ("episode/retrun", "episode/return")]
)
def test_unknown_metrics_are_answered_with_near_ones(runs: list[RunLayout], metric: str, near: str) -> None:
    error = call("run-1", "--metric", metric).exception
    assert isinstance(error, RecipeError)
    assert error.remedy is not None
    assert near in error.remedy
    assert error.expected is not None
    assert "episode/return" in error.expected


def test_a_run_without_data_is_named(runs: list[RunLayout]) -> None:
    runs[1].metrics.unlink()
    error = call("run-2").exception
    assert isinstance(error, RecipeError)
    assert "run-2: no data yet" in error.message
    assert not runs[1].plots.exists()
    result = call("run-1", "run-2")
    assert result.exit_code == 0
    assert "run-2: no data yet, left out" in result.stderr


@pytest.mark.parametrize("out", ["curve.pdf", "curve", "run-1"])
def test_names_of_no_picture_are_refused(runs: list[RunLayout], out: str) -> None:
    error = call("run-1", "--out", out).exception
    assert isinstance(error, RecipeError)
    assert out in error.message


def test_a_place_that_can_not_be_written_is_refused(runs: list[RunLayout]) -> None:
    error = call("run-1", "--out", "run-1/recipe.toml/curve.png").exception
    assert isinstance(error, RecipeError)
    assert "can't be written" in error.message


def test_a_full_disk_is_said_as_such(runs: list[RunLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    error = call("run-1", "--out", "curve.png").exception
    assert isinstance(error, ErlError)
    assert (error.exit_code, error.found) == (1, "no space left on device")
    assert not list(Path().glob("*curve.png"))


def test_what_is_no_run_is_refused(runs: list[RunLayout]) -> None:
    error = call("run-1", "nothing").exception
    assert isinstance(error, RecipeError)
    assert "nothing: not a run directory" in error.message
