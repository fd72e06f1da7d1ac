"""Target networks: one vector, the module sees it, and the online network is never touched."""

import pytest
import torch
from torch import nn

from erlcli.core.optim import Optimizer
from erlcli.core.target import Target


def make():
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = Optimizer({"critic": online})
    return online, optimizer, Target(online, optimizer.flat)


def test_it_starts_as_a_copy_without_gradients():
    online, _, target = make()
    for p, q in zip(online.parameters(), target.module.parameters(), strict=True):
        assert torch.equal(p, q) and p.data_ptr() != q.data_ptr()
        assert p.requires_grad and not q.requires_grad and q.grad is None


def test_it_moves_a_share_of_the_way():
    online, optimizer, target = make()
    before = [p.clone() for p in target.module.parameters()]
    optimizer.flat.add_(1.0)
    target.update(0.25)
    for p, q, old in zip(online.parameters(), target.module.parameters(), before, strict=True):
        torch.testing.assert_close(q, old + 0.25)
        torch.testing.assert_close(p, old + 1.0)
    target.update(1.0)
    assert torch.equal(target.flat, optimizer.flat)


def test_it_sees_the_optimisers_steps_and_what_is_loaded():
    online, optimizer, target = make()
    optimizer.apply(online(torch.ones(2, 3)).sum(), 0.1)
    target.update(1.0)
    assert torch.equal(target.flat, optimizer.flat)
    other = make()[2]
    other.flat.zero_()
    other.module.load_state_dict(target.module.state_dict())
    assert torch.equal(other.flat, target.flat), "loading must write through to the vector"


def test_a_vector_of_another_size_is_refused():
    online, optimizer, _ = make()
    with pytest.raises(ValueError, match="parameters"):
        Target(online, optimizer.flat[:-1])
