"""Point chasing against a slow transcription of its rules, one copy and one number after another.

Dimension letters: N copies, D dimensions.
"""

import math

import numpy as np
import pytest
import torch

from erlcli.envs.config import EnvConfig
from erlcli.envs.torch_find import SHIPPED, make_torch_env
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import RecipeError

ID = "torch/PointChasing-v0"


def made(count, **kwargs):
    return make_torch_env(EnvConfig(ID, "torch", count, kwargs=kwargs))


def ball(vector):
    return vector / max(1.0, float(np.linalg.norm(vector)))


def slow_step(copy, action, noise):
    """One copy (p0, v0, p1, v1) in numpy; its next state, reward and whether the point is caught."""
    p0, v0, p1, v1 = copy
    before = np.linalg.norm(p0 - p1)
    v0 = ball(0.5 * v0 + noise)
    push = ball(action)
    v1 = 0.75 * v1 + push
    p0, p1 = p0 + 0.01 * v0, p1 + 0.01 * v1
    distance = np.linalg.norm(p0 - p1)
    caught = distance < 1
    return (p0, v0, p1, v1), before - distance - 0.02 * np.linalg.norm(push) + (8.0 if caught else 0.0), caught


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_dynamics_are_those_of_a_slow_transcription(dim):
    count = 5
    env, random = made(count, dim=dim), np.random.default_rng(dim)
    env.generator.manual_seed(3)
    state = env.initial()
    state = (state[0], state[1], state[0] + (state[2] - state[0]) / 7.0, state[3])  # at 1.14, so that some are caught
    slow = [tuple(part[i].double().numpy() for part in state) for i in range(count)]
    ends = 0
    for _ in range(60):
        noise = env.uniform(0.0, 1.0, dim)
        env.uniform = lambda low, high, *shape, noise=noise: noise
        chase = np.stack([copy[0] - copy[2] for copy in slow])
        action = np.where(random.random((count, 1)) < 0.5, chase, random.uniform(-1, 1, (count, dim)) * 2)
        state, reward, terminated = env.dynamics(state, torch.from_numpy(action.astype(np.float32)))
        del env.uniform
        obs = env.observe(state)
        for i in range(count):
            slow[i], expected, caught = slow_step(slow[i], action[i], noise[i].double().numpy())
            np.testing.assert_allclose(obs[i].numpy(), np.concatenate(slow[i]), atol=1e-4)
            assert float(reward[i]) == pytest.approx(expected, abs=1e-4)
            assert bool(terminated[i]) == caught
            ends += caught
    assert ends > 0


def test_one_step_by_hand():
    env = made(1)
    env.uniform = lambda low, high, *shape: torch.tensor([[0.6, 0.0]])
    row = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.4, 0.8]]), torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.8]])
    state, reward, terminated = env.dynamics(row, torch.tensor([[-3.0, -4.0]]))
    # v0 = (0.8, 0.4), within the ball; the push is (-0.6, -0.8), so that v1 = (-0.6, -0.2).
    expected = [0.008, 0.004, 0.8, 0.4, 2.994, 3.998, -0.6, -0.2]
    assert env.observe(state)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert float(reward) == pytest.approx(5.0 - math.hypot(2.986, 3.994) - 0.02, abs=1e-5)
    assert not terminated


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_episodes_start_at_a_distance_of_8_in_all_directions(dim):
    env = made(2000, dim=dim)
    obs = env.observe(env.initial())
    point, drift, agent, speed = obs.split(dim, 1)
    torch.testing.assert_close((point - agent).norm(dim=1), torch.full((2000,), 8.0), atol=1e-4, rtol=0)
    assert not drift.any() and not speed.any()
    assert float((point - agent).mean(0).norm()) < 1.0
    assert env.observation_space.shape == (4 * dim,) and env.action_space.shape == (dim,)


def test_an_idle_agent_is_cut_off_at_the_limit_and_what_comes_next_is_a_start():
    limit = SHIPPED[ID][1]
    env = make_vec_env(EnvConfig(ID, num_envs=3))
    assert env.spec.max_episode_steps == limit == 1024
    env.reset(0)
    for _ in range(limit - 1):
        assert not env.step(torch.zeros(3, 2)).truncated.any()
    step = env.step(torch.zeros(3, 2))
    assert step.truncated.all() and not step.terminated.any()
    assert (step.next_obs[:, :2].norm(dim=1) > 5.0).all() and (step.obs[:, :2].norm(dim=1) < 5.0).all()  # it drifts
    torch.testing.assert_close((step.obs[:, :2] - step.obs[:, 4:6]).norm(dim=1), torch.full((3,), 8.0))


def test_a_dimension_below_1_is_refused():
    with pytest.raises(RecipeError, match=r"env\.kwargs\.dim"):
        made(1, dim=0)
