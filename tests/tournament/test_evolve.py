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
from erlcli.tournament import board, evolve
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
    own["evaluation"] = {"episodes": 20, "confirm_episodes": 50, "score": "mean"}
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
        entry = self.ledger.alive[member]
        facts = {"steps": entry.steps, "mean": mean, "std": half * 20**0.5 / 1.959964, "episodes": 20,
                 "ci": [mean - half, mean + half]}  # fmt: skip
        self.add(**board.evaluation(entry, kind, facts))
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
    assert (row["event"], row["member"], row["mean"], row["value"]) == ("promote", "m000", 40.0, 45.0)
    story.slice("m001")
    story.score("m001", 60.0)
    assert story.assign() == Task("confirm", "m001")
    assert story.score("m001", 20.0, "confirm") == []  # 40 over all of its episodes
    assert story.ledger.crown.member == "m000"
    assert story.assign() == Task("slice", "m002")


def test_the_lower_bound_prefers_what_is_sure():
    story = Story(recipe(members=2, evaluation={"score": "lower_bound"}))
    for member, mean, half in (("m000", 100.0, 80.0), ("m001", 60.0, 5.0)):
        story.slice(member)
        story.score(member, mean, half=half)
    assert [entry.id for entry in story.ledger.ranked()] == ["m001", "m000"]


def parent_and_child(**section):
    """Two founders, the better one confirmed, and a child of it that has trained a slice."""
    places = section.pop("members", 2)
    story = Story(recipe(members=2, leaderboard=places, selection={"kind": "truncation", "share": 0.3}, **section))
    for member, mean in (("m000", 1.0), ("m001", 20.0)):
        story.slice(member)
        story.score(member, mean)
    story.score("m001", 20.0, "confirm")
    row = story.assign()
    assert (row["event"], row["chosen"], row["probabilities"]) == ("select", "m001", [1.0, 0.0])
    story.add(**row)
    [spawn] = story.settle()
    assert (spawn["member"], spawn["parent"], spawn["steps"]) == ("m002", "m001", 1000)
    story.slice("m002")
    return story


def test_a_child_that_is_not_clearly_worse_takes_its_parents_place():
    """The best moment of a parent is no bar: what counts is that the child learnt on."""
    story = parent_and_child()
    [row] = story.score("m002", 19.5)  # +- 1
    assert (row["event"], row["member"], row["reason"]) == ("retire", "m001", "m002 goes on from it")
    assert story.ledger.crown.member == "m001"  # its weights are kept
    assert [entry.id for entry in story.ledger.ranked()] == ["m002", "m000"]


def test_a_child_that_is_clearly_worse_has_to_earn_a_place():
    story = parent_and_child()
    [row] = story.score("m002", 5.0)
    assert (row["event"], row["member"]) == ("retire", "m000")  # it has one: better than the last
    story = parent_and_child()
    [row] = story.score("m002", -5.0)
    assert (row["event"], row["member"]) == ("retire", "m002")
    assert row["reason"] == "no place among the 2 best"


def test_a_parent_whose_children_cannot_keep_up_gives_up_its_place():
    """A score that was true of a moment, and that nothing leads on from."""
    story = parent_and_child(patience=2, members=3)
    story.score("m002", 5.0)
    assert "m001" in story.ledger.alive
    story.add(**story.assign())
    [spawn] = story.settle()
    assert spawn["parent"] == "m001"
    story.slice(spawn["member"])
    [row] = story.score(spawn["member"], 4.0)
    assert (row["event"], row["member"], row["reason"]) == ("retire", "m001", "2 children could not keep up with it")
    assert story.ledger.crown.member == "m001"
    assert [entry.id for entry in story.ledger.ranked()][:1] == ["m002"]


def test_who_is_to_be_a_parent_is_played_again_first(monkeypatch):
    monkeypatch.setattr(evolve, "draw", lambda weights, random: 1)
    for recheck in (True, False):
        story = Story(recipe(members=2, evaluation={"recheck": recheck, "score": "mean"}))
        story.slice("m000")
        story.score("m000", 50.0)
        story.score("m000", 48.0, "confirm")
        story.slice("m001")
        story.score("m001", 45.0)
        following = story.assign()
        if not recheck:
            assert (following["event"], following["chosen"]) == ("select", "m001")
            continue
        assert following == Task("again", "m001")
        assert story.assign("m001")["chosen"] == "m001"  # another slot does not wait for that
        story.score("m001", 44.0, "again")
        assert story.assign()["chosen"] == "m001"  # once is enough


def test_a_score_counts_every_episode_that_the_weights_have_played():
    story = Story(recipe(members=2))
    story.slice("m000")
    story.score("m000", 50.0)
    story.score("m000", 20.0, "confirm")
    story.score("m000", 20.0, "again")
    entry = story.ledger.alive["m000"]
    assert (entry.sample.mean, entry.sample.episodes) == (pytest.approx(30.0), 60)
    assert (entry.fresh.mean, entry.fresh.episodes) == (pytest.approx(20.0), 40)
    assert entry.member.score == pytest.approx(30.0)  # as readers see it
    assert story.ledger.crown.mean == pytest.approx(20.0)  # a champion is told by what it was not chosen by
    story.slice("m000")
    story.score("m000", 70.0)  # other weights
    assert (entry.sample.mean, entry.sample.episodes, entry.fresh) == (70.0, 20, None)


def test_a_champion_that_was_lucky_falls_when_it_is_played_again():
    story = Story(recipe(members=2))
    for member, mean in (("m000", 50.0), ("m001", 45.0)):
        story.slice(member)
        story.score(member, mean)
        story.score(member, mean, "confirm")
    assert story.ledger.crown.member == "m000"
    [row] = story.score("m000", 20.0, "again")
    assert (row["event"], row["member"]) == ("promote", "m001")


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
