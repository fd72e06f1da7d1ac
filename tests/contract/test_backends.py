"""What every environment backend has to do; a new one is found by itself.

Dimension letters: N environments.
"""

import importlib.util
from typing import get_args

import pytest
import torch

from erlcli.core.types import Box, Discrete, EnvSpec
from erlcli.envs.config import EnvConfig
from erlcli.envs.vecenv import make_vec_env
from erlcli.recipe.schema import EnvSection

BACKENDS = [name for name in get_args(EnvSection.model_fields["backend"].annotation) if name != "auto"]
IDS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
OWN_IDS = {"torch": {"discrete": "torch/CartPole-v1", "continuous": "torch/Pendulum-v1"}}  # of the same tasks
N = 5

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_kind = pytest.mark.parametrize("kind", sorted(IDS))


def vec_env(backend, kind="discrete", num_envs=N, **settings):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return make_vec_env(EnvConfig(OWN_IDS.get(backend, IDS)[kind], backend, num_envs, threads=1, **settings))


def actions_for(spec, steps, seed=0):
    """Random actions in the policy's units, some of them out of bounds where that is possible."""
    source = torch.Generator().manual_seed(seed)
    if isinstance(spec.action, Discrete):
        return torch.randint(spec.action.n, (steps, spec.num_envs), generator=source)
    return torch.randn(steps, spec.num_envs, spec.action.size, generator=source)


def last_obs(step):
    """Copies of the true last observations of episodes that were reset within the step, by index."""
    if step.next_obs is None:
        return {n: last.clone() for n, last in (step.final_obs or {}).items()}
    ended = (step.terminated | step.truncated).nonzero().flatten().tolist()
    return {n: step.next_obs[n].clone() for n in ended}


def play(env, seed, steps, first_index=0):
    """Copies of all that happens."""
    obs = [env.reset(seed, first_index).clone()]
    rows = []
    for action in actions_for(env.spec, steps):
        step = env.step(action)
        final = last_obs(step)
        rows.append([step.reward.clone(), step.terminated.clone(), step.truncated.clone(), step.valid.clone(), final])
        obs.append(step.obs.clone())
    return torch.stack(obs), rows


def column(rows, i):
    return torch.stack([row[i] for row in rows])


@every_backend
@every_kind
def test_shapes_dtypes_and_device(backend, kind):
    env = vec_env(backend, kind)
    spec = env.spec
    assert isinstance(spec, EnvSpec) and spec.num_envs == N
    assert isinstance(spec.action, Discrete if kind == "discrete" else Box)
    obs_dtype = getattr(torch, spec.obs.dtype)
    obs = env.reset(0)
    assert obs.shape == (N, *spec.obs.shape) and obs.dtype == obs_dtype and obs.device == spec.device
    for action in actions_for(spec, 60):
        kept = action.clone()
        step = env.step(action)
        assert torch.equal(action, kept)
        assert step.obs.shape == (N, *spec.obs.shape) and step.obs.dtype == obs_dtype
        assert step.reward.shape == (N,) and step.reward.dtype == torch.float32
        for flag in (step.terminated, step.truncated, step.valid):
            assert flag.shape == (N,) and flag.dtype == torch.bool
        assert torch.isfinite(step.obs).all() and torch.isfinite(step.reward).all()
        assert (step.next_obs is not None) == spec.gives_next_obs
        assert step.final_obs is None or step.next_obs is None
        for n, last in last_obs(step).items():
            assert 0 <= n < N and last.shape == spec.obs.shape and last.dtype == obs_dtype
    env.close()
    env.close()  # twice is fine


@every_backend
def test_an_end_comes_with_its_last_observation_or_before_a_row_that_is_not_valid(backend):
    env = vec_env(backend)
    _, rows = play(env, 1, 300)
    env.close()
    terminated, truncated, valid = (column(rows, i) for i in (1, 2, 3))
    ended = terminated | truncated
    assert ended.sum() > N
    assert valid[0].all()
    assert not (ended & ~valid).any(), "a row that is not valid ends nothing"
    for t, n in ended[:-1].nonzero().tolist():
        within_the_step = n in rows[t][4]
        assert within_the_step == bool(valid[t + 1, n]), "reset within the step, or in the next, but not both"
    for t, n in (~valid).nonzero().tolist():
        assert ended[t - 1, n], "only the row behind an end may be a mere reset"
    for t, row in enumerate(rows):
        assert all(ended[t, n] for n in row[4]), "final observations belong to ends"


