"""Action distributions against `torch.distributions` (which the product avoids for its cost) and against statistics.

Dimension letters: B rows, A continuous action dimensions, D discrete dimensions, C choices.
"""

import math

import pytest
import torch
from torch import distributions as reference

from erlcli.core.categorical import Categorical, MultiCategorical, gumbel, legal
from erlcli.core.distributions import for_space
from erlcli.core.gaussian import Gaussian, StateGaussian, TanhGaussian
from erlcli.core.types import Box, Discrete, MultiDiscrete

CPU = torch.device("cpu")
DOUBLE = torch.float64
NVEC = (3, 1, 5, 2)


def gaussian(kind=Gaussian, dim=3, log_std=(-1.0, 0.0, 0.7)):
    made = kind(dim)
    with torch.no_grad():
        made.log_std.copy_(torch.tensor(log_std[:dim]))
    return made


def tanh_reference(params, log_std):
    base = reference.Normal(params, log_std.exp())
    squash = reference.transforms.TanhTransform(cache_size=1)
    return reference.Independent(reference.TransformedDistribution(base, [squash]), 1)


def softmax_shares(logits):
    return logits.double().softmax(-1)


# --- Gaussian ---------------------------------------------------------------------------------------------------------


def test_gaussian_log_prob_and_entropy_equal_torch(draws):
    made = gaussian()
    params, action = torch.randn(50, 3, generator=draws), torch.randn(50, 3, generator=draws) * 3
    expected = reference.Independent(reference.Normal(params, made.log_std.exp()), 1)
    log_prob = made.log_prob(params, action)
    torch.testing.assert_close(log_prob, expected.log_prob(action))
    entropy = made.entropy(params, log_prob)
    assert entropy.shape == ()
    torch.testing.assert_close(entropy.expand(50), expected.entropy())


def test_gaussian_sample_is_mean_plus_std_times_noise_with_its_own_density(draws):
    made = gaussian()
    params = torch.randn(4, 5, 3, generator=draws)
    noise = made.noise((4, 5), draws, CPU)
    assert noise.shape == (4, 5, 3)
    action, log_prob = made.sample(params, noise)
    torch.testing.assert_close(action, params + made.log_std.exp() * noise)
    torch.testing.assert_close(log_prob, made.log_prob(params, action), atol=2e-5, rtol=1e-5)
    assert torch.equal(made.mode(params), params)


def test_gaussian_sample_statistics(draws):
    made, count = gaussian(), 200_000
    params = torch.tensor([-1.0, 0.0, 2.0]).expand(count, 3)
    action, _ = made.sample(params, made.noise((count,), draws, CPU))
    std = made.log_std.exp()
    assert ((action.mean(0) - params[0]).abs() < 5 * std / math.sqrt(count)).all()
    assert ((action.std(0) / std - 1).abs() < 5 / math.sqrt(2 * count)).all()


def test_gaussian_log_std_is_the_initial_one_and_learns():
    made = Gaussian(2, log_std=-0.5)
    assert made.log_std.tolist() == [-0.5, -0.5]
    made.entropy(torch.zeros(1, 2), torch.zeros(1)).backward()
    assert made.log_std.grad.tolist() == [1.0, 1.0]


# --- TanhGaussian -----------------------------------------------------------------------------------------------------


def test_tanh_gaussian_log_prob_equals_torch_in_double_precision(draws):
    made = gaussian(TanhGaussian).double()
    params = torch.randn(200, 3, generator=draws, dtype=DOUBLE)
    raw = params + made.log_std.exp() * torch.randn(200, 3, generator=draws, dtype=DOUBLE)
    raw = raw.clamp(-7.0, 7.0)  # beyond, the action is held away from the edge
    action = raw.tanh()
    expected = tanh_reference(params, made.log_std).log_prob(action)
    torch.testing.assert_close(made.log_prob(params, action), expected, atol=1e-7, rtol=1e-7)


