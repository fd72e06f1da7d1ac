"""Batch renormalisation by hand.

Dimension letters: E members, B batch, F features.
"""

import pytest
import torch

from erlcli.core.batch_norm import D_MAX, EPS, R_MAX, BatchRenorm


def make(shape=(2,), warmup=0, mean=0.0, var=1.0):
    norm = BatchRenorm(shape, warmup)
    norm.mean.fill_(mean)
    norm.var.fill_(var)
    norm.scale.copy_((norm.var + EPS).rsqrt())
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.bias.fill_(0.5)
    return norm


def batch(draws, *shape):
    return torch.randn(*shape, generator=draws) * 3 + 1


def test_acting_goes_by_the_running_statistics_alone(draws):
    norm, x = make(mean=1.0, var=4.0), batch(draws, 6, 2)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    expected = (x - 1.0) / (4.0 + EPS) ** 0.5 * 2.0 + 0.5
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(norm(x[:1]), expected[:1])
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())


def test_in_the_warm_up_it_is_batch_norm(draws):
    norm, x = make(warmup=3, mean=5.0, var=9.0), batch(draws, 64, 2)
    plain = torch.nn.functional.batch_norm(
        x, None, None, torch.full((2,), 2.0), torch.full((2,), 0.5), training=True, eps=EPS
    )
    for _ in range(3):
        torch.testing.assert_close(norm(x, training=True), plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(norm(x, training=True), plain, atol=1e-2)


def test_renormalised_within_the_bounds_it_is_what_acting_gives(draws):
    """r and d undo the batch's statistics where neither is clipped."""
    norm, x = make(mean=0.7, var=8.0), batch(draws, 64, 2)
    expected = norm(x)
    torch.testing.assert_close(norm(x, training=True), expected, atol=1e-5, rtol=1e-5)


def test_corrections_are_clipped_and_constant_to_the_gradient(draws):
    x = batch(draws, 64, 2).requires_grad_()
    norm = make(mean=-100.0, var=0.01)
    out = norm(x, training=True)
    var, mean = torch.var_mean(x, dim=0, correction=0)
    expected = ((x - mean) / (var + EPS).sqrt() * R_MAX + D_MAX) * 2.0 + 0.5
    torch.testing.assert_close(out, expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-4)


def test_the_statistics_take_in_a_hundredth_of_each_batch(draws):
    norm, x = make(mean=2.0, var=3.0), batch(draws, 64, 2)
    norm(x, training=True)
    var, mean = torch.var_mean(x, dim=0, correction=0)
    torch.testing.assert_close(norm.mean, 0.99 * 2.0 + 0.01 * mean)
    torch.testing.assert_close(norm.var, 0.99 * 3.0 + 0.01 * var)
    torch.testing.assert_close(norm.scale, (norm.var + EPS).rsqrt())
    assert int(norm.updates) == 1
    assert set(norm.state_dict()) == {"mean", "var", "scale", "updates", "weight", "bias"}


def test_members_have_statistics_of_their_own(draws):
    norm, x = make((3, 1, 2), warmup=10), batch(draws, 3, 64, 2)
    x[1] += 50
    out = norm(x, training=True)
    for e in range(3):
        single = make((2,), warmup=10)
        torch.testing.assert_close(out[e], single(x[e], training=True), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(norm.mean[e, 0], single.mean)
    assert norm(x[0], training=True).shape == (3, 64, 2)


@pytest.mark.parametrize("training", [False, True])
def test_frozen_it_passes_gradients_on_but_takes_none(training, draws):
    norm, x = make(), batch(draws, 8, 2).requires_grad_()
    norm(x, training=training, frozen=True).square().sum().backward()
    assert x.grad.any() and norm.weight.grad is None and norm.bias.grad is None
