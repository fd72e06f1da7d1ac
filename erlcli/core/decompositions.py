"""Operations of a step that is to be machine code, said in another way: the same numbers, sooner.

`core.machine_code` traces a step with these in place of PyTorch's own, which the compiler takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from erlcli.core import patches

NARROW = 32  # columns, below which a product is bound by them: some vectors of a processor
# tanh x = x P(x^2) / Q(x^2) on [-END, END], where 1 - tanh rounds to nothing: polynomials whose relative error was made
# as equal as it gets by reweighted least squares. With float32 arithmetic the largest error is 4e-7, at the ends.
END = 8.0
NUMERATOR = (1.0, 0.1292567551, 0.002951036673, 1.142854762e-05)
DENOMINATOR = (1.0, 0.4625889063, 0.02381560765, 0.0002386709093, 2.459247526e-07)


def biased(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A product with a bias, which goes into the loop of what comes next.

    PyTorch would first copy it into each row. Viewed by its strides, the product is not put together with it again.
    """
    product = left @ right
    return product.as_strided(product.shape, product.stride()) + bias


def turned(left: Tensor, right: Tensor) -> Tensor:
    """A product (..., P, Q) with few columns as that of the turned factors, whose columns are many.

    A critic's values and the gradients of a first layer's weights are such. BLAS works along the columns, and leaves
    most of its vectors empty where these are few: (64, 256) times (256, 4) takes 25 microseconds, turned 6, and the
    values of two critics of 256 units for 256 rows 165, turned 41.
    """
    rows, columns = left.shape[-2], right.shape[-1]
    if not isinstance(rows, int) or columns >= NARROW or rows < 2 * columns:  # a symbol is a number that varies
        return NotImplemented  # type: ignore[no-any-return]
    return (right.mT @ left.mT).mT


def rational_tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent as a quotient of polynomials, half the time of one that goes through exp. NaN stays NaN."""
    if x.dtype != torch.float32:
        return NotImplemented  # type: ignore[no-any-return]
    held = x.clamp(-END, END)
    square = held * held
    return held * _polynomial(NUMERATOR, square) / _polynomial(DENOMINATOR, square)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.addmm.default: biased,
    torch.ops.aten.baddbmm.default: biased,
    torch.ops.aten.mm.default: turned,
    torch.ops.aten.bmm.default: turned,
    torch.ops.aten.tanh.default: rational_tanh,
    torch.ops.aten.convolution.default: patches.convolution,
    torch.ops.aten.convolution_backward.default: patches.convolution_backward,
}
