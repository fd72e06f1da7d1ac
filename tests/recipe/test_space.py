"""Search spaces: bounds, types, no drift, and messages for what can't be searched."""

import math
import statistics
from random import Random

import pytest

from erlcli.algorithms import registry
from erlcli.errors import RecipeError
from erlcli.recipe.distributions import Choice, Int, LogUniform, Uniform, reflect
from erlcli.recipe.space import Mutation, Space, is_structural, parse

DRAWS = 10_000
FACTORS = (0.8, 1.25)
DISTRIBUTIONS = [
    Uniform(0.9, 0.9999),
    Uniform(-2.0, 3.0),
    LogUniform(1e-6, 1e-1),
    Int(1, 20),
    Int(1, 1024, log=True),
    Int(-5, 5),
    Choice((64, 128, 256)),
    Choice(("tanh", "relu", "elu")),
    Choice(([64, 64], [128, 128])),
    Choice((False, True)),
]


def within(distribution, value):
    if isinstance(distribution, Choice):
        return value in distribution.values
    return distribution.low <= value <= distribution.high


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_ten_thousand_samples_and_mutations_keep_bounds_and_type(distribution):
    random = Random(1)
    kind = type(distribution.extremes()[0])
    value = distribution.sample(random)
    for _ in range(DRAWS):
        value = distribution.perturb(value, random, FACTORS)
        assert within(distribution, value)
        assert type(value) is kind
        sample = distribution.sample(random)
        assert within(distribution, sample)
        assert type(sample) is kind


@pytest.mark.parametrize(
    ("distribution", "start"), [(LogUniform(1e-9, 1e3), 1e-3), (Int(1, 100_000, log=True), 1000)], ids=str
)
def test_the_median_factor_of_a_mutation_is_one(distribution, start):
    random = Random(2)
    factors = [distribution.perturb(start, random, FACTORS) / start for _ in range(DRAWS)]
    assert statistics.median(factors) == pytest.approx(1.0, abs=0.01)
    assert min(factors) == pytest.approx(0.8, abs=0.01)
    assert max(factors) == pytest.approx(1.25, abs=0.01)


def test_a_mutation_of_a_linear_range_has_median_shift_zero():
    random = Random(3)
    shifts = [Uniform(0.0, 1.0).perturb(0.5, random, FACTORS) - 0.5 for _ in range(DRAWS)]
    assert statistics.median(shifts) == pytest.approx(0.0, abs=0.01)
    assert max(shifts) == pytest.approx(math.log(1.25), abs=0.01)


@pytest.mark.parametrize("start", [1, 2, 1024])
def test_whole_numbers_neither_stick_nor_drift_to_an_end(start):
    """After thousands of mutations in a row all orders of magnitude are visited about alike."""
    random, distribution, value = Random(4), Int(1, 1024, log=True), start
    octaves = [0] * 11
    for _ in range(10 * DRAWS):
        value = distribution.perturb(value, random, FACTORS)
        octaves[int(math.log2(value))] += 1
    shares = [count / (10 * DRAWS) for count in octaves[1:10]]
    assert min(shares) > 0.04
    assert max(shares) < 0.22


def test_a_small_number_can_leave_its_place_both_ways():
    random = Random(5)
    seen = {Int(1, 20, log=True).perturb(3, random, FACTORS) for _ in range(200)}
    assert seen == {2, 3, 4}


def test_numbers_of_a_choice_go_to_a_neighbour_and_words_anywhere():
    random = Random(6)
    numbers = Choice((256, 64, 128))
    assert {numbers.perturb(128, random, FACTORS) for _ in range(100)} == {64, 256}
    assert {numbers.perturb(64, random, FACTORS) for _ in range(100)} == {64, 128}
    words = Choice(("a", "b", "c"))
    assert {words.perturb("a", random, FACTORS) for _ in range(100)} == {"b", "c"}


def test_what_lies_outside_is_brought_within():
    random = Random(7)
    for distribution in (Uniform(0.0, 1.0), LogUniform(1e-3, 1.0), Int(1, 5), Choice((1, 2))):
        assert within(distribution, distribution.perturb(1e9, random, FACTORS))


@pytest.mark.parametrize(("value", "expected"), [(0.5, 0.5), (-0.25, 0.25), (1.25, 0.75), (2.5, 0.5), (-3.0, 1.0)])
def test_bounds_are_mirrors(value, expected):
    assert reflect(value, 0.0, 1.0) == pytest.approx(expected)


SPACE = Space(
    {
        "algorithm.gamma": Uniform(0.9, 0.99),
        "algorithm.name": Choice(("ppo", "other")),
        "network.hidden": Choice((1, 2)),
    },
    {
        "ppo": {"algorithm.epochs": Int(1, 20)},
        "other": {"algorithm.tau": LogUniform(1e-3, 1.0), "algorithm.n": Choice((7,))},
    },
    "ppo",
)


