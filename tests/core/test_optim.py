"""The one-vector optimiser against torch's own Adam and clipping."""

import copy

import pytest
import torch
from torch import nn

from erlcli.core.collective import Collective
from erlcli.core.optim import Optimizer
from erlcli.core.readback import Readback
from erlcli.errors import DivergedError


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))


def batch(i):
    source = torch.Generator().manual_seed(i)
    return torch.randn(32, 5, generator=source), torch.randn(32, 2, generator=source) * 5


def loss_of(model, i):
    x, y = batch(i)
    return (model(x) - y).square().mean()


def take(optimizer, loss, rate):
    """One step."""
    optimizer.apply(loss, rate)
    optimizer.count(1)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def train(model, optimizer, steps, rate=lambda i: 3e-3):
    for i in steps:
        take(optimizer, loss_of(model, i), rate(i))


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 1e-3, 1e6])
@pytest.mark.parametrize("eps", [1e-5, 1e-8])
def test_equals_torch_adam_with_clip_grad_norm(max_grad_norm, eps):
    ours, theirs = net(), net()
    optimizer = Optimizer({"net": ours}, eps=eps, max_grad_norm=max_grad_norm)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.0, eps=eps)
    norms = []
    for i in range(50):
        rate = 1e-2 * (1 - i / 50)
        take(optimizer, loss_of(ours, i), rate)
        adam.zero_grad()
        loss_of(theirs, i).backward()
        norms.append(nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm or float("inf")))
        adam.param_groups[0]["lr"] = rate
        adam.step()
    torch.testing.assert_close(weights(ours), weights(theirs), atol=1e-6, rtol=0)
    torch.testing.assert_close(optimizer.mean_grad_norm(), torch.stack(norms).mean())
    assert optimizer.updates == 50
    optimizer.check_finite()


def test_several_modules_learn_together_and_unused_parameters_stay():
    first, second, idle = net(1), net(2), nn.Linear(3, 3)
    optimizer = Optimizer({"a": first, "b": second, "idle": idle})
    before = weights(idle)
    start = (loss_of(first, 0) + loss_of(second, 0)).item()
    for _ in range(60):
        take(optimizer, loss_of(first, 0) + loss_of(second, 0), 1e-2)
    assert (loss_of(first, 0) + loss_of(second, 0)).item() < start * 0.9
    assert torch.equal(weights(idle), before)


def test_building_it_changes_no_weight():
    model = net()
    before, output = weights(model), model(batch(0)[0])
    Optimizer({"net": model})
    assert torch.equal(weights(model), before)
    assert torch.equal(model(batch(0)[0]), output)


def test_gradients_do_not_pile_up():
    once, twice = net(), net()
    first, second = Optimizer({"net": once}), Optimizer({"net": twice})
    twice(batch(9)[0]).sum().backward()  # left over from something else
    take(first, loss_of(once, 0), 1e-2)
    take(second, loss_of(twice, 0), 1e-2)
    assert torch.equal(weights(once), weights(twice))


def test_mean_grad_norm_is_of_the_steps_since_the_last_call():
    model = nn.Linear(1, 1, bias=False)
    optimizer = Optimizer({"net": model}, max_grad_norm=0.1)
    for slope in (1.0, 3.0):
        take(optimizer, (model.weight * slope).sum(), 1e-3)
    assert float(optimizer.mean_grad_norm()) == pytest.approx(2.0)  # before clipping
    take(optimizer, (model.weight * 7.0).sum(), 1e-3)
    assert float(optimizer.mean_grad_norm()) == pytest.approx(7.0)


def test_a_norm_that_was_read_does_not_change_later():
    model = nn.Linear(1, 1, bias=False)
    optimizer = Optimizer({"net": model})
    take(optimizer, (model.weight * 2.0).sum(), 1e-3)
    norm = optimizer.mean_grad_norm()
    take(optimizer, (model.weight * 50.0).sum(), 1e-3)
    assert float(norm) == pytest.approx(2.0)


def test_state_round_trip_continues_bit_for_bit():
    model = net()
    optimizer = Optimizer({"net": model}, max_grad_norm=0.5)
    train(model, optimizer, range(20))
    saved_weights = copy.deepcopy(model.state_dict())
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(20, 40))

    other = net(seed=5)
    resumed = Optimizer({"net": other}, max_grad_norm=0.5)
    train(other, resumed, range(3))  # whatever it did before is forgotten
    other.load_state_dict(saved_weights)
    resumed.load_state_dict(saved)
    assert resumed.updates == 20
    train(other, resumed, range(20, 40))
    assert torch.equal(weights(other), weights(model))
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(
        resumed.state_dict().values(), optimizer.state_dict().values(), strict=True))  # fmt: skip


