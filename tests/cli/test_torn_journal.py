"""Commands that read a tournament whose journal has lost rows."""

import re

import pytest
import typer
from typer.testing import CliRunner

from erlcli.cli.compare import compare
from erlcli.cli.plot import plot
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.layout import RunLayout
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

app = typer.Typer()
app.command("compare")(compare)
app.command("plot")(plot)


@pytest.fixture
def cup(tmp_path):
    """A tournament that has ended."""
    recipe = load_tournament("tournament_cartpole", ["tournament.members=3", "tournament.budget.steps=200_000"])
    root, store = tmp_path / "cup", MemoryStore(slice_steps=10_240)
    root.mkdir()
    (root / "recipe.toml").write_text(recipe.dump())
    Orchestrator(RunLayout(root), recipe, SimulatedBackend(store), store).run(["cpu:0", "cpu:1"])
    return root


@pytest.mark.parametrize("command", ["compare", "plot"])
def test_rows_that_cant_be_read_are_told_beside_the_result(command, cup, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = CliRunner().invoke(app, [command, str(cup)])
    lines = (cup / "journal.jsonl").read_text().splitlines(keepends=True)
    for number in (len(lines) // 2, len(lines) // 2 + 1):
        lines[number] = lines[number][:20] + "\n"
    (cup / "journal.jsonl").write_text("".join(lines))
    torn = CliRunner().invoke(app, [command, str(cup)])
    assert (whole.exit_code, torn.exit_code) == (0, 0), repr(torn.exception)
    assert "can't be read" not in whole.stderr
    told = re.fullmatch(r"cup: (\d+) rows of the journal can't be read, left out\n", torn.stderr)
    assert int(told[1]) >= 2  # and those that say nothing without them
