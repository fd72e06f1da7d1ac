"""What is suggested where a tournament has nothing left to do: what is followed has to train on."""

import pytest

from erlcli.recipe.load import merge
from erlcli.recipe.tournament import check_tournament, load_tournament
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.tournament.ledger import fold
from erlcli.tournament.limits import raised
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

SMALL = ["tournament.mode=independent", "tournament.members=2", "tournament.slice.steps=1000",
         "train.total_steps=3000", "train.target_return=10_000"]  # fmt: skip


class Cup:
    """A tournament that is run, and run again with other settings."""

    def __init__(self, root, *overrides):
        self.layout, self.store = RunLayout(root), MemoryStore()
        self.recipe = load_tournament("tournament_cartpole", [*SMALL, *overrides])

    def run(self):
        backend = SimulatedBackend(self.store)
        assert Orchestrator(self.layout, self.recipe, backend, self.store).run(["cpu:0"]).state == "finished"
        return self.ledger.completed

    @property
    def ledger(self):
        return fold(read(self.layout.root / "journal.jsonl"), lower_bound=True)

    def raise_limits(self):
        settings = raised(self.ledger, self.recipe)
        data = self.recipe.base.to_toml() | {"tournament": self.recipe.section.model_dump(exclude_none=True)}
        self.recipe = check_tournament(merge(data, settings), "test")
        return settings


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        ([], ["train.total_steps=6000"]),  # the budget, which is auto, with it
        (["tournament.budget.steps=4000"], ["tournament.budget.steps=8000"]),
        (["tournament.budget.steps=6000"], ["train.total_steps=6000", "tournament.budget.steps=12000"]),
        (["tournament.budget.steps=9000"], ["train.total_steps=6000"]),  # nobody was left to train
        (["tournament.budget.seconds=1.5"], ["tournament.budget.seconds=3"]),
        (["train.target_return=-100", "tournament.budget.steps=5000"], ["tournament.budget.steps=10000"]),
    ],
)
def test_the_limits_that_were_met_are_doubled_and_it_trains_on(overrides, settings, tmp_path):
    cup = Cup(tmp_path, *overrides)
    before = cup.run()
    assert cup.run() == before
    assert cup.raise_limits() == settings
    assert cup.run() > before


def test_a_limit_that_was_lowered_below_what_is_used_is_raised_above_it(tmp_path):
    cup = Cup(tmp_path, "tournament.budget.steps=5000")
    before = cup.run()
    cup.recipe = load_tournament("tournament_cartpole", [*SMALL, "tournament.budget.steps=1000"])
    assert cup.run() == before
    assert cup.raise_limits() == ["tournament.budget.steps=8000"]
    assert cup.run() > before