@every_backend
def test_what_follows_an_end_is_a_start(backend):
    """CartPole starts within 0.05 of the middle and ends beyond 0.2 rad or 2.4 m."""
    env = vec_env(backend)
    obs, rows = play(env, 2, 300)
    env.close()
    ended, valid = column(rows, 1) | column(rows, 2), column(rows, 3)
    for t, n in ended[:-2].nonzero().tolist():
        last = rows[t][4].get(n, obs[t + 1, n])
        first = obs[t + 1, n] if valid[t + 1, n] else obs[t + 2, n]
        assert abs(last[2]) > 0.2 or abs(last[0]) > 2.4
        assert first.abs().max() <= 0.05


@every_backend
@every_kind
def test_resets_are_reproducible(backend, kind):
    env, other = vec_env(backend, kind), vec_env(backend, kind)
    first = play(env, 7, 80)
    for again in (play(env, 7, 80), play(other, 7, 80)):
        assert torch.equal(first[0], again[0])
        for i in range(4):
            assert torch.equal(column(first[1], i), column(again[1], i))
    assert not torch.equal(play(env, 8, 80)[0], first[0])
    env.close()
    other.close()


@every_backend
@every_kind
def test_environments_start_differently_whoever_steps_them(backend, kind):
    """Two workers with the same seed hold different envs, told apart by the index of their first."""
    env = vec_env(backend, kind)
    starts = [tuple(row.tolist()) for first in (0, N, 2 * N) for row in env.reset(3, first)]
    env.close()
    assert len(set(starts)) == 3 * N


@every_backend
def test_a_time_limit_truncates_and_does_not_terminate(backend):
    limit = 7
    env = vec_env(backend, "continuous", max_episode_steps=limit)
    assert env.spec.max_episode_steps == limit
    _, rows = play(env, 0, 40)
    env.close()
    terminated, truncated, valid = (column(rows, i) for i in (1, 2, 3))
    assert not terminated.any()
    lengths = []
    length = torch.zeros(N, dtype=torch.int64)
    for t in range(len(rows)):
        length += valid[t]
        lengths += length[truncated[t]].tolist()
        length[truncated[t]] = 0
    assert lengths and set(lengths) == {limit}


@every_backend
@every_kind
def test_spaces_are_those_of_gymnasium(backend, kind):
    """Evaluation happens there, whatever the training backend."""
    env, reference = vec_env(backend, kind), vec_env("gymnasium", kind)
    assert (env.spec.obs, env.spec.action) == (reference.spec.obs, reference.spec.action)
    assert env.spec.max_episode_steps == reference.spec.max_episode_steps
    env.close()
    reference.close()


@every_backend
def test_dynamics_are_those_of_gymnasium(backend):
    """Pendulum by its equations: cost of the state acted in, then the speed; actions of [-1, 1] are torques of 2."""
    env = vec_env(backend, "continuous", num_envs=1)
    obs = env.reset(11).clone()
    for action in actions_for(env.spec, 50):
        step = env.step(action)
        torque = 2.0 * action[0, 0].clamp(-1, 1)
        angle = torch.atan2(obs[0, 1], obs[0, 0])
        cost = angle**2 + 0.1 * obs[0, 2] ** 2 + 0.001 * torque**2
        assert step.reward[0].item() == pytest.approx(-cost.item(), abs=1e-4)
        speed = (obs[0, 2] + 0.05 * (15.0 * torch.sin(angle) + 3.0 * torque)).clamp(-8, 8)
        assert step.obs[0, 2].item() == pytest.approx(speed.item(), abs=1e-4)
        obs = step.obs.clone()
    env.close()
