"""Quantile regression DQN by hand and against a slow transcription of the paper."""

import numpy as np
import pytest
import torch

from erlcli.algorithms.config.qrdqn import QRDQNConfig
from erlcli.algorithms.qrdqn import QRDQN, chosen, quantile_loss
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete, EnvSpec

INF = float("inf")
C, F, K = 3, 2, 5


def make(**settings):
    torch.manual_seed(0)
    spec = EnvSpec(Box((F,), "float32", (-INF,) * F, (INF,) * F), Discrete(C), 2)
    config = QRDQNConfig(**{"quantiles": K, "warmup_steps": 0, "replay": {"capacity": 100}, **settings})
    return QRDQN(config, Context(spec, NetworkConfig((16,), "relu")))


def transitions(reward, discount, action=0):
    size = len(reward)
    obs = torch.randn(size, F, generator=torch.Generator().manual_seed(1))
    actions = torch.full((size,), action)
    return Transitions(obs, actions, reward, obs, torch.full((size,), discount), torch.ones(size), torch.arange(size))


def slow_loss(quantiles, target, kappa):
    """Algorithm 1 and equation 10, as loops."""
    count, total = len(quantiles), 0.0
    for i in range(count):
        tau, mean = (2 * (i + 1) - 1) / (2 * count), 0.0
        for goal in target:
            u = goal - quantiles[i]
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            mean += abs(tau - (u < 0)) * huber / kappa / len(target)
        total += mean
    return total


@pytest.mark.parametrize("kappa", [0.3, 1.0, 4.0])
def test_the_loss_is_the_papers(kappa):
    random = np.random.default_rng(0)
    quantiles, target = random.normal(size=(6, K)) * 2, random.normal(size=(6, 4)) * 2
    midpoints = (torch.arange(K) + 0.5) / K
    fast = quantile_loss(torch.as_tensor(quantiles), torch.as_tensor(target), midpoints, kappa)
    expected = [slow_loss(q, t, kappa) for q, t in zip(quantiles, target, strict=True)]
    np.testing.assert_allclose(fast.numpy(), expected, rtol=1e-6)


def test_the_gradient_pulls_low_quantiles_down_and_high_ones_up():
    """At the mean of a spread target: tau weighs what lies above, 1 - tau what lies below."""
    quantiles = torch.zeros(1, K, requires_grad=True)
    midpoints = (torch.arange(K) + 0.5) / K
    quantile_loss(quantiles, torch.tensor([[-10.0, 10.0]]), midpoints, 1.0).sum().backward()
    expected = [-0.5 * (tau - (1 - tau)) for tau in midpoints.tolist()]
    torch.testing.assert_close(quantiles.grad[0], torch.tensor(expected))


def test_it_learns_the_quantiles_of_a_coin():
    """Terminal rewards -1 or 1, as often: the lower quantiles go to -1, the upper ones to 1."""
    made = make(quantiles=4, learning_rate=3e-2, kappa=0.1)
    reward = torch.tensor([-1.0, 1.0]).repeat(64)
    rows = transitions(reward, 0.0)
    rows.obs.zero_()
    for _ in range(400):
        made.learn(rows)
    with torch.no_grad():
        quantiles = made.policy.network(torch.zeros(1, F))[0, 0]
        values = made.policy.values(torch.zeros(1, F))
    torch.testing.assert_close(quantiles.sort().values, torch.tensor([-1.0, -1.0, 1.0, 1.0]), atol=0.1, rtol=0)
    assert abs(float(values[0, 0])) < 0.06


def test_what_follows_is_the_target_of_the_best_mean():
    made = make(quantiles=2)

    class Table(torch.nn.Module):
        def forward(self, features):
            return torch.tensor([[0.0, 4.0], [3.0, 3.0], [-9.0, 9.0]]).expand(len(features), C, 2)

    made.target.module = Table()
    assert made.next_quantiles(torch.zeros(2, F)).tolist() == [[3.0, 3.0]] * 2


def test_chosen_picks_by_row():
    quantiles = torch.arange(2 * C * K).view(2, C, K)
    assert torch.equal(chosen(quantiles, torch.tensor([2, 0])), torch.stack([quantiles[0, 2], quantiles[1, 0]]))


def test_priorities_are_errors_of_the_means():
    made = make(gamma=0.5)
    given = []
    made.replay.update_priorities = lambda index, error: given.append(error)
    rows = transitions(torch.tensor([1.0, 5.0, -2.0]), 0.5)
    with torch.no_grad():
        now = made.policy.values(rows.obs)[:, 0]
        following = made.next_quantiles(rows.next_obs).mean(-1)
    made.learn(rows)
    torch.testing.assert_close(given[0], now - (rows.reward + 0.5 * following))


def test_targets_follow_on_the_interval():
    made = make(target_interval=3)
    before = made.target.flat.clone()
    for k in range(1, 4):
        made.learn(transitions(torch.ones(4), 0.5))
        assert torch.equal(made.target.flat, made.optimizer.flat if k == 3 else before)
