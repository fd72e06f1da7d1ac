"""Decisions, one at a time, and populations of several algorithms."""

from typing import ClassVar, Literal

import pytest
from pydantic import Field

from erlcli.algorithms import registry
from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.recipe.load import read_toml
from erlcli.recipe.shipped import find
from erlcli.recipe.tournament import check_tournament
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.tournament import evolve
from erlcli.tournament.evolve import Task
from erlcli.tournament.ledger import Ledger
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend


class TwinConfig(AlgorithmConfig):
    """A second algorithm: keys of its own."""

    implementation: ClassVar[str] = "nowhere:Twin"
    name: Literal["twin"] = Field("twin", description="Algorithm.")
    rollout_length: int = Field(64, ge=1, description="T.")
    learning_rate: float = Field(1e-3, gt=0, lt=1, description="Step size.")
    tau: float = Field(0.01, gt=0, le=1, description="Of its targets.")


@pytest.fixture
def two_algorithms(monkeypatch):
    both = {**registry.configs(), "twin": TwinConfig}
    monkeypatch.setattr(registry, "configs", lambda: both)


def recipe(search=None, **section):
    data = read_toml(find("tournament_cartpole"))
    data["train"] |= {"total_steps": 50_000, "target_return": section.pop("target", 1e6)}
    own = data["tournament"]
    own["slice"], own["budget"] = {"steps": 1000}, {"steps": section.pop("budget", 20_000)}
    if search is not None:
        own["search"] = search
    return check_tournament(data | {"tournament": own | section}, "test")


MIXED = {
    "algorithm.name": {"kind": "choice", "values": ["ppo", "twin"]},
    "algorithm.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 1e-1},
    "ppo": {"algorithm.epochs": {"kind": "int", "low": 1, "high": 20}},
    "twin": {"algorithm.tau": {"kind": "loguniform", "low": 1e-3, "high": 1.0}, "algorithm.rollout_length": 16},
}


@pytest.mark.parametrize("mode", ["tournament", "generational", "pbt"])
def test_several_algorithms_in_one_population(mode, two_algorithms, tmp_path):
    made = recipe(MIXED, mode=mode, members=8, budget=60_000, mutation={"crossover": 0.5, "probability": 1.0})
    store = MemoryStore(slice_steps=1000)
    Orchestrator(RunLayout(tmp_path), made, SimulatedBackend(store), store).run(["cpu:0", "cpu:1", "cpu:2"])
    ledger = Ledger()
    for row in read(tmp_path / "journal.jsonl"):
        ledger.add(row)
    members = ledger.board.members.values()
    assert {member.algorithm for member in members if member.parent is None} == {"ppo", "twin"}
    assert any(member.parent is not None for member in members)
    for member in members:
        assert member.parent is None or member.algorithm == member.parent.algorithm
        found = made.member(member.parameters, 0)
        assert found.algorithm.name == member.algorithm == member.parameters["algorithm.name"]
        if member.algorithm == "twin":
            assert found.algorithm.rollout_length == 16
            assert "algorithm.epochs" not in member.parameters
        else:
            assert found.algorithm.gae_lambda == 0.95  # from the recipe, which is of ppo
            assert "algorithm.tau" not in member.parameters


class Story:
    """A ledger, told row by row."""

    def __init__(self, made):
        self.recipe = made
        self.ledger = Ledger(lower_bound=made.section.evaluation.score == "lower_bound")
        self.add("open")
        self.add("slots", slots=["cpu:0", "cpu:1"])
        self.settle()

    def add(self, event, **facts):
        seq = self.ledger.board.seq + 1
        row = {"seq": seq, "time": float(seq), "event": event, **facts}
        assert self.ledger.add(row)
        return row

    def settle(self):
        rows = []
        while (row := evolve.settle(self.ledger, self.recipe)) is not None:
            rows.append(self.add(**row))
        return rows

    def slice(self, member, slot="cpu:0"):
        steps = self.ledger.alive[member].steps
        self.add("slice_start", member=member, slot=slot, from_steps=steps, until_steps=steps + 1000)
        self.add("slice_end", member=member, to_steps=steps + 1000, why="budget")

    def score(self, member, mean, kind="slice", half=1.0):
        steps = self.ledger.alive[member].steps
        self.add("evaluate", member=member, kind=kind, steps=steps, mean=mean, std=1.0, episodes=20,
                 ci=[mean - half, mean + half])  # fmt: skip
        return self.settle()

    def assign(self, *busy):
        return evolve.assign(self.ledger, self.recipe, set(busy))


def test_founders_come_first_and_get_slices_in_order():
    story = Story(recipe(members=3))
    assert list(story.ledger.alive) == ["m000", "m001", "m002"]
    assert story.assign() == Task("slice", "m000")
    assert story.assign("m000") == Task("slice", "m001")


def test_a_slice_without_a_score_is_evaluated_before_all_else():
    story = Story(recipe(members=3))
    story.slice("m001")
    assert story.assign() == Task("evaluate", "m001")


