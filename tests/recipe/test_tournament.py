"""Tournament recipes: checked like any other, and turned into recipes of members."""

import pytest

from erlcli.errors import RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.load import load, read_toml
from erlcli.recipe.tournament import DEFAULT, check_tournament, load_tournament

NAMES = list(shipped.tournaments())


def data():
    return read_toml(shipped.find("tournament_cartpole"))


def test_those_that_are_promised_are_shipped():
    assert {"tournament_cartpole", "tournament_lunarlander", "tournament_bipedal", "generational_lunarlander"} <= {
        *NAMES
    }
    assert DEFAULT in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_one_is_right_and_survives_dump_and_load(name, tmp_path):
    recipe = load_tournament(name)
    path = tmp_path / "dump.toml"
    path.write_text(recipe.dump())
    again = load_tournament(path)
    assert (again.base, again.section, again.space) == (recipe.base, recipe.section, recipe.space)
    assert recipe.base.train.target_return is not None
    assert shipped.title(shipped.find(name).read_text()).endswith(".")
    assert "train" in shipped.find(name).read_text()


def test_a_member_is_an_ordinary_recipe():
    recipe = load_tournament("tournament_cartpole")
    member = recipe.member({"algorithm.learning_rate": 1e-4, "network.hidden": [32]}, 7)
    assert (member.train.seed, member.network.hidden) == (7, [32])
    assert member.algorithm.learning_rate(0.5) == 1e-4
    assert not hasattr(member, "tournament")


def test_train_points_to_the_right_command():
    with pytest.raises(RecipeError) as caught:
        load("tournament_cartpole")
    assert "erl tournament tournament_cartpole" in caught.value.remedy


def test_tournament_points_to_the_right_command():
    with pytest.raises(RecipeError) as caught:
        load_tournament("cartpole_ppo")
    assert "erl train cartpole_ppo" in caught.value.remedy


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        ("tournament_cartpole", "algorithm.learning_rate=1e-3"),
        ("tournament_cartpole", 'algorithm.learning_rate={kind="linear", start=1e-3, end=0.0}'),
        ("tournament_mixed_cartpole", "algorithm.name=ppo"),
        ("tournament_mixed_cartpole", "algorithm.epochs=5"),  # which only members of the recipe's own algorithm have
    ],
)
def test_a_searched_key_that_is_set_would_be_set_for_nobody(recipe, override):
    with pytest.raises(RecipeError, match="is searched") as caught:
        load_tournament(recipe, [override])
    assert override.partition("=")[0] in caught.value.message


def test_a_key_that_is_searched_for_some_algorithms_is_set_for_the_others():
    search = "tournament.search.ppo.env.frame_stack={kind='choice', values=[1, 2]}"
    assert load_tournament("tournament_mixed_cartpole", [search, "env.frame_stack=3"]).base.env.frame_stack == 3


def test_overrides_reach_both_parts():
    recipe = load_tournament("tournament_cartpole", ["tournament.members=3", "tournament.mode=pbt", "env.num_envs=16"])
    assert (recipe.section.members, recipe.section.mode, recipe.base.env.num_envs) == (3, "pbt", 16)
    assert recipe.leaderboard == 3


@pytest.mark.parametrize(
    ("override", "key", "what"),
    [
        ("tournament.mode=pbtt", "tournament.mode", "no such choice"),
        ("tournament.members=0", "tournament.members", "out of range"),
        ("tournament.membres=3", "tournament.membres", "unknown key"),
        ("tournament.slice.step=3", "tournament.slice.step", "unknown key"),
        ("tournament.slice.seconds=3.0", "tournament.slice", "does not fit the rest of the recipe"),
        ("tournament.slice.steps=300_000", "tournament.slice.steps", "does not fit the rest of the recipe"),
        ("tournament.mutation.factors=[1.1, 1.2]", "tournament.mutation.factors",
         "does not fit the rest of the recipe"),
        ("tournament.search.algorithm.gama={kind='uniform', low=0.0, high=1.0}", "tournament.search.algorithm.gama",
         "unknown key"),
        ("tournament.search.algorithm.gae_lambda={kind='uniform', low=0.5, high=1.5}",
         "tournament.search.algorithm.gae_lambda", "out of range"),
        ("tournament.search.algorithm.batch_size={kind='uniform', low=0.5, high=1.5}",
         "tournament.search.algorithm.batch_size", "wrong type"),
        ("tournament.search.network.activation={kind='choice', values=['tanh', 'rleu']}",
         "tournament.search.network.activation", "no such choice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(override, key, what):
    with pytest.raises(RecipeError) as caught:
        load_tournament("tournament_cartpole", [override])
    assert caught.value.message == f"tournament_cartpole: {key}: {what}"
    assert caught.value.remedy


def test_pods_need_a_mode_that_fuses():
    with pytest.raises(RecipeError, match="pods_per_member"):
        load_tournament("tournament_cartpole", ["tournament.mode=pbt", "tournament.pods_per_member=2"])


def test_values_that_only_clash_with_others_are_no_fault_of_the_space():
    """A batch larger than the rollout is redrawn, since the rollout's length is searched too."""
    tables = data()
    tables["tournament"]["search"] = {
        "algorithm.batch_size": {"kind": "int", "low": 32, "high": 4096},
        "algorithm.rollout_length": {"kind": "int", "low": 8, "high": 512},
    }
    recipe = check_tournament(tables, "x")
    assert recipe.accepts({"algorithm.batch_size": 4096, "algorithm.rollout_length": 512})
    assert not recipe.accepts({"algorithm.batch_size": 4096, "algorithm.rollout_length": 8})
