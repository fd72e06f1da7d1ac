"""State-dependent exploration against `torch.distributions` and statistics.

Dimension letters: T time steps, N environments, Z latent units, A action dimensions.
"""

import pytest
import torch
from torch import distributions as reference

from erlcli.core.sde import FLOOR, LatentGaussian, LatentNoisePolicy
from erlcli.core.types import Box

CPU = torch.device("cpu")
OBS = Box((3,), "float32", (-1.0,) * 3, (1.0,) * 3)
ACTION = Box((2,), "float32", (-1.0,) * 2, (1.0,) * 2)
Z, A = 6, 2


def make(interval=None, hidden=(8, Z)):
    torch.manual_seed(0)
    policy = LatentNoisePolicy(OBS, ACTION, -1.0, interval, hidden, "tanh", False, None)
    with torch.no_grad():
        policy.distribution.log_std.add_(torch.randn(policy.distribution.log_std.shape) * 0.3)
        policy.network[-1].weight.mul_(50)
    return policy


def slow(distribution, params):
    mean, latent = params[..., :A], params[..., A:]
    variance = sum(latent[..., i : i + 1] ** 2 * distribution.log_std[i].exp() ** 2 for i in range(latent.shape[-1]))
    return reference.Independent(reference.Normal(mean, (variance + FLOOR).sqrt()), 1)


def test_densities_and_entropies_are_those_of_the_normal(draws):
    distribution = make().distribution
    params, action = torch.randn(40, A + Z, generator=draws), torch.randn(40, A, generator=draws)
    log_prob = distribution.log_prob(params, action)
    torch.testing.assert_close(log_prob, slow(distribution, params).log_prob(action), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(distribution.entropy(params, log_prob), slow(distribution, params).entropy())
    assert torch.equal(distribution.mode(params), params[:, :A])


def test_samples_have_the_variance_that_their_density_says(draws):
    distribution = make().distribution
    params = torch.randn(A + Z, generator=draws)
    many = params.expand(100_000, -1)
    action, log_prob = distribution.sample(many, distribution.noise((100_000,), draws, CPU))
    expected = slow(distribution, params)
    torch.testing.assert_close(action.mean(0), expected.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(action.std(0), expected.base_dist.scale, atol=0.02, rtol=0.02)
    torch.testing.assert_close(log_prob, expected.log_prob(action), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("interval", "draws_wanted"), [(None, 1), (1, 10), (4, 3), (10, 1), (30, 1)])
def test_noise_stays_for_an_interval(interval, draws_wanted, draws):
    noise = make(interval).rollout_noise(10, 5, draws, CPU)
    assert len(noise) == 10 and noise[0].shape == (5, Z, A)
    distinct = {tuple(n.flatten().tolist()) for n in noise}
    assert len(distinct) == draws_wanted
    assert all(torch.equal(noise[t], noise[t - 1]) for t in range(1, 10) if interval is None or t % interval)
    assert not torch.equal(noise[0][0], noise[0][1]), "every environment has its own"


def test_the_same_state_gets_the_same_noise(draws):
    policy = make(None)
    noise = policy.rollout_noise(2, 5, draws, CPU)
    obs = torch.randn(5, 3, generator=draws)
    first, second = (policy.act(obs, n)[0] for n in noise)
    assert torch.equal(first, second) and not torch.equal(first, policy.act_greedy(obs))
    assert torch.equal(policy.act_greedy(obs), policy.network(obs))


def test_no_gradient_reaches_the_trunk_through_the_variance(draws):
    policy = make()
    params = policy.params(torch.randn(20, 3, generator=draws))
    policy.distribution.entropy(params, params[:, 0]).sum().backward()
    assert policy.distribution.log_std.grad.abs().sum() > 0
    assert all(p.grad is None or not p.grad.any() for p in policy.network.parameters())


def test_without_hidden_layers_the_noise_is_linear_in_the_observation():
    assert make(hidden=()).distribution.log_std.shape == (3, A)
    assert isinstance(make().distribution, LatentGaussian)