def test_a_contender_is_confirmed_then_promoted_and_a_lucky_one_is_not():
    story = Story(recipe(members=3))
    story.slice("m000")
    assert story.score("m000", 50.0) == []
    assert story.assign() == Task("confirm", "m000")
    assert story.assign("m000") == Task("slice", "m001")  # the others don't wait for it
    [row] = story.score("m000", 40.0, "confirm")
    assert (row["event"], row["member"], row["mean"]) == ("promote", "m000", 40.0)
    story.slice("m001")
    story.score("m001", 60.0)
    assert story.assign() == Task("confirm", "m001")
    assert story.score("m001", 35.0, "confirm") == []
    assert story.ledger.crown.member == "m000"
    assert story.assign() == Task("slice", "m002")


def test_the_lower_bound_prefers_what_is_sure():
    story = Story(recipe(members=2, evaluation={"score": "lower_bound"}))
    for member, mean, half in (("m000", 100.0, 80.0), ("m001", 60.0, 5.0)):
        story.slice(member)
        story.score(member, mean, half=half)
    assert [entry.id for entry in story.ledger.ranked()] == ["m001", "m000"]


def test_the_board_keeps_the_best_and_children_start_from_it():
    story = Story(recipe(members=2, selection={"kind": "truncation", "share": 0.5}))
    for member, mean in (("m000", 1.0), ("m001", 2.0)):
        story.slice(member)
        story.score(member, mean)
    story.score("m001", 2.0, "confirm")
    row = story.assign()
    assert (row["event"], row["chosen"], row["probabilities"]) == ("select", "m001", [1.0, 0.0])
    story.add(**row)
    [spawn] = story.settle()
    assert (spawn["member"], spawn["parent"], spawn["steps"]) == ("m002", "m001", 1000)
    story.slice("m002")
    [row] = story.score("m002", 1.5)
    assert (row["event"], row["member"]) == ("retire", "m000")


def test_in_a_generation_nobody_begins_before_all_are_done():
    story = Story(recipe(mode="generational", members=4))
    for number, member in enumerate(["m000", "m001", "m002"]):
        story.slice(member)
        story.score(member, 10.0 - number)
    story.score("m000", 10.0, "confirm")
    assert story.assign("m003") is None
    story.slice("m003")
    rows = story.score("m003", 0.0)
    assert [row["event"] for row in rows] == ["generation", "retire", "retire", "select", "spawn", "select", "spawn"]
    assert rows[0]["survivors"] == ["m000", "m001"]
    assert {row["member"] for row in rows[1:3]} == {"m002", "m003"}
    assert {row["parent"] for row in rows if row["event"] == "spawn"} <= {"m000", "m001"}
    assert story.assign() == Task("slice", "m000")  # survivors train on


def test_pbt_replaces_the_worst_when_its_turn_comes():
    story = Story(recipe(mode="pbt", members=4))
    for number, member in enumerate(["m000", "m001", "m002", "m003"]):
        story.slice(member)
        story.score(member, float(number))
    story.score("m003", 3.0, "confirm")
    row = story.assign()
    assert (row["event"], row["member"]) == ("retire", "m000")
    story.add(**row)
    row = story.assign()
    assert row["event"] == "select"
    story.add(**row)
    [spawn] = story.settle()
    assert spawn["parent"] == row["chosen"] != "m000"
    assert story.assign() == Task("slice", "m001")


def test_a_lineage_that_has_used_its_budget_is_no_parent():
    story = Story(recipe(members=1, budget=1_000_000))
    for _ in range(50):
        [name] = [entry.id for entry in story.ledger.alive.values() if entry.slices == 0]
        story.slice(name)
        story.score(name, float(story.ledger.alive[name].steps))
        story.score(name, float(story.ledger.alive[name].steps), "confirm")
        row = story.assign()
        if row is not None:
            story.add(**row)
            story.settle()
    assert row is None
    assert story.ledger.crown.steps == 50_000


def test_the_budget_counts_what_is_begun():
    story = Story(recipe(members=3, budget=2_500))
    for member in ("m000", "m001"):
        story.add("slice_start", member=member, slot="cpu:0", from_steps=0, until_steps=1000)
    assert story.assign() == Task("slice", "m002")
    story.add("slice_start", member="m002", slot="cpu:1", from_steps=0, until_steps=1000)
    assert not evolve.may_launch(story.ledger, story.recipe)


def test_what_was_parked_goes_on_before_anything_new():
    story = Story(recipe(members=3))
    story.add("slice_start", member="m000", slot="cpu:0", from_steps=0, until_steps=1000)
    story.add("slice_end", member="m000", to_steps=400, why="stopped")
    story.add("park", member="m000")
    assert story.assign() == {"event": "revive", "member": "m000"}
    story.add("revive", member="m000")
    assert story.assign() == Task("slice", "m000")
    assert story.ledger.alive["m000"].until == 1000
    assert story.ledger.completed == 0
