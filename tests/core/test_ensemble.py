"""The batched ensemble against as many separate networks, one at a time."""

import pytest
import torch
from torch.nn import functional as F

from erlcli.core.ensemble import Ensemble, QEnsemble
from erlcli.core.networks import ACTIVATIONS, mlp

E, B, IN, HIDDEN = 3, 7, 4, (8, 6)


def make(cls=Ensemble, seed=0, members=E, outputs=1, **options):
    torch.manual_seed(seed)
    return cls(members, IN, HIDDEN, outputs, **options)


def slow(ensemble, e, x):
    """Member e on (B, F), by the book."""
    for i, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        x = F.linear(x, weight[e].T, bias[e, 0])
        if i < len(HIDDEN):
            if len(ensemble.norm_weights):
                x = F.layer_norm(x, x.shape[-1:], ensemble.norm_weights[i][e, 0], ensemble.norm_biases[i][e, 0])
            x = ensemble.activation(x)
    return x


def shaken(ensemble, draws):
    with torch.no_grad():
        for p in ensemble.parameters():
            p.add_(torch.randn(p.shape, generator=draws) * 0.3)
    return ensemble


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("layer_norm", [False, True])
def test_it_is_as_many_networks_as_it_has_members(activation, layer_norm, draws):
    ensemble = shaken(make(outputs=2, activation=activation, layer_norm=layer_norm), draws)
    x = torch.randn(B, IN, generator=draws)
    own = torch.randn(E, B, IN, generator=draws)
    shared_out, own_out = ensemble(x), ensemble(own)
    assert shared_out.shape == own_out.shape == (E, B, 2)
    for e in range(E):
        torch.testing.assert_close(shared_out[e], slow(ensemble, e, x))
        torch.testing.assert_close(own_out[e], slow(ensemble, e, own[e]))


def test_its_gradients_are_those_of_the_separate_networks(draws):
    ensemble = shaken(make(layer_norm=True), draws)
    x = torch.randn(B, IN, generator=draws, requires_grad=True)
    ensemble(x).square().sum().backward()
    batched = [p.grad.clone() for p in ensemble.parameters()] + [x.grad.clone()]
    ensemble.zero_grad()
    x.grad = None
    sum(slow(ensemble, e, x).square().sum() for e in range(E)).backward()
    for one, other in zip(batched, [p.grad for p in ensemble.parameters()] + [x.grad], strict=True):
        torch.testing.assert_close(one, other)


def test_members_start_apart_and_like_the_plain_network():
    torch.manual_seed(5)
    plain = [mlp(IN, HIDDEN, 1, activation="relu", output_gain=0.5) for _ in range(E)]
    ensemble = make(seed=5, output_gain=0.5)
    x = torch.linspace(-1, 1, B * IN).view(B, IN)
    out = ensemble(x)
    for e in range(E):
        torch.testing.assert_close(out[e], plain[e](x))
    assert not torch.equal(ensemble.weights[0][0], ensemble.weights[0][1])


def test_a_member_of_a_big_ensemble_is_distributed_like_a_separate_network():
    """Orthogonal weights: the columns of a square layer have the gain as their norm, in every member."""
    torch.manual_seed(0)
    ensemble = Ensemble(64, 16, (16,), 1)
    gram = ensemble.weights[0].detach() @ ensemble.weights[0].detach().transpose(1, 2)
    torch.testing.assert_close(gram, 2.0 * torch.eye(16).expand(64, 16, 16), atol=1e-5, rtol=0)
    entries = ensemble.weights[0].detach().flatten()
    assert abs(float(entries.mean())) < 0.02 and abs(float(entries.var()) - 2.0 / 16) < 0.01
    assert not any(p.any() for p in ensemble.biases)


def test_frozen_members_pass_gradients_on_but_take_none(draws):
    ensemble = shaken(make(layer_norm=True), draws)
    x = torch.randn(B, IN, generator=draws, requires_grad=True)
    ensemble(x).sum().backward()
    expected = x.grad.clone()
    ensemble.zero_grad(set_to_none=True)
    x.grad = None
    ensemble(x, frozen=True).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert all(p.grad is None for p in ensemble.parameters())
    assert not ensemble(x.detach(), frozen=True).requires_grad


@pytest.mark.parametrize("chosen", [slice(0, 1), slice(1, 3), torch.tensor([2, 0])])
def test_some_members_alone(chosen, draws):
    ensemble = shaken(make(layer_norm=True), draws)
    x = torch.randn(B, IN, generator=draws)
    torch.testing.assert_close(ensemble(x, members=chosen), ensemble(x)[chosen])


def test_dropout_needs_a_generator_and_keeps_the_mean(draws):
    torch.manual_seed(0)
    ensemble = Ensemble(2, 3, (4000,), 1, dropout=0.25)
    with torch.no_grad():
        ensemble.weights[0].zero_()
        ensemble.biases[0].fill_(1.0)  # hidden units are 1 each, or 4 / 3 where kept
        ensemble.weights[1].fill_(1.0 / 4000)
    x = torch.zeros(50, 3)
    torch.manual_seed(3)
    expected_draw = torch.rand(1)
    torch.manual_seed(3)
    assert torch.allclose(ensemble(x), torch.tensor(1.0), atol=1e-4)
    dropped = ensemble(x, generator=draws).detach()
    assert torch.equal(torch.rand(1), expected_draw), "drew from the global stream"
    assert abs(float(dropped.mean()) - 1.0) < 0.005
    # The share kept of 4000 units has a standard deviation of sqrt(p (1 - p) / 4000), scaled by 4 / 3.
    assert float(dropped.std()) == pytest.approx((0.25 * 0.75 / 4000) ** 0.5 / 0.75, rel=0.2)
    rows = dropped.flatten()
    assert len(set(rows.tolist())) > 0.5 * len(rows), "members and rows share a mask"


def test_dropout_repeats_with_its_generator():
    ensemble = make(dropout=0.5)
    x = torch.ones(B, IN)
    outs = [ensemble(x, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


def test_batch_norm_makes_each_members_hidden_layers_standard_in_training_and_learns_them(draws):
    ensemble = make(batch_norm_warmup=10_000, outputs=2)
    x = torch.randn(2000, IN, generator=draws) * 5 + 3
    first = ensemble.batch_norms[0](x, training=True)
    assert first.shape == (E, 2000, IN)
    torch.testing.assert_close(first.mean(1), torch.zeros(E, IN), atol=1e-5, rtol=0)
    torch.testing.assert_close(first.var(1), torch.ones(E, IN), atol=1e-2, rtol=0)
    for _ in range(1500):
        ensemble(x, training=True)
    torch.testing.assert_close(ensemble(x), ensemble(x, training=True), atol=1e-3, rtol=1e-3)
    assert ensemble.batch_norms[0].mean.allclose(x.mean(0), atol=1e-3)


def test_the_whole_is_one_operation_a_layer():
    ensemble = make(members=10)
    x = torch.ones(B, IN)
    with torch.profiler.profile() as profile:
        ensemble(x)
    names = [event.name for event in profile.events()]
    assert names.count("aten::baddbmm") == len(HIDDEN) + 1
    assert not any(name in ("aten::mm", "aten::addmm", "aten::linear") for name in names)


def test_values_of_actions(draws):
    critics = make(QEnsemble)
    features, action = torch.randn(B, 3, generator=draws), torch.randn(B, 1, generator=draws)
    q = critics.q(features, action)
    assert q.shape == (E, B)
    torch.testing.assert_close(q, critics(torch.cat([features, action], -1))[..., 0])
    assert make(QEnsemble, outputs=5).q(features, action).shape == (E, B, 5)
