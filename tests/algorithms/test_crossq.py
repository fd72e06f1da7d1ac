"""CrossQ: joint batches, no targets, and statistics that travel with the policy.

Dimension letters: B rows of a batch, E critics, A action dimensions.
"""

import pytest
import torch

from erlcli.algorithms.config.crossq import CrossQConfig
from erlcli.algorithms.crossq import BETAS, CrossQ
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, EnvSpec

B, OBS, A = 32, 3, 2
INF = float("inf")


def make(init=0, layer_norm=False, **settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-1.0,) * A, (1.0,) * A), 2
    )
    torch.manual_seed(init)
    return CrossQ(
        CrossQConfig.model_validate(settings), Context(spec, NetworkConfig((16, 16), "relu", layer_norm), seed=3)
    )


def make_batch(seed=0, **fields):
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source)

    values = {
        "obs": draw(B, OBS) * 2 + 1, "action": draw(B, A).clamp(-1, 1), "reward": draw(B),
        "next_obs": draw(B, OBS) * 2 + 3, "discount": torch.full((B,), 0.9), "weight": torch.ones(B),
        "index": torch.arange(B),
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def statistics(module):
    return {name: value.clone() for name, value in module.named_buffers() if "norms." in name}


def changed(before, module):
    return {name for name, value in statistics(module).items() if not torch.equal(value, before[name])}


def slow_critic(critic, e, x):
    """Member e on one batch, by torch's own batch norm in training."""

    def norm(i, x):
        layer = critic.batch_norms[i]
        return torch.nn.functional.batch_norm(
            x, None, None, layer.weight[e, 0], layer.bias[e, 0], training=True, eps=1e-3
        )

    x = norm(0, x)
    for i, (weight, bias) in enumerate(zip(critic.weights, critic.biases, strict=True)):
        x = x @ weight[e] + bias[e]
        if i < 2:
            x = norm(i + 1, x.relu())
    return x.squeeze(-1)


def test_the_loss_is_that_of_one_joint_batch():
    algorithm = make()
    batch = make_batch(weight=torch.rand(B, generator=torch.Generator().manual_seed(1)))
    state = algorithm.generator.get_state()
    loss, error, value = algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))
    algorithm.generator.set_state(state)
    _, next_action, cost = algorithm.next_action(batch, *algorithm.draws(B))
    rows = torch.cat([torch.cat([batch.obs, batch.action], 1), torch.cat([batch.next_obs, next_action], 1)])
    q = torch.stack([slow_critic(algorithm.critic, e, rows) for e in range(2)])
    y = (batch.reward + 0.9 * (torch.minimum(*q[:, B:]) - cost)).detach()
    slow = 0.5 * sum((batch.weight * (q[e, :B] - y) ** 2).mean() for e in range(2))
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(error, (q[:, :B] - y).abs().mean(0).detach())
    torch.testing.assert_close(value, q[:, :B].mean().detach())
    gradients = torch.autograd.grad(loss, list(algorithm.critic.parameters()))
    for fast, by_hand in zip(gradients, torch.autograd.grad(slow, list(algorithm.critic.parameters())), strict=True):
        torch.testing.assert_close(fast, by_hand, atol=1e-5, rtol=1e-4)


def test_where_the_discount_is_0_the_error_is_to_the_reward():
    algorithm = make()
    batch = make_batch(discount=torch.zeros(B), reward=torch.full((B,), 7.0))
    _, error, value = algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))
    assert float(error.mean()) == pytest.approx(7.0 - float(value), rel=1e-4)


def test_the_critics_statistics_are_those_of_both_halves():
    algorithm = make()
    batch = make_batch()
    algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))
    both = torch.cat([batch.obs, batch.next_obs])
    for e in range(2):
        torch.testing.assert_close(algorithm.critic.batch_norms[0].mean[e, 0, :OBS], 0.01 * both.mean(0))


def test_there_are_no_targets():
    algorithm = make()
    assert set(algorithm.networks) == {"critic", "temperature"}
    assert not any("target" in name for name in algorithm.state_dict()["networks"])


