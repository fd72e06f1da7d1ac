"""Exploration noise: its scale, its independence, and its memory."""

import copy
import gc

import pytest
import torch

from erlcli.core.exploration import GaussianNoise, OrnsteinUhlenbeckNoise, uniform

CPU = torch.device("cpu")
KINDS = {"gaussian": GaussianNoise, "ou": OrnsteinUhlenbeckNoise}
every_kind = pytest.mark.parametrize("kind", sorted(KINDS))


@every_kind
def test_every_step_is_standard_normal_the_first_one_too(kind, draws):
    noise = KINDS[kind](2)((6, 40_000), draws, CPU)
    assert noise.shape == (6, 40_000, 2) and noise.dtype == torch.float32
    for step in noise:
        assert float(step.mean()) == pytest.approx(0.0, abs=0.02)
        assert float(step.std()) == pytest.approx(1.0, abs=0.02)


@every_kind
def test_dimensions_and_environments_don_t_share_draws(kind, draws):
    noise = KINDS[kind](3)((20_000, 2), draws, CPU)
    columns = noise.flatten(1).T.double()  # 2 environments x 3 dimensions
    correlation = torch.corrcoef(columns)
    off_diagonal = correlation - torch.eye(6)
    assert float(off_diagonal.abs().max()) < (0.03 if kind == "gaussian" else 0.12)


@pytest.mark.parametrize("theta", [0.05, 0.15, 0.6, 1.0])
def test_the_memory_of_a_step_fades_as_theta_says(theta, draws):
    noise = OrnsteinUhlenbeckNoise(1, theta)((12, 40_000), draws, CPU)[..., 0]
    for lag in (1, 2, 5):
        expected = (1.0 - theta) ** lag
        assert float(torch.corrcoef(noise[[0, lag]])[0, 1]) == pytest.approx(expected, abs=0.02)
        assert float(torch.corrcoef(noise[[6, 6 + lag]])[0, 1]) == pytest.approx(expected, abs=0.02)


def test_it_is_the_recursion_by_hand():
    fresh = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    noise = OrnsteinUhlenbeckNoise(3, 0.2)((4, 2), torch.Generator().manual_seed(1), CPU)
    x = fresh[0]
    assert torch.equal(noise[0], x)
    for t in range(1, 4):
        x = 0.8 * x + 0.6 * fresh[t]  # 0.6^2 = 1 - 0.8^2
        torch.testing.assert_close(noise[t], x)


def test_it_goes_on_from_rollout_to_rollout():
    whole = OrnsteinUhlenbeckNoise(2)((6, 8), torch.Generator().manual_seed(1), CPU)
    source = torch.Generator().manual_seed(1)
    process = OrnsteinUhlenbeckNoise(2)
    parts = [process((2, 8), source, CPU) for _ in range(3)]
    kept = parts[0].clone()
    torch.testing.assert_close(torch.cat(parts), whole)
    parts[2].zero_()
    assert torch.equal(parts[0], kept)


def test_a_new_generator_is_a_restart():
    process = OrnsteinUhlenbeckNoise(2)
    first = process((3, 2), torch.Generator().manual_seed(7), CPU)
    for _ in range(3):
        again = process((3, 2), torch.Generator().manual_seed(7), CPU)
        assert torch.equal(again, first)
    gc.collect()
    assert len(process._last) <= 1, "states of generators that are gone pile up"


def test_a_new_seed_is_a_restart():
    process, source = OrnsteinUhlenbeckNoise(2), torch.Generator()
    first = process((3, 2), source.manual_seed(7), CPU)
    later = process((3, 2), source, CPU)
    assert not torch.equal(later, first)
    process((3, 2), source.manual_seed(8), CPU)
    assert torch.equal(process((3, 2), source.manual_seed(7), CPU), first)


def test_processes_of_two_generators_don_t_mix():
    process = OrnsteinUhlenbeckNoise(1)
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    mixed = []
    for _ in range(3):
        mixed.append(process((2, 1), one, CPU))
        process((2, 1), other, CPU)
    torch.testing.assert_close(
        torch.cat(mixed), OrnsteinUhlenbeckNoise(1)((6, 1), torch.Generator().manual_seed(1), CPU)
    )


def test_other_environments_are_another_process(draws):
    process = OrnsteinUhlenbeckNoise(1)
    process((2, 3), draws, CPU)
    assert process((2, 5), draws, CPU).shape == (2, 5, 1)


@every_kind
def test_a_single_step_has_no_time_dimension(kind, draws):
    assert KINDS[kind](2)((16,), draws, CPU).shape == (16, 2)


def test_it_may_be_copied_while_it_is_used_for_inference():
    process, source = OrnsteinUhlenbeckNoise(1), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        process((2, 3), source, CPU)
    copied = copy.deepcopy(process)
    with torch.inference_mode():
        assert copied((2, 3), source, CPU).shape == (2, 3, 1)


@pytest.mark.parametrize("theta", [0.0, -0.1, 1.5])
def test_theta_is_a_share(theta):
    with pytest.raises(ValueError, match="theta"):
        OrnsteinUhlenbeckNoise(1, theta)


def test_uniform_numbers_from_normal_ones(draws):
    numbers = uniform(torch.randn(20_000, generator=draws))
    assert float(numbers.abs().max()) <= 1.0
    # Kolmogorov-Smirnov: the largest distance from the uniform distribution function, 1 % critical value.
    expected = torch.linspace(-1.0, 1.0, 20_000)
    assert float((numbers.sort().values - expected).abs().max()) / 2 < 1.63 / 20_000**0.5
