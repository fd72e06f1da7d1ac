"""The two ways in which environments tell what really followed must teach the same.

Dimension letters: T time steps, N environments.
"""

import dataclasses

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, Rollout, Start
from erlcli.engine import build, checkpoint

T, N, OBS = 16, 8, 3
INF = float("inf")
DISCRETE, CONTINUOUS = Discrete(3), Box((1,), "float32", (1.0,), (3.0,))


def told_both_ways(policy, spec, seed):
    """One rollout with last observations by index, and with all next observations; both share the rest."""
    source = torch.Generator().manual_seed(seed)
    obs = torch.randn(T + 1, N, OBS, generator=source)
    terminated = torch.rand(T, N, generator=source) < 0.15
    truncated = (torch.rand(T, N, generator=source) < 0.15) & ~terminated
    index = (terminated | truncated).nonzero()
    last = torch.randn(len(index), OBS, generator=source)
    next_obs = obs[1:].clone()
    next_obs[index[:, 0], index[:, 1]] = last
    rows, state, start = [], policy.initial_state(N, torch.device("cpu")), None
    noise = policy.rollout_noise(T, N, source, torch.device("cpu"))
    if state is not None:
        start = Start(state.clone(), torch.ones(N, dtype=torch.bool))
    with torch.no_grad():
        for t in range(T):
            action, extras, state = policy.step(obs[t], noise[t], None, state)
            rows.append({"action": action, **extras})
            if state is not None:
                state = state.masked_fill((terminated | truncated)[t].unsqueeze(-1), 0.0)
    columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    by_index = Rollout(
        obs, columns.pop("action"), torch.randn(T, N, generator=source), terminated, truncated,
        torch.ones(T, N, dtype=torch.bool), FinalObs(index, last), columns, 0, start=start,
    )  # fmt: skip
    return by_index, dataclasses.replace(by_index, final_obs=FinalObs.none(obs), next_obs=next_obs)


def tensors_of(algorithm):
    tensors, values = checkpoint.flatten(algorithm.state_dict())
    return {**tensors, **{f"policy/{k}": v for k, v in algorithm.policy.state_dict().items()}}, values


def cases():
    for name in registry.configs():
        yield name, None
        if name in ("ppo", "a2c"):
            yield name, "lstm"


@pytest.mark.parametrize(("name", "recurrent"), cases())
def test_learning_is_the_same_whichever_way_it_is_told(name, recurrent, make_run):
    network = {"hidden": [16]} | ({"recurrent": recurrent, "recurrent_hidden": 8} if recurrent else {})
    recipe = make_run(name, "Bandit", network=network, algorithm={"warmup_steps": T * N}).recipe
    supports = registry.implementation(name).supports
    action = DISCRETE if supports.accepts(DISCRETE) else CONTINUOUS
    spec = EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), action, N)
    first, other = (build.algorithm(recipe, spec, torch.device("cpu")) for _ in range(2))
    for seed in range(3):
        by_index, at_once = told_both_ways(first.policy, spec, seed)
        first.update(by_index, 0.0)
        other.update(at_once, 0.0)
    (tensors, values), (others, other_values) = tensors_of(first), tensors_of(other)
    assert values == other_values and first.updates == other.updates > 0
    for key, tensor in tensors.items():
        torch.testing.assert_close(others[key], tensor, atol=1e-4, rtol=1e-4, msg=key)  # rounding of other batches


def test_last_observations_follow_from_all_next_ones(make_run):
    policy = build.policy(
        make_run("ppo", "Bandit").recipe, EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), DISCRETE, N)
    )
    by_index, at_once = told_both_ways(policy, None, 4)
    assert by_index.finals() is by_index.final_obs and not len(at_once.final_obs.index)
    assert torch.equal(at_once.finals().index, by_index.final_obs.index)
    assert torch.equal(at_once.finals().obs, by_index.final_obs.obs)