def test_tanh_gaussian_density_integrates_to_one():
    for mean, log_std in ((0.0, 0.0), (0.5, -1.0), (-1.0, 0.3)):
        made = TanhGaussian(1, log_std).double()
        action = torch.linspace(-1, 1, 400_001, dtype=DOUBLE)[1:-1].unsqueeze(-1)
        density = made.log_prob(torch.full_like(action, mean), action).exp()
        assert (density.sum() * 2 / 400_000).item() == pytest.approx(1.0, abs=1e-3)


def test_tanh_gaussian_gradient_equals_finite_differences(draws):
    made = gaussian(TanhGaussian).double()
    params = torch.randn(5, 3, generator=draws, dtype=DOUBLE, requires_grad=True)
    action = torch.empty(5, 3, dtype=DOUBLE).uniform_(-0.99, 0.99, generator=draws)

    def log_prob(params, log_std):
        return torch.func.functional_call(made, {"log_std": log_std}, (params, action))

    made.forward = made.log_prob
    assert torch.autograd.gradcheck(log_prob, (params, made.log_std.detach().clone().requires_grad_()))


@pytest.mark.parametrize("mean", [0.0, 3.0, 8.0, -20.0, 300.0, -1e4])
def test_tanh_gaussian_is_stable_however_saturated(mean, draws):
    made = gaussian(TanhGaussian)
    params = torch.full((500, 3), mean, requires_grad=True)
    action, log_prob = made.sample(params, made.noise((500,), draws, CPU))
    assert (action.abs() < 1).all()
    entropy = made.entropy(params, log_prob)
    (log_prob.mean() + made.log_prob(params, action.detach()).mean() + entropy.mean()).backward()
    for tensor in (log_prob, entropy, params.grad, made.log_std.grad):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("action", [-1.0, 1.0])
def test_tanh_gaussian_takes_actions_at_the_very_edge(action):
    made, params = TanhGaussian(2), torch.zeros(1, 2, requires_grad=True)
    log_prob = made.log_prob(params, torch.full((1, 2), action))
    log_prob.backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(params.grad).all()


@pytest.mark.parametrize("mean", [0.0, 2.0, 5.0, 7.0, 10.0, -30.0])
def test_tanh_gaussian_sample_has_the_density_that_log_prob_gives_its_action(mean, draws):
    """PPO's ratio starts at exp(log_prob - sampled log_prob): it has to be 1 for saturated actions too."""
    made = gaussian(TanhGaussian)
    params = mean + torch.randn(1000, 3, generator=draws)
    action, log_prob = made.sample(params, made.noise((1000,), draws, CPU))
    assert torch.equal(log_prob, made.log_prob(params, action))


def test_tanh_gaussian_samples_are_squashed_normals(draws):
    made = gaussian(TanhGaussian)
    params = torch.randn(100, 3, generator=draws)
    noise = made.noise((100,), draws, CPU)
    torch.testing.assert_close(made.sample(params, noise)[0], (params + made.log_std.exp() * noise).tanh())
    assert torch.equal(made.mode(params), params.tanh())


def numeric_entropy(mean, log_std):
    """-E[log p] of one squashed dimension, by a fine grid over the unsquashed normal."""
    z = torch.linspace(-12, 12, 20_001, dtype=DOUBLE)
    weight = reference.Normal(0.0, 1.0).log_prob(z).exp() * (z[1] - z[0])
    raw = mean + log_std.exp() * z
    log_slope = 2 * (math.log(2) - raw - torch.nn.functional.softplus(-2 * raw))
    return 0.5 + 0.5 * math.log(2 * math.pi) + log_std + (weight * log_slope).sum()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-2.0, 0.5), (4.0, -3.0), (0.1, 0.7)])