def test_the_state_before_the_first_step_can_be_loaded():
    fresh, other = net(), net()
    first, second = Optimizer({"net": fresh}), Optimizer({"net": other})
    second.load_state_dict(first.state_dict())
    train(fresh, first, range(5))
    train(other, second, range(5))
    assert torch.equal(weights(fresh), weights(other))


def test_a_saved_state_is_a_copy():
    model = net()
    optimizer = Optimizer({"net": model})
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    train(model, optimizer, range(2, 5))
    assert all(torch.equal(torch.as_tensor(saved[k]), torch.as_tensor(before[k])) for k in saved)


def test_modules_keep_learning_after_load_state_dict():
    """Their parameters are views of one vector; a module that loses its view trains a dead copy."""
    model = net()
    optimizer = Optimizer({"net": model})
    train(model, optimizer, range(3))
    addresses = [p.data_ptr() for p in model.parameters()]
    model.load_state_dict(net(7).state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert torch.equal(weights(model), weights(net(7)))
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == 1
    before = weights(model)
    train(model, optimizer, range(1))
    assert (weights(model) != before).float().mean() > 0.9


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_is_named(bad, max_grad_norm):
    model = nn.ModuleDict({"good": nn.Linear(2, 2), "bad": nn.Linear(2, 2, bias=False)})
    optimizer = Optimizer({"actor": model}, max_grad_norm=max_grad_norm)

    def loss(factor):
        x = torch.ones(1, 2)
        return model["good"](x).sum() + (model["bad"](x) * factor).sum()

    take(optimizer, loss(1.0), 1e-3)
    optimizer.check_finite()
    take(optimizer, loss(bad), 1e-3)
    take(optimizer, loss(1.0), 1e-3)  # found even if later gradients would be fine again
    with pytest.raises(DivergedError) as caught:
        optimizer.check_finite()
    assert caught.value.exit_code == 4
    assert "actor." in caught.value.message and "3 updates" in caught.value.message
    if max_grad_norm is None:
        assert "actor.bad.weight" in caught.value.message


def test_a_weight_that_is_no_number_is_named():
    model = net()
    optimizer = Optimizer({"critic": model})
    train(model, optimizer, range(1))
    with torch.no_grad():
        model[2].bias[3] = float("inf")
    with pytest.raises(DivergedError, match=r"weight critic\.2\.bias"):
        optimizer.check_finite()


def test_large_weights_are_no_divergence():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e30, -1e30], [1e30, -1e30]]))
    Optimizer({"net": model}).check_finite()


def test_a_device_that_is_behind_is_asked_about_the_rollout_before(monkeypatch):
    monkeypatch.setattr(Readback, "ready", property(lambda self: False))
    model = net()
    optimizer = Optimizer({"net": model})
    train(model, optimizer, range(1))
    optimizer.check_finite()
    with torch.no_grad():
        model[2].bias[3] = float("nan")
    optimizer.check_finite()  # of the one before, which was well
    with pytest.raises(DivergedError):
        optimizer.check_finite()
    with pytest.raises(DivergedError):
        optimizer.settle()


def test_a_step_size_on_the_device_is_as_good_as_a_number():
    first, second = net(), net()
    one, two = Optimizer({"net": first}), Optimizer({"net": second})
    rate = Optimizer.scalar(torch.device("cpu"))
    for i in range(5):
        number = 3e-3 / (i + 1)
        rate.fill_(number)
        take(one, loss_of(first, i), number)
        take(two, loss_of(second, i), rate)
    assert torch.equal(weights(first), weights(second))


class TwiceTheGradient(Collective):
    """Stands for a group whose mean gradient is twice ours."""

    def mean_(self, tensor):
        return tensor.mul_(2.0)


def test_gradients_are_averaged_before_the_norm_is_taken():
    model = nn.Linear(1, 1, bias=False)
    optimizer = Optimizer({"net": model}, max_grad_norm=1.0, collective=TwiceTheGradient())
    take(optimizer, (model.weight * 3.0).sum(), 1e-3)
    assert float(optimizer.mean_grad_norm()) == pytest.approx(6.0)
