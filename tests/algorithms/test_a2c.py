"""A2C against a slow transcription of the paper.

Dimension letters: T time steps, N environments.
"""

import copy

import numpy as np
import pytest
import torch
from torch import distributions as reference

from erlcli.algorithms.a2c import A2C
from erlcli.algorithms.config.a2c import A2CConfig
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, Rollout

T, N, OBS = 6, 4, 3
INF = float("inf")
ACTIONS = {"discrete": Discrete(3), "continuous": Box((2,), "float32", (-1.0,) * 2, (1.0,) * 2)}


def make(kind="discrete", **settings):
    settings = {"rollout_length": T, "max_grad_norm": 1e9, "log_std": -0.3, **settings}
    spec = EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), ACTIONS[kind], N)
    torch.manual_seed(0)
    algorithm = A2C(A2CConfig.model_validate(settings), Context(spec, NetworkConfig((16,))))
    with torch.no_grad():
        for p in algorithm.policy.network[-1].parameters():
            p.copy_(torch.randn(p.shape) * 0.5)
    return algorithm


def make_rollout(algorithm, seed):
    source = torch.Generator().manual_seed(seed)
    obs = torch.randn(T + 1, N, OBS, generator=source)
    terminated = torch.rand(T, N, generator=source) < 0.15
    truncated = (torch.rand(T, N, generator=source) < 0.15) & ~terminated
    index = (terminated | truncated).nonzero()
    with torch.no_grad():
        action, extras = algorithm.policy.act(obs[:-1], algorithm.policy.noise((T, N), source, torch.device("cpu")))
    final = FinalObs(index, torch.randn(len(index), OBS, generator=source))
    valid = torch.ones(T, N, dtype=torch.bool)
    reward = torch.randn(T, N, generator=source)
    return Rollout(obs, action, reward, terminated, truncated, valid, final, extras, 0)


def slow_gradient(algorithm, rollout, kind):
    """The sum of rewards to the end of the rollout or episode, bootstrapped there, as algorithm S3 has it."""
    config, twin = algorithm.config, copy.deepcopy(algorithm)
    policy, critic = twin.policy.double(), twin.critic.double()
    finals = dict(zip(map(tuple, rollout.final_obs.index.tolist()), rollout.final_obs.obs.double(), strict=True))
    losses = []
    for n in range(N):
        following = critic(rollout.obs[T, n].double()).item()
        for t in reversed(range(T)):
            if rollout.terminated[t, n]:
                following = 0.0
            elif rollout.truncated[t, n]:
                following = critic(finals[t, n]).item()
            following = rollout.reward[t, n].item() + config.gamma * following  # R
            obs = rollout.obs[t, n].double()
            value, params = critic(obs), policy.network(obs)
            if kind == "discrete":
                distribution = reference.Categorical(logits=params)
                log_prob, entropy = distribution.log_prob(rollout.action[t, n]), distribution.entropy()
            else:
                distribution = reference.Normal(params, policy.distribution.log_std.exp())
                log_prob = distribution.log_prob(rollout.action[t, n].double()).sum()
                entropy = distribution.entropy().sum()
            losses.append(
                -log_prob * (following - value.item())
                + config.value_coef * 0.5 * (value - following) ** 2
                - config.entropy_coef(0.0) * entropy
            )
    loss = sum(losses) / len(losses)
    parameters = [*policy.parameters(), *critic.parameters()]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_the_gradient_is_that_of_the_paper(kind):
    algorithm = make(kind, gamma=0.9, entropy_coef=0.02)
    rollout = make_rollout(algorithm, 1)
    expected = slow_gradient(algorithm, rollout, kind)
    algorithm.update(rollout, 0.0)
    torch.testing.assert_close(algorithm.optimizer.grad.double(), expected, atol=1e-5, rtol=1e-4)
    assert algorithm.updates == 1


def test_steps_are_those_of_rmsprop_with_a_corrected_start():
    algorithm = make(learning_rate=1e-2, rms_decay=0.9, rms_eps=1e-3)
    flat, square = algorithm.optimizer.flat.clone().double(), 0.0
    for k in range(4):
        algorithm.update(make_rollout(algorithm, k), 0.0)
        gradient = algorithm.optimizer.grad.double()
        square = 0.9 * square + 0.1 * gradient**2
        flat -= 1e-2 * gradient / ((square / (1 - 0.9 ** (k + 1))).sqrt() + 1e-3)
        torch.testing.assert_close(algorithm.optimizer.flat.double(), flat, atol=1e-5, rtol=1e-4)


def test_one_step_uses_every_row():
    algorithm = make()
    rollout = make_rollout(algorithm, 0)
    batch, recurrence = algorithm.prepare(rollout)
    assert len(batch.value) == T * N and recurrence is None
    metrics = {name: float(value) for name, value in algorithm.update(rollout, 0.0).items()}
    assert np.isfinite(list(metrics.values())).all() and metrics["loss/grad_norm"] > 0


def test_a_rollout_of_resets_changes_nothing():
    algorithm = make()
    before = algorithm.optimizer.flat.clone()
    rollout = make_rollout(algorithm, 0)
    fields = {f: getattr(rollout, f) for f in rollout.__dataclass_fields__}
    algorithm.update(Rollout(**{**fields, "valid": torch.zeros(T, N, dtype=torch.bool)}), 0.0)
    assert torch.equal(algorithm.optimizer.flat, before) and algorithm.updates == 0
