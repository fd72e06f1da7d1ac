"""Operations said in another way: the same numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from erlcli.core.decompositions import DECOMPOSITIONS, END, biased, rational_tanh, turned


def test_tanh_is_within_four_last_digits_everywhere() -> None:
    x = torch.linspace(-2 * END, 2 * END, 400_001)
    off = rational_tanh(x).double() - x.double().tanh()
    assert float(off.abs().max()) < 5e-7
    small = torch.logspace(-30, -2, 1000)
    torch.testing.assert_close(rational_tanh(small), small.double().tanh().float(), rtol=5e-7, atol=0.0)


def test_tanh_stays_within_one_and_is_odd() -> None:
    x = torch.cat([torch.linspace(0.0, 100.0, 100_001), torch.tensor([math.inf, 1e38])])
    y = rational_tanh(x)
    assert float(y.max()) <= 1.0
    assert float(y[-2]) == float(y[-1]) == pytest.approx(1.0, abs=5e-7)
    assert torch.equal(rational_tanh(-x), -y)


def test_tanh_of_nan_is_nan() -> None:
    assert bool(rational_tanh(torch.tensor([math.nan])).isnan().all())


def test_other_types_keep_their_tanh() -> None:
    assert rational_tanh(torch.zeros(3, dtype=torch.float64)) is NotImplemented


@pytest.mark.parametrize("lead", [(), (3,)])
def test_a_product_of_few_columns_is_turned(lead: tuple[int, ...]) -> None:
    left, right = torch.randn(*lead, 64, 20, dtype=torch.float64), torch.randn(*lead, 20, 4, dtype=torch.float64)
    got = turned(left, right)
    assert got.shape == (*lead, 64, 4)
    assert got.mT.is_contiguous()
    torch.testing.assert_close(got, left @ right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (64, 100), (7, 4), (4, 64)])
def test_others_are_not(rows: int, columns: int) -> None:
    assert turned(torch.zeros(rows, 5), torch.zeros(5, columns)) is NotImplemented


def test_a_bias_is_added_to_each_row() -> None:
    bias, left, right = torch.randn(4), torch.randn(9, 3), torch.randn(3, 4)
    torch.testing.assert_close(biased(bias, left, right), torch.addmm(bias, left, right))


def test_the_gradient_of_a_first_layer_is_traced_as_a_turned_product() -> None:
    """A turned product is not turned back again, which would not end."""

    def gradient(weight: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        return slope.T @ x + weight

    weight, x, slope = torch.randn(64, 4), torch.randn(256, 4), torch.randn(256, 64)
    module = make_fx(gradient, DECOMPOSITIONS)(weight, x, slope)
    products = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    assert [node.meta["val"].shape for node in products] == [(4, 64)]
    torch.testing.assert_close(module(weight, x, slope), gradient(weight, x, slope), rtol=1e-4, atol=1e-4)