def test_each_network_takes_in_only_the_batches_that_it_learns_from():
    algorithm = make(policy_delay=2)
    actor, critic = statistics(algorithm.policy), statistics(algorithm.critic)
    algorithm.learn(make_batch(0))
    assert changed(critic, algorithm.critic) and not changed(actor, algorithm.policy)
    critic = statistics(algorithm.critic)
    obs = make_batch(1).obs
    algorithm.actor_step(obs, *algorithm.draws(B))
    assert changed(actor, algorithm.policy) and not changed(critic, algorithm.critic)
    torch.testing.assert_close(algorithm.policy.network.norms[0].mean, 0.01 * obs.mean(0))


def test_the_actors_step_leaves_the_critics_alone():
    algorithm = make()
    grad = algorithm.optimizers["critic"].grad.clone()
    weights = algorithm.optimizers["critic"].flat.clone()
    algorithm.actor_step(make_batch().obs, *algorithm.draws(B))
    assert torch.equal(algorithm.optimizers["critic"].grad, grad)
    assert torch.equal(algorithm.optimizers["critic"].flat, weights)


def test_acting_goes_by_statistics_in_the_policys_state_and_moves_none(draws):
    algorithm = make(policy_delay=1)
    for seed in range(30):
        algorithm.learn(make_batch(seed))
    policy, obs = algorithm.policy, torch.randn(20, OBS, generator=draws) * 2 + 1
    noise = policy.noise((20,), draws, torch.device("cpu"))
    before = statistics(policy)
    with torch.no_grad():
        greedy, (action, _) = policy.act_greedy(obs), policy.act(obs, noise)
        singles = torch.cat([policy.act_greedy(obs[i : i + 1]) for i in range(20)])
    assert not changed(before, policy)
    torch.testing.assert_close(singles, greedy)
    other = make(init=1).policy
    other.load_state_dict(policy.state_dict())
    with torch.no_grad():
        assert torch.equal(other.act_greedy(obs), greedy) and torch.equal(other.act(obs, noise)[0], action)
        other.network.norms[1].mean.add_(1.0)
        assert not torch.equal(other.act_greedy(obs), greedy)


def test_its_optimisers_forget_faster():
    algorithm = make()
    assert all(optimizer.betas == BETAS == (0.5, 0.999) for optimizer in algorithm.optimizers.values())


def test_the_warm_up_of_the_norm_layers_is_the_recipes():
    algorithm = make(norm_warmup=7)
    norms = [*algorithm.critic.batch_norms, *algorithm.policy.network.norms]
    assert {norm.warmup for norm in norms} == {7} and len(norms) == 6


def test_layer_norm_is_had_by_both_networks_where_it_is_asked_for():
    plain, normed = make(), make(layer_norm=True)
    assert len(normed.critic.norm_weights) == 2 and not len(plain.critic.norm_weights)
    policy, x = normed.policy.network, make_batch().obs * 7
    hidden = policy.layer_norms[0](policy.hidden[0](policy.norms[0](x)))
    torch.testing.assert_close(hidden.mean(-1), torch.zeros(B), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        policy(x),
        policy.output(policy.norms[2](policy.layer_norms[1](policy.hidden[1](policy.norms[1](hidden.relu()))).relu())),
    )
    assert normed.learn(make_batch())["loss/critic"].isfinite()


def test_it_goes_on_after_the_warm_up_of_the_norm_layers():
    algorithm = make(norm_warmup=3)
    for seed in range(12):
        metrics = algorithm.learn(make_batch(seed))
    assert all(torch.isfinite(value) for value in metrics.values())


def test_it_learns_the_value_of_a_fixed_point():
    """A reward of 1 for ever is worth 1 / (1 - gamma)."""
    algorithm = make(learning_rate=3e-3, alpha=1e-6, learn_alpha=False)
    source = torch.Generator().manual_seed(0)
    for seed in range(1500):
        action = torch.rand(B, A, generator=source) * 2 - 1
        algorithm.learn(make_batch(seed, action=action, reward=torch.ones(B), discount=torch.full((B,), 0.8)))
    batch = make_batch(5)
    assert 4.4 < float(algorithm.critic.q(batch.obs, batch.action).detach().mean()) < 5.6