def test_tanh_gaussian_entropy_and_its_gradient(mean, log_std):
    """A one-sample estimate -log p(a) would have the right mean, and a gradient that is zero on average."""
    made = TanhGaussian(2, log_std).double()
    params = torch.full((1, 2), mean, dtype=DOUBLE, requires_grad=True)
    entropy = made.entropy(params, torch.zeros(1, dtype=DOUBLE))
    entropy.sum().backward()
    expected_mean = torch.tensor(mean, dtype=DOUBLE, requires_grad=True)
    expected_log_std = torch.tensor(log_std, dtype=DOUBLE, requires_grad=True)
    expected = numeric_entropy(expected_mean, expected_log_std)
    expected.backward()
    assert entropy.shape == (1,)
    assert entropy.item() == pytest.approx(2 * expected.item(), abs=0.02)
    assert params.grad[0, 0].item() == pytest.approx(expected_mean.grad.item(), abs=0.02)
    assert made.log_std.grad[0].item() == pytest.approx(expected_log_std.grad.item(), abs=0.02)


def test_tanh_gaussian_entropy_is_minus_the_mean_log_prob(draws):
    made = gaussian(TanhGaussian)
    params = torch.tensor([0.3, -1.0, 0.0]).expand(100_000, 3)
    _, log_prob = made.sample(params, made.noise((100_000,), draws, CPU))
    error = 5 * log_prob.std() / math.sqrt(100_000)
    assert (made.entropy(params[:1], log_prob[:1]) + log_prob.mean()).abs().item() < error + 0.005


# --- Categorical ------------------------------------------------------------------------------------------------------


def test_categorical_log_prob_and_entropy_equal_torch(draws):
    made = Categorical(4)
    params = torch.randn(6, 9, 4, generator=draws) * 3
    action = torch.randint(4, (6, 9), generator=draws)
    expected = reference.Categorical(logits=params)
    log_prob = made.log_prob(params, action)
    torch.testing.assert_close(log_prob, expected.log_prob(action))
    torch.testing.assert_close(made.entropy(params, log_prob), expected.entropy())
    assert torch.equal(made.mode(params), params.argmax(-1))


def test_categorical_sampling_has_the_frequencies_of_the_softmax(draws):
    made, count = Categorical(5), 400_000
    logits = torch.tensor([0.0, 1.5, -2.0, 0.3, -6.0])
    params = logits.expand(count, 5)
    action, log_prob = made.sample(params, made.noise((count,), draws, CPU))
    shares = softmax_shares(logits)
    found = torch.bincount(action, minlength=5).double() / count
    assert ((found - shares).abs() < 5 * (shares * (1 - shares) / count).sqrt()).all()
    assert torch.equal(log_prob, made.log_prob(params, action))


def test_categorical_is_unmoved_by_extreme_logits(draws):
    made = Categorical(3)
    params = torch.tensor([[1e4, 0.0, -1e4], [-80.0, -80.0, -80.0]], requires_grad=True)
    action, log_prob = made.sample(params, made.noise((2,), draws, CPU))
    assert action[0] == 0 and log_prob[0] == 0.0
    entropy = made.entropy(params, log_prob)
    torch.testing.assert_close(entropy, torch.tensor([0.0, math.log(3)]))
    (entropy.sum() + log_prob.sum()).backward()
    assert torch.isfinite(params.grad).all()


def test_gumbel_noise_is_standard_and_finite(draws):
    noise = gumbel((1_000_000,), draws, CPU)
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.577216, abs=5 * 1.2826 / 1000)
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), rel=0.01)


# --- MultiCategorical -------------------------------------------------------------------------------------------------


def split(params):
    return params.split(NVEC, dim=-1)


