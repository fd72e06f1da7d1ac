"""Whose Q values may be averaged."""

from types import SimpleNamespace

import pytest

from erlcli.engine.ensemble import _same_unit
from erlcli.recipe.load import validate


def member(**env):
    data = {"env": {"id": "ALE/Pong-v5", **env}, "algorithm": {"name": "dqn"}, "train": {"total_steps": 1000}}
    return SimpleNamespace(recipe=validate(data, "test"))


@pytest.mark.parametrize(
    "env",
    [
        {"atari": {"clip_reward": False}},
        {"atari": {"life_ends_episode": False}},
        {"kwargs": {"mode": 1}},
        {"wrappers": [{"path": "gymnasium.wrappers:TransformReward", "kwargs": {}}]},
    ],
)
def test_values_of_other_rewards_are_no_unit(env):
    assert _same_unit([member(atari={}), member(atari={}, num_envs=3)])
    assert not _same_unit([member(atari={}), member(**{"atari": {}, **env})])