def test_each_algorithm_has_its_own_keys():
    random, seen = Random(8), set()
    for _ in range(100):
        settings = SPACE.sample(random)
        seen.add(settings["algorithm.name"])
        own = {"ppo": {"algorithm.epochs"}, "other": {"algorithm.tau", "algorithm.n"}}[settings["algorithm.name"]]
        assert settings.keys() == {"algorithm.gamma", "algorithm.name", "network.hidden"} | own
    assert seen == {"ppo", "other"}


def test_what_tensors_depend_on_stays_within_a_lineage():
    random = Random(9)
    settings = SPACE.sample(random)
    for _ in range(300):
        child = SPACE.mutate(settings, random, Mutation(FACTORS, 1.0, 0.5))
        assert child.keys() == settings.keys()
        assert all(child[key] == settings[key] for key in settings if is_structural(key, child["algorithm.name"]))
        settings = child
    assert not is_structural("algorithm.gamma", "ppo")
    assert not is_structural("normalize.obs_clip", "ppo")


@pytest.mark.parametrize("name", registry.configs())
def test_what_a_run_may_not_change_its_children_may_not_either(name):
    fixed = [f"algorithm.{key}" for key in registry.configs()[name].fixed if key != "name"]
    space = Space({key: Uniform(0, 1) for key in (*fixed, "algorithm.gamma")}, {}, name)
    settings = dict.fromkeys(space.common, 2.0)
    for child in (
        space.mutate(settings, Random(1), Mutation(FACTORS, 1.0, 1.0)),
        space.cross(settings, dict.fromkeys(settings, 3.0), Random(4)),
    ):
        assert all(child[key] == 2.0 for key in fixed)
        assert child["algorithm.gamma"] != 2.0


def test_crossing_takes_about_half_and_only_within_an_algorithm():
    keys = {f"algorithm.k{i}": Uniform(0, 1) for i in range(100)}
    space = Space({**keys, "algorithm.name": Choice(("ppo", "other"))}, {}, "ppo")
    mother = {**dict.fromkeys(keys, 0.0), "algorithm.name": "ppo"}
    father = {**dict.fromkeys(keys, 1.0), "algorithm.name": "ppo"}
    assert 30 < sum(space.cross(mother, father, Random(10))[key] for key in keys) < 70
    assert space.cross(mother, father | {"algorithm.name": "other"}, Random(10)) == mother


def test_no_mutation_is_no_change():
    settings = SPACE.sample(Random(11))
    assert SPACE.mutate(settings, Random(12), Mutation(FACTORS, 0.0)) == settings


def test_tables_may_be_quoted_or_nested():
    nested = parse({"algorithm": {"gamma": {"kind": "uniform", "low": 0, "high": 1}}}, "ppo", ["ppo"], "x")
    quoted = parse({"algorithm.gamma": {"kind": "uniform", "low": 0, "high": 1}}, "ppo", ["ppo"], "x")
    assert nested == quoted
    assert type(nested.common["algorithm.gamma"].low) is float


def test_subtrees_take_plain_values():
    tables = {
        "algorithm.name": {"kind": "choice", "values": ["ppo", "sac"]},
        "sac": {"algorithm.batch_size": 256, "algorithm": {"tau": {"kind": "loguniform", "low": 1e-3, "high": 0.1}}},
    }
    space = parse(tables, "ppo", ["ppo", "sac"], "x")
    assert space.keys("sac") == {"algorithm.batch_size": Choice((256,)), "algorithm.tau": LogUniform(1e-3, 0.1)}
    assert space.keys("ppo") == {}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"algorithm.gamma": {"kind": "unifrom", "low": 0, "high": 1}}, "no such distribution"),
        ({"algorithm.gamma": {"kind": "uniform", "low": 0}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "uniform", "low": 1, "high": 0}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "uniform", "low": "0", "high": 1}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "loguniform", "low": 0, "high": 1}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "int", "low": 0, "high": 1.5}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "int", "low": 0, "high": 9, "log": True}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "choice", "values": []}}, "not a distribution"),
        ({"algorithm.gamma": {"kind": "bool", "low": 0}}, "not a distribution"),
        ({"algorithm.gamma": 0.99}, "no distribution"),
        ({"train.seed": {"kind": "int", "low": 0, "high": 9}}, "can't be searched"),
        ({"env.id": {"kind": "choice", "values": ["a"]}}, "can't be searched"),
        ({"gamma": {"kind": "uniform", "low": 0, "high": 1}}, "can't be searched"),
        ({"algorithm.name": {"kind": "choice", "values": ["ppoo"]}}, "no such algorithm"),
        ({"sac": {"algorithm.tau": 1.0}}, "a subtree of an algorithm that no member has"),
    ],
)
def test_what_is_no_space_is_refused(tables, message):
    with pytest.raises(RecipeError) as caught:
        parse(tables, "ppo", ["ppo", "sac"], "file.toml")
    assert caught.value.message.startswith("file.toml: tournament.search.")
    assert caught.value.message.endswith(message)
    assert caught.value.expected and caught.value.found and caught.value.remedy