def test_multi_categorical_is_the_sum_of_its_dimensions(draws):
    made = MultiCategorical(NVEC)
    assert made.num_params == sum(NVEC) and made.action_shape == (4,)
    params = torch.randn(7, 5, sum(NVEC), generator=draws) * 2
    action = torch.stack([torch.randint(n, (7, 5), generator=draws) for n in NVEC], dim=-1)
    parts = [reference.Categorical(logits=logits) for logits in split(params)]
    log_prob = made.log_prob(params, action)
    torch.testing.assert_close(log_prob, sum(p.log_prob(action[..., i]) for i, p in enumerate(parts)))
    torch.testing.assert_close(made.entropy(params, log_prob), sum(p.entropy() for p in parts))
    assert torch.equal(made.mode(params), torch.stack([logits.argmax(-1) for logits in split(params)], dim=-1))


def test_multi_categorical_never_samples_its_padding_in_a_million_draws(draws):
    made, rows, repeats = MultiCategorical((2, 8, 3)), 50_000, 7  # 50,000 * 7 * 3 draws
    params = torch.randn(rows, 13, generator=draws) * 3 - 50.0
    params[:, 0] += 500.0  # which the pads are read from
    largest = torch.tensor([1, 7, 2])
    for _ in range(repeats):
        action, log_prob = made.sample(params, made.noise((rows,), draws, CPU))
        assert (action >= 0).all() and (action <= largest).all()
        assert torch.equal(log_prob, made.log_prob(params, action))
    assert (made.mode(params) <= largest).all()


def test_multi_categorical_sampling_has_the_frequencies_of_the_softmax(draws):
    made, count = MultiCategorical(NVEC), 200_000
    logits = torch.randn(sum(NVEC), generator=draws)
    action, _ = made.sample(logits.expand(count, -1), made.noise((count,), draws, CPU))
    for i, part in enumerate(split(logits)):
        shares = softmax_shares(part)
        found = torch.bincount(action[:, i], minlength=NVEC[i]).double() / count
        assert ((found - shares).abs() <= 5 * (shares * (1 - shares) / count).sqrt()).all()


def test_multi_categorical_padding_gets_no_gradient(draws):
    """Pads are read from the first logit: a gradient through them would be added there."""
    made = MultiCategorical(NVEC)
    params = torch.randn(20, sum(NVEC), generator=draws, requires_grad=True)
    action = torch.stack([torch.randint(n, (20,), generator=draws) for n in NVEC], dim=-1)
    log_prob = made.log_prob(params, action)
    (log_prob.sum() + made.entropy(params, log_prob).sum()).backward()
    twin = params.detach().clone().requires_grad_()
    parts = [reference.Categorical(logits=logits) for logits in split(twin)]
    sum(p.log_prob(action[:, i]).sum() + p.entropy().sum() for i, p in enumerate(parts)).backward()
    torch.testing.assert_close(params.grad, twin.grad, atol=1e-6, rtol=1e-5)


def test_padding_is_not_part_of_the_state():
    assert not MultiCategorical(NVEC).state_dict()


# --- masks ------------------------------------------------------------------------------------------------------------


