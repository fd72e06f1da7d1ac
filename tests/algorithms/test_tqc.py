"""TQC: truncation and the quantile Huber loss, against loops and hand numbers.

Dimension letters: B rows of a batch, E critics, K quantiles.
"""

import numpy as np
import pytest
import torch

from erlcli.algorithms.config.tqc import TQCConfig
from erlcli.algorithms.tqc import TQC, quantile_huber
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, EnvSpec

B, OBS, A = 8, 3, 2
INF = float("inf")


def make(**settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-1.0,) * A, (1.0,) * A), 2
    )
    torch.manual_seed(0)
    return TQC(TQCConfig.model_validate(settings), Context(spec, NetworkConfig((16, 16), "relu"), seed=3))


def make_batch(seed=0, **fields):
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source)

    values = {
        "obs": draw(B, OBS), "action": draw(B, A).clamp(-1, 1), "reward": draw(B), "next_obs": draw(B, OBS),
        "discount": torch.full((B,), 0.9), "weight": torch.ones(B), "index": torch.arange(B),
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def constant_quantiles(module, rows):
    """Critics that give the same quantiles, (E, K), to everything."""
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        module.biases[-1].copy_(torch.tensor(rows).unsqueeze(1))


def slow_quantile_huber(value, target, shares):
    """Equation 10 of arXiv 1710.10044, a number at a time."""
    loss = np.zeros(value.shape[:-1])
    for place in np.ndindex(*loss.shape):
        b = place[-1]
        for i, share in enumerate(shares):
            for y in target[b]:
                u = y - value[place][i]
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                loss[place] += abs(share - (u < 0)) * huber
        loss[place] /= len(shares) * target.shape[1]
    return loss


def test_the_loss_is_the_slow_one(draws):
    value = torch.randn(3, 4, 5, generator=draws) * 2
    target = torch.randn(4, 7, generator=draws) * 2
    shares = (torch.arange(5) + 0.5) / 5
    expected = slow_quantile_huber(value.numpy(), target.numpy(), shares.numpy())
    torch.testing.assert_close(quantile_huber(value, target, shares).double(), torch.tensor(expected))


def test_the_loss_by_hand():
    value, target = torch.tensor([[0.0]]), torch.tensor([[3.0, -0.5]])
    # 0.25 * (3 - 0.5) for the one above, 0.75 * 0.5 * 0.25 for the one below
    assert float(quantile_huber(value, target, torch.tensor([0.25]))) == pytest.approx((0.625 + 0.09375) / 2)


def test_minimising_it_finds_the_quantiles():
    target = torch.linspace(0, 100, 2001).unsqueeze(0)
    shares = torch.tensor([0.1, 0.5, 0.9])
    value = torch.full((1, 3), 50.0, requires_grad=True)
    optimizer = torch.optim.Adam([value], lr=0.5)
    for _ in range(800):
        optimizer.zero_grad()
        quantile_huber(value, target, shares).sum().backward()
        optimizer.step()
    torch.testing.assert_close(value.detach(), torch.tensor([[10.0, 50.0, 90.0]]), atol=1.0, rtol=0)


def test_shares_are_midpoints():
    assert make(quantiles=4, drop=1).shares.tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize(("drop", "kept"), [(0, [1, 2, 3, 4, 5, 9]), (1, [1, 2, 3, 4]), (2, [1, 2])])
def test_the_largest_of_the_mixture_are_dropped(drop, kept):
    """Of the mixture, not of each critic: the first has the three lowest here."""
    algorithm = make(critics=2, quantiles=3, drop=drop, alpha=1e-9)
    constant_quantiles(algorithm.target_critic.module, [[3.0, 1.0, 2.0], [9.0, 4.0, 5.0]])
    batch = make_batch(reward=torch.full((B,), 10.0), discount=torch.full((B,), 0.5))
    target = algorithm.target(batch, *algorithm.draws(B))
    torch.testing.assert_close(target, 10 + 0.5 * torch.tensor(kept).float().expand(B, -1))


def test_the_entropy_is_part_of_each_quantile_and_discounted():
    algorithm = make(critics=1, quantiles=2, drop=0, alpha=0.5)
    constant_quantiles(algorithm.target_critic.module, [[1.0, 2.0]])
    batch = make_batch()
    state = algorithm.generator.get_state()
    _, _, cost = algorithm.next_action(batch, *algorithm.draws(B))
    algorithm.generator.set_state(state)
    expected = batch.reward.unsqueeze(1) + 0.9 * (torch.tensor([1.0, 2.0]) - cost.unsqueeze(1))
    torch.testing.assert_close(algorithm.target(batch, *algorithm.draws(B)), expected)


def test_where_the_discount_is_0_the_target_is_the_reward():
    batch = make_batch(discount=torch.zeros(B))
    algorithm = make(critics=2, quantiles=5, drop=1)
    target = algorithm.target(batch, *algorithm.draws(B))
    assert target.shape == (B, 8) and torch.equal(target, batch.reward.unsqueeze(1).expand(B, 8))


def test_critics_learn_apart_from_one_target_with_their_weights():
    algorithm = make(critics=2, quantiles=3, drop=1)
    constant_quantiles(algorithm.critic, [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    weight = torch.rand(B, generator=torch.Generator().manual_seed(0))
    batch = make_batch(discount=torch.zeros(B), weight=weight)
    loss, error, value = algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))
    rows = np.broadcast_to(np.array([[0, 0, 0], [1, 2, 3]], float)[:, None], (2, B, 3))
    slow = slow_quantile_huber(rows, batch.reward.numpy()[:, None], [1 / 6, 3 / 6, 5 / 6])
    assert float(loss.detach()) == pytest.approx(float((slow.sum(0) * weight.numpy()).mean()), rel=1e-5)
    torch.testing.assert_close(error, ((0 - batch.reward).abs() + (2 - batch.reward).abs()) / 2)
    assert float(value) == pytest.approx(1.0)
    assert not error.requires_grad and not value.requires_grad


def test_the_actor_climbs_the_mean_of_all_quantiles():
    algorithm = make(critics=2, quantiles=3, drop=2)
    constant_quantiles(algorithm.critic, [[3.0, 1.0, 2.0], [9.0, 4.0, 5.0]])
    torch.testing.assert_close(algorithm.actor_value(torch.zeros(B, OBS), torch.zeros(B, A)), torch.full((B,), 4.0))


def test_one_quantile_is_enough():
    algorithm = make(critics=2, quantiles=1, drop=0)
    assert torch.isfinite(algorithm.learn(make_batch())["loss/critic"])


def test_dropping_everything_is_refused():
    assert "drop" in TQCConfig(quantiles=2, drop=2).problems(1)
    assert not TQCConfig(quantiles=2, drop=1).problems(1)


def test_targets_follow_and_come_back_with_the_state():
    algorithm = make(tau=0.5)
    before = algorithm.target_critic.flat.clone()
    algorithm.learn(make_batch())
    torch.testing.assert_close(algorithm.target_critic.flat, (before + algorithm.optimizers["critic"].flat) / 2)
    state = algorithm.state_dict()
    other = make()
    other.load_state_dict(state)
    assert torch.equal(other.target_critic.flat, algorithm.target_critic.flat)


def test_it_learns_the_value_of_a_fixed_point():
    """A reward of 1 for ever is worth 1 / (1 - gamma)."""
    algorithm = make(learning_rate=3e-3, tau=0.1, alpha=1e-6, learn_alpha=False)
    source = torch.Generator().manual_seed(0)
    for seed in range(700):
        action = torch.rand(B, A, generator=source) * 2 - 1
        algorithm.learn(make_batch(seed, action=action, reward=torch.ones(B), discount=torch.full((B,), 0.8)))
    batch = make_batch(5)
    value = algorithm.quantiles(algorithm.critic, batch.obs, batch.action).detach()
    assert 4.4 < float(value.mean()) < 6.0
