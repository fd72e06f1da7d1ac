"""CartPole, MountainCarContinuous and Pendulum as tensors against gymnasium's: equal states, equal actions.

Dimension letters: N environments.
"""

import gymnasium
import numpy as np
import pytest
import torch

from erlcli.envs.config import TWINS, EnvConfig
from erlcli.envs.single import make_env
from erlcli.envs.torch_find import SHIPPED, make_torch_env
from erlcli.envs.vecenv import make_vec_env

N, STEPS = 6, 200


def started(name, seed):
    """N gymnasium environments, and the tensors of their states."""
    envs = [gymnasium.make(name, disable_env_checker=True).unwrapped for _ in range(N)]
    for i, env in enumerate(envs):
        env.reset(seed=seed + i)
    state = torch.tensor(np.array([env.state for env in envs]), dtype=torch.float64)
    return envs, (state,) if name.startswith("CartPole") else (state[:, 0], state[:, 1])


def keep_upright(obs):
    """What balances a pole for long, with a little noise from the step's parity."""
    return (obs[:, 2] + 0.3 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).long()


def test_cart_pole_is_gymnasiums():
    envs, state = started("CartPole-v1", 10)
    ours = make_torch_env(EnvConfig("torch/CartPole-v1", num_envs=N))
    obs, alive, longest = ours.observe(state), [True] * N, 0
    for t in range(STEPS):
        action = keep_upright(obs) if t % 7 else torch.randint(2, (N,), generator=torch.Generator().manual_seed(t))
        state, reward, terminated = ours.dynamics(state, action)
        obs = ours.observe(state)
        assert (reward == 1).all()
        for i, env in enumerate(envs):
            if alive[i]:
                theirs, their_reward, over, _, _ = env.step(int(action[i]))
                np.testing.assert_allclose(obs[i].numpy(), theirs, atol=1e-5, rtol=0)
                assert bool(terminated[i]) == over and their_reward == 1
                alive[i], longest = not over, t + 1
    assert longest == STEPS


def test_a_pole_that_falls_ends_as_in_gymnasium():
    envs, state = started("CartPole-v1", 30)
    ours = make_torch_env(EnvConfig("torch/CartPole-v1", num_envs=N))
    push = torch.ones(N, dtype=torch.int64)
    ends = [None] * N
    for t in range(20):
        state, _, terminated = ours.dynamics(state, push)
        for i, env in enumerate(envs):
            if ends[i] is None and bool(terminated[i]) | env.step(1)[2]:
                ends[i] = t
                assert bool(terminated[i]) and env.unwrapped.steps_beyond_terminated is not None
    assert None not in ends


def test_pendulum_is_gymnasiums():
    envs, state = started("Pendulum-v1", 20)
    ours = make_torch_env(EnvConfig("torch/Pendulum-v1", num_envs=N))
    source = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        action = torch.rand(N, 1, generator=source) * 5 - 2.5  # beyond the bounds, which both clip at
        state, reward, terminated = ours.dynamics(state, action)
        assert not terminated.any()
        for i, env in enumerate(envs):
            theirs, their_reward, *_ = env.step(action[i].numpy())
            np.testing.assert_allclose(ours.observe(state)[i].numpy(), theirs, atol=1e-5, rtol=0)
            assert float(reward[i]) == pytest.approx(float(their_reward), abs=1e-5)


def test_mountain_car_is_gymnasiums():
    """From where the wall is hit at full swing, through the goal."""
    envs, (position, speed) = started("MountainCarContinuous-v0", 40)
    ours = make_torch_env(EnvConfig("torch/MountainCarContinuous-v0", num_envs=N))
    state, hit, there = (position.float(), speed.float()), False, [False] * N
    for t in range(STEPS):
        # With the motor along the speed it swings up; against it for a while, so that it does not get there at once.
        action = (state[1].sign() if t > 20 else torch.linspace(-2.0, 2.0, N)).unsqueeze(1)
        state, reward, terminated = ours.dynamics(state, action)
        hit |= bool((state[0] == -1.2).any())
        for i, env in enumerate(envs):
            theirs, their_reward, over, *_ = env.step(action[i].numpy())
            np.testing.assert_allclose(ours.observe(state)[i].numpy(), theirs, atol=1e-5, rtol=0)
            assert float(reward[i]) == pytest.approx(float(their_reward), abs=1e-5) and bool(terminated[i]) == over
            there[i] |= over
    assert hit and all(there)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_the_backend_takes_gymnasiums_ids(name):
    twin, named = (make_vec_env(EnvConfig(env_id, "torch", 3)) for env_id in (name, f"torch/{name}"))
    assert type(twin.env) is type(named.env) and twin.spec == named.spec
    envs = gymnasium.make(name)
    assert (twin.env.observation_space, twin.env.action_space) == (envs.observation_space, envs.action_space)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_starts_limits_and_thresholds_are_gymnasiums(name):
    spec = gymnasium.spec(name)
    _, limit, threshold = SHIPPED[f"torch/{name}"]
    assert (limit, threshold) == (spec.max_episode_steps, spec.reward_threshold)
    ours = make_torch_env(EnvConfig(f"torch/{name}", num_envs=4000))
    assert ours.max_episode_steps == limit
    state = torch.cat([part.view(4000, -1) for part in ours.initial()], 1).t()
    bounds = torch.tensor([0.05] * 4 if name == "CartPole-v1" else [torch.pi, 1.0], dtype=torch.float64)
    assert (state.abs().amax(1) <= bounds).all() and (state.abs().amax(1) > 0.99 * bounds).all()
    assert (state.mean(1).abs() < 0.05 * bounds).all()


def test_mountain_car_starts_at_rest_in_the_valley():
    spec = gymnasium.spec("MountainCarContinuous-v0")
    ours = make_torch_env(EnvConfig("MountainCarContinuous-v0", "torch", num_envs=4000))
    _, limit, threshold = SHIPPED["torch/MountainCarContinuous-v0"]
    assert (limit, threshold) == (spec.max_episode_steps, spec.reward_threshold) and ours.max_episode_steps == limit
    position, speed = ours.initial()
    assert -0.6 <= float(position.min()) < -0.598 and -0.402 < float(position.max()) < -0.4
    assert float(position.mean()) == pytest.approx(-0.5, abs=0.005) and not speed.any()


def test_pendulum_takes_gravity():
    made = make_vec_env(EnvConfig("torch/Pendulum-v1", kwargs={"g": 0.0}))
    made.reset(0)
    speeds = [float(made.step(torch.zeros(1, 1)).obs[0, 2]) for _ in range(3)]
    assert speeds[0] == speeds[1] == speeds[2] != 0


@pytest.mark.parametrize("env_id", list(SHIPPED))
def test_pictures(env_id):
    env = make_env(EnvConfig(env_id), "rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2
    for _ in range(3):
        env.step(env.action_space.sample())
    assert not np.array_equal(picture, env.render())
    env.close()