def test_one_legal_choice_of_500_is_all_that_a_million_draws_give(draws):
    made, rows = Categorical(500), 20_000
    params = (torch.randn(rows, 500, generator=draws) * 5).requires_grad_()
    for k in range(50):
        if k % 10 == 0:  # most of the time goes into noise, and each row sees another mask every time
            noise = made.noise((rows,), draws, CPU)
        mask = torch.zeros(rows, 500, dtype=torch.bool)
        only = torch.randint(500, (rows,), generator=draws)
        mask[torch.arange(rows), only] = True
        action, log_prob = made.sample(legal(params, mask), noise)
        assert torch.equal(action, only)
    assert torch.equal(made.mode(legal(params, mask)), only)
    assert torch.equal(log_prob, torch.zeros(rows))
    params_legal = legal(params, mask)
    entropy, illegal = made.entropy(params_legal, log_prob), made.log_prob(params_legal, (only + 1) % 500)
    assert torch.isfinite(illegal).all() and (illegal < -1e30).all() and not entropy.any()
    (log_prob + entropy).sum().backward()
    assert torch.isfinite(params.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masked_logits_are_those_of_a_distribution_over_the_rest(dtype, draws):
    made = Categorical(6)
    params = torch.randn(50, 6, generator=draws).to(dtype)
    mask = torch.rand(50, 6, generator=draws) < 0.5
    mask[:, 2] = True
    masked = legal(params, mask)
    assert torch.isfinite(masked).all() and masked.dtype == dtype
    expected = reference.Categorical(logits=params.double().masked_fill(~mask, -1e300))
    action = made.sample(masked.float(), made.noise((50,), draws, CPU))[0]
    assert mask.gather(1, action.unsqueeze(1)).all()
    near = {"atol": 0.05, "rtol": 0.02} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    log_prob = made.log_prob(masked, action)
    torch.testing.assert_close(log_prob.double(), expected.log_prob(action), **near)
    torch.testing.assert_close(made.entropy(masked, log_prob).double(), expected.entropy(), **near)


def test_several_masked_choices_at_once_are_legal_each(draws):
    made, rows = MultiCategorical(NVEC), 100_000
    params = torch.randn(rows, sum(NVEC), generator=draws) * 3
    mask = torch.rand(rows, sum(NVEC), generator=draws) < 0.3
    starts = [0, 3, 4, 9]
    for start, n in zip(starts, NVEC, strict=True):
        mask[torch.arange(rows), start + torch.randint(n, (rows,), generator=draws)] = True
    params.requires_grad_()
    action, log_prob = made.sample(legal(params, mask), made.noise((rows,), draws, CPU))
    assert mask.gather(1, action + torch.tensor(starts)).all()
    parts = [
        reference.Categorical(logits=part.double().masked_fill(~m, -1e300))
        for part, m in zip(split(params), split(mask), strict=True)
    ]
    entropy = made.entropy(legal(params, mask), log_prob)
    near = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(log_prob.double(), sum(p.log_prob(action[:, i]) for i, p in enumerate(parts)), **near)
    torch.testing.assert_close(entropy.double(), sum(p.entropy() for p in parts), **near)
    (log_prob.sum() + entropy.sum()).backward()
    assert torch.isfinite(params.grad).all() and not params.grad[~mask].any()


# --- StateGaussian ----------------------------------------------------------------------------------------------------


def test_state_gaussian_equals_torch(draws):
    made = StateGaussian(3, log_std=-0.5)
    params, action = torch.randn(50, 6, generator=draws), torch.randn(50, 3, generator=draws)
    expected = reference.Independent(reference.Normal(params[:, :3], (params[:, 3:] - 0.5).exp()), 1)
    log_prob = made.log_prob(params, action)
    torch.testing.assert_close(log_prob, expected.log_prob(action), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(made.entropy(params, log_prob), expected.entropy())
    noise = made.noise((50,), draws, CPU)
    sampled, density = made.sample(params, noise)
    torch.testing.assert_close(sampled, params[:, :3] + (params[:, 3:] - 0.5).exp() * noise)
    torch.testing.assert_close(density, made.log_prob(params, sampled), atol=1e-4, rtol=1e-4)
    assert torch.equal(made.mode(params), params[:, :3])


# --- for_space --------------------------------------------------------------------------------------------------------


def test_for_space_finds_the_family():
    box = Box((2, 3), "float32", (-1.0,) * 6, (1.0,) * 6)
    plain, squashed = for_space(box, log_std=-1.0), for_space(box, squash=True)
    assert type(plain) is Gaussian and plain.num_params == 6 and plain.log_std.tolist() == [-1.0] * 6
    assert type(squashed) is TanhGaussian and squashed.action_shape == (6,)
    assert type(for_space(box, state_std=True)) is StateGaussian
    discrete = for_space(Discrete(4, start=7))
    assert isinstance(discrete, Categorical) and discrete.num_params == 4 and discrete.action_shape == ()
    multi = for_space(MultiDiscrete((2, 3), (2,)))
    assert isinstance(multi, MultiCategorical) and multi.action_dtype == torch.int64
