"""Founders share the search space among them."""

from math import log10
from random import Random

import pytest

from erlcli.recipe.distributions import Choice, LogUniform, Uniform
from erlcli.recipe.founders import Turn
from erlcli.recipe.space import Space


def founders(space, count, seed=3, **options):
    return [space.sample(Random(100 + i), Turn(i, count, seed, **options)) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 8, 33])
def test_every_founder_has_another_part_of_each_range(count):
    space = Space({"algorithm.gamma": Uniform(2.0, 4.0), "algorithm.tau": LogUniform(1e-6, 1e-2)}, {}, "ppo")
    drawn = founders(space, count)
    gamma = sorted((settings["algorithm.gamma"] - 2.0) / 2.0 * count for settings in drawn)
    assert [int(place) for place in gamma] == list(range(count))
    tau = sorted((log10(settings["algorithm.tau"]) + 6.0) / 4.0 * count for settings in drawn)
    assert [int(place) for place in tau] == list(range(count))


def test_choices_come_equally_often():
    drawn = founders(Space({"algorithm.gamma": Choice((1, 2, 3))}, {}, "ppo"), 9)
    assert sorted(settings["algorithm.gamma"] for settings in drawn) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_keys_are_shared_in_different_orders_and_a_seed_repeats_them():
    space = Space({f"algorithm.{name}": Uniform(0.0, 1.0) for name in "abc"}, {}, "ppo")
    drawn = founders(space, 16)
    orders = {tuple(int(settings[key] * 16) for settings in drawn) for key in space.common}
    assert len(orders) == 3
    assert founders(space, 16) == drawn
    assert founders(space, 16, seed=4) != drawn


def test_each_algorithm_has_the_whole_space():
    """Of seven founders four have the first, each another quarter, and three the second, each another quarter, too."""
    names = Choice(("dqn", "ppo"))
    drawn = founders(Space({"algorithm.name": names, "algorithm.gamma": Uniform(0.0, 1.0)}, {}, "ppo"), 7)
    assert [settings["algorithm.name"] for settings in drawn] == ["dqn", "ppo"] * 3 + ["dqn"]
    quarters = [int(settings["algorithm.gamma"] * 4) for settings in drawn]
    assert sorted(quarters[::2]) == [0, 1, 2, 3]
    assert len(set(quarters[1::2])) == 3


def test_one_that_shares_nothing_may_have_all():
    space = Space({"algorithm.gamma": Uniform(0.0, 1.0)}, {}, "ppo")
    apart = [space.sample(Random(i), Turn(0, 8, 3))["algorithm.gamma"] for i in range(50)]
    free = [space.sample(Random(i), Turn(0, 8, 3, shares=False))["algorithm.gamma"] for i in range(50)]
    assert len({int(value * 8) for value in apart}) == 1
    assert free == [Random(i).random() for i in range(50)]
