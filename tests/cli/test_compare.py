"""`erl compare`, and `erl plot` of a tournament."""

import json

import pytest
import typer
from typer.testing import CliRunner

from erlcli.cli.compare import compare
from erlcli.cli.plot import plot
from erlcli.cli.watch import parting_lines
from erlcli.errors import RecipeError
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

app = typer.Typer()
app.command("compare")(compare)
app.command("plot")(plot)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error_of(result):
    assert isinstance(result.exception, RecipeError), result.output + repr(result.exception)
    return result.exception


def made(root, mode, target=100):
    root.mkdir()
    recipe = load_tournament(
        "tournament_lunarlander",
        [f"tournament.mode={mode}", "tournament.members=4", "tournament.slice.steps=1000",
         "tournament.budget.steps=40_000", "train.total_steps=100_000", f"train.target_return={target}"],
    )  # fmt: skip
    (root / "recipe.toml").write_text(recipe.dump())
    store = MemoryStore(slice_steps=1000)
    Orchestrator(RunLayout(root), recipe, SimulatedBackend(store), store).run(["cpu:0", "cpu:1"])
    return root


@pytest.fixture(scope="module")
def cups(tmp_path_factory):
    root = tmp_path_factory.mktemp("cups")
    return made(root / "the_control_with_a_very_long_name", "independent"), made(root / "evolved", "tournament")


def test_the_report_fits_80_columns_and_says_what_it_took(cups, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("compare", *cups, *cups)
    assert result.exit_code == 0, repr(result.exception)
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "LunarLanderContinuous-v3"
    for label in ("mode", "env steps", "time", "best champion", "area", "IQM of best 5", "100 at steps"):
        assert any(line.startswith(label) for line in lines), label
    assert "the_con…g_name" in lines[2]
    assert lines[-1] == "comparison.png"
    assert (tmp_path / "comparison.png").exists()


def test_json_has_the_figures(cups, tmp_path):
    result = call("compare", *cups, "--target", "50", "--out", tmp_path / "c.svg", "--json")
    row = json.loads(result.stdout)
    control, evolved = row["tournaments"]
    assert row["target"] == 50
    assert (control["run"], evolved["run"]) == (str(cups[0]), str(cups[1]))
    assert evolved["against_first"]["best"] == pytest.approx(evolved["best"] - control["best"])
    assert {"area", "target_steps", "target_seconds", "top_iqm", "steps", "seconds"} <= set(evolved)
    assert row["picture"] == str(tmp_path / "c.svg")


def test_watching_a_tournament_ends_with_its_own_lines(cups):
    layout = RunLayout(cups[1])
    write_json(layout.status, {"state": "running", "slices": 3, "steps": 1000})  # killed before more
    lines = parting_lines(layout)
    assert lines[0].startswith("dead: ") and " members, 3 slices, 1.0k steps" in lines[0]
    assert any(line.startswith("  champion") for line in lines)
    assert lines[-1].startswith("  go on   erl resume ")
    layout.status.unlink()


def test_watching_a_live_tournament_ends_with_what_can_be_done_with_it(cups):
    layout = RunLayout(cups[1])
    write_json(layout.status, {"state": "running"})
    lock = RunLock.acquire(layout.lock)
    lines = parting_lines(layout)
    lock.release()
    layout.status.unlink()
    assert any(line.startswith("  slots   erl scale ") for line in lines)


def test_what_is_refused(cups, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("")
    error = error_of(call("compare", cups[0], run))
    assert error.exit_code == 2
    assert "is one" in error.message and "members/*" in error.remedy
    assert error_of(call("compare", cups[0], tmp_path / "none")).found == "nothing there"
    assert error_of(call("compare", tmp_path / "none")).found == "nothing there"
    assert "not for tournaments" in error_of(call("compare", *cups, "--score", "best")).message
    assert "not for runs" in error_of(call("compare", run, "--top", "3")).message
    assert "at most 4" in error_of(call("compare", *cups, *cups, cups[0])).expected
    assert "not a picture" in error_of(call("compare", *cups, "--out", "x.pdf")).message
    young = tmp_path / "young"
    young.mkdir()
    (young / "recipe.toml").write_text((cups[0] / "recipe.toml").read_text())
    (young / "journal.jsonl").touch()
    assert "no champion yet" in error_of(call("compare", cups[0], young)).message
    assert "no scores yet" in error_of(call("plot", young)).message


def test_plot_of_a_tournament(cups, tmp_path):
    result = call("plot", cups[1])
    assert result.stdout.split() == [
        str(cups[1] / "plots" / f"{name}.png") for name in ("scores", "lineage", "parameters")
    ]
    result = call("plot", cups[1], "--out", tmp_path / "cup.svg", "--x", "time")
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "cup-lineage.svg", "cup-parameters.svg", "cup-scores.svg"
    ]  # fmt: skip
    assert "several paths" in error_of(call("plot", *cups)).message
    assert "not for a tournament" in error_of(call("plot", cups[1], "--group")).message
