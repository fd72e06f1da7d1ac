"""Tensors within other objects."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from erlcli.core import trees
from erlcli.core.optim import Optimizer


@dataclass(frozen=True)
class Pair:
    """Two tensors, of which one may be missing."""

    first: Tensor
    second: Tensor | None = None


def numbers(*values):
    return [torch.tensor(float(value)) for value in values]


def test_tensors_come_in_order_and_all_else_is_passed_over():
    a, b, c, d = numbers(1, 2, 3, 4)
    found = list(trees.tensors(({"a": a, "n": 3}, [Pair(b), "text"], Pair(c, d), None)))
    assert [id(t) for t in found] == [id(t) for t in (a, b, c, d)]


def test_a_copy_has_other_tensors_in_the_same_places():
    value = (numbers(1)[0], Pair(*numbers(2)), Pair(*numbers(3, 4)), None)
    copy = trees.rebuilt(value, iter(numbers(5, 6, 7, 8)))
    assert [float(t) for t in trees.tensors(copy)] == [5, 6, 7, 8]
    assert copy[1].second is None and copy[3] is None
    assert [float(t) for t in trees.tensors(value)] == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="expected tensors, found float"):
        trees.rebuilt((numbers(1)[0], 0.5), iter(numbers(2)))


class Owner:
    """Tensors of many kinds, and some that are not its own."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
        self.optimizer = Optimizer({"net": self.net})
        self.by_name = {"x": torch.zeros(1), "again": self.net[0].weight}
        self.itself = self
        self.elsewhere = torch.Generator()


def test_the_tensors_of_an_owner_are_named_by_the_way_to_them():
    owner = Owner()
    found = trees.named(owner)
    assert {"net.0.weight", "net.0.bias", "net.1.running_mean", "optimizer.flat", "by_name.x"} <= found.keys()
    assert found["optimizer.flat"] is owner.optimizer.flat
    assert "by_name.again" not in found, "it has a name already"
    assert len({id(t) for t in found.values()}) == len(found)
