"""Discrete SAC by hand: soft values, the sign of the temperature's gradient, the actor's optimum."""

import math

import pytest
import torch

from erlcli.algorithms.config.sac_discrete import DiscreteSACConfig
from erlcli.algorithms.sac_discrete import DiscreteSAC
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete, EnvSpec

INF = float("inf")
C, F = 3, 2


def make(**settings):
    torch.manual_seed(0)
    spec = EnvSpec(Box((F,), "float32", (-INF,) * F, (INF,) * F), Discrete(C), 2)
    config = DiscreteSACConfig(**{"warmup_steps": 0, "replay": {"capacity": 100}, **settings})
    return DiscreteSAC(config, Context(spec, NetworkConfig((16,), "relu")))


def transitions(reward, discount=0.0, size=32):
    source = torch.Generator().manual_seed(1)
    obs = torch.randn(size // C + 1, F, generator=source).repeat_interleave(C, 0)[:size]  # each with every action
    action = torch.arange(size) % C
    reward = reward[action] if isinstance(reward, torch.Tensor) else torch.full((size,), reward)
    return Transitions(
        obs, action, reward, obs.flip(0), torch.full((size,), discount), torch.ones(size), torch.arange(size)
    )


class Table(torch.nn.Module):
    """The same numbers for every row: (C,), or (E, C) of an ensemble."""

    def __init__(self, values):
        super().__init__()
        self.table = torch.tensor(values)

    def forward(self, features):
        return self.table.unsqueeze(-2).expand(*self.table.shape[:-1], len(features), self.table.shape[-1])


def test_the_soft_value_by_hand():
    """The smaller critic for every choice, minus alpha log pi, weighted by pi."""
    made = make()
    probs = torch.tensor([0.5, 0.25, 0.25])
    made.policy.network = Table(probs.log().tolist())
    made.target.module = Table([[1.0, 5.0, 3.0], [2.0, 4.0, 9.0]])
    alpha = torch.tensor(0.1)
    expected = sum(p * (q - 0.1 * math.log(p)) for p, q in zip(probs.tolist(), [1.0, 4.0, 3.0], strict=True))
    torch.testing.assert_close(made.next_value(torch.zeros(4, F), alpha), torch.full((4,), expected))


@pytest.mark.parametrize(("share", "rises"), [(0.99, True), (0.2, False)])
def test_the_temperature_rises_where_there_is_too_little_entropy_and_falls_where_there_is_too_much(share, rises):
    made = make(target_entropy_share=share, alpha=0.5, learning_rate=1e-2)
    logits = [1.0, 0.0, 0.0] if rises else [0.0, 0.0, 0.0]
    last = made.policy.network[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(logits))
    made.learn(transitions(0.0))
    assert (float(made.temperature.alpha()) > 0.5) is rises


def test_the_temperatures_gradient_by_hand():
    made = make(target_entropy_share=0.5)
    entropy = math.log(C)  # of a policy with equal logits
    with torch.no_grad():
        made.policy.network[-1].weight.zero_()
    made.learn(transitions(0.0))
    assert float(made.temperature.log_alpha.grad) == pytest.approx(entropy - 0.5 * math.log(C), rel=1e-5)
    assert made.target_entropy == pytest.approx(0.5 * math.log(3))


def test_a_fixed_temperature_stays():
    made = make(learn_alpha=False, alpha=0.3)
    for _ in range(3):
        made.learn(transitions(1.0))
    assert float(made.temperature.alpha()) == pytest.approx(0.3)


def test_critic_and_actor_go_to_the_closed_form():
    """One-step rewards 0, 0.5, 1 with alpha fixed: Q is the reward, pi the softmax of Q / alpha."""
    made = make(learn_alpha=False, alpha=0.5, learning_rate=1e-2)
    rows = transitions(torch.tensor([0.0, 0.5, 1.0]))
    for _ in range(500):
        metrics = made.learn(rows)
    with torch.no_grad():
        q = made.critic(rows.obs)
        probs = made.policy.logits(rows.obs).softmax(-1)
    torch.testing.assert_close(q, torch.tensor([0.0, 0.5, 1.0]).expand_as(q), atol=0.1, rtol=0)
    expected = (torch.tensor([0.0, 0.5, 1.0]) / 0.5).softmax(-1)
    torch.testing.assert_close(probs, expected.expand_as(probs), atol=0.04, rtol=0)
    assert float(metrics["policy/entropy"]) == pytest.approx(-float((expected * expected.log()).sum()), abs=0.02)


def test_soft_values_count_the_entropy():
    """Reward 0 for ever, gamma 0.5, alpha 1: the uniform policy is best and V = log C / (1 - gamma)."""
    made = make(learn_alpha=False, alpha=1.0, learning_rate=1e-2, tau=0.1)
    rows = transitions(0.0, discount=0.5, size=33)
    for _ in range(500):
        made.learn(rows)
    with torch.no_grad():
        value = made.next_value(rows.obs, torch.tensor(1.0))
    torch.testing.assert_close(value, torch.full((33,), 2 * math.log(C)), atol=0.1, rtol=0)


def test_gradients_stay_where_they_belong():
    made = make()
    rows = transitions(1.0, discount=0.9)
    target = made.target.flat.clone()
    seen = {}
    for name, optimizer in made.optimizers.items():
        apply = optimizer.apply

        def noted(loss, rate, name=name, apply=apply):
            others = {other: o.flat.clone() for other, o in made.optimizers.items() if other != name}
            apply(loss, rate)
            seen[name] = all(torch.equal(made.optimizers[other].flat, flat) for other, flat in others.items())

        optimizer.apply = noted
    made.critic_before = made.optimizers["critic"].flat.clone()
    made.learn(rows)
    assert seen == {"critic": True, "actor": True}
    torch.testing.assert_close(made.target.flat, torch.lerp(target, made.optimizers["critic"].flat, 0.005))
    critic_grad = made.optimizers["critic"].grad.clone()
    made._improve(rows.obs, torch.tensor(1.0))
    assert torch.equal(made.optimizers["critic"].grad, critic_grad), "the actor's loss reached the critics"


def test_warm_up_is_uniform_and_sampling_follows_the_policy():
    made = make(warmup_steps=5)
    probs = torch.tensor([0.7, 0.2, 0.1])
    made.policy.network = Table(probs.log().tolist())
    noise = made.policy.noise((20_000,), torch.Generator().manual_seed(0), torch.device("cpu"))

    def shares():
        return torch.bincount(made.policy.act(torch.zeros(20_000, F), noise)[0], minlength=C) / 20_000

    torch.testing.assert_close(shares(), torch.full((C,), 1 / C), atol=0.015, rtol=0)
    made.policy.warmup.fill_(False)
    torch.testing.assert_close(shares(), probs, atol=0.015, rtol=0)
    assert (made.policy.act_greedy(torch.zeros(4, F)) == 0).all()


def test_priorities_are_the_critics_mean_error():
    made = make()
    given = []
    made.replay.update_priorities = lambda index, error: given.append(error)
    rows = transitions(2.0)
    with torch.no_grad():
        q = made.critic(rows.obs).gather(-1, rows.action.view(1, -1, 1).expand(2, -1, 1)).squeeze(-1)
    made.learn(rows)
    torch.testing.assert_close(given[0], (q - 2.0).abs().mean(0))
