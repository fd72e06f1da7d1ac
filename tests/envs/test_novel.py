"""Classic control without velocities."""

import gymnasium
import numpy as np
import pytest

from erlcli.envs.catalogue import catalogue
from erlcli.envs.config import EnvConfig, choose_backend
from erlcli.envs.single import make_env


@pytest.mark.parametrize(
    ("name", "like", "entries"),
    [("CartPoleNoVel-v1", "CartPole-v1", [0, 2]), ("PendulumNoVel-v1", "Pendulum-v1", [0, 1])],
)
def test_it_is_the_known_env_without_velocities(name, like, entries):
    env, known = make_env(EnvConfig(name)), gymnasium.make(like)
    assert env.spec.max_episode_steps == known.spec.max_episode_steps
    assert env.spec.reward_threshold == known.spec.reward_threshold
    obs, whole = env.reset(seed=3)[0], known.reset(seed=3)[0]
    known.action_space.seed(0)
    for _ in range(30):
        assert obs.dtype == np.float32 and env.observation_space.contains(obs)
        np.testing.assert_array_equal(obs, whole[entries])
        action = known.action_space.sample()
        (obs, *row, _), (whole, *expected, _) = env.step(action), known.step(action)
        assert row == expected
        if row[1]:
            break


def test_pictures_are_those_of_the_known_env():
    env = make_env(EnvConfig("CartPoleNoVel-v1"), "rgb_array")
    env.reset(seed=0)
    assert env.render().shape[2] == 3 and env.metadata["render_fps"] == 50
    env.close()


def test_they_are_listed_and_stepped_by_gymnasium():
    found = {entry.id: entry for entry in catalogue("novel")}
    assert set(found) == {"CartPoleNoVel-v1", "PendulumNoVel-v1"}
    assert {entry.family for entry in found.values()} == {"Partial observation"}
    assert all(entry.needs is None and not entry.envpool for entry in found.values())
    assert choose_backend(EnvConfig("CartPoleNoVel-v1"))[0] == "gymnasium"
