"""The operations of a program in a policy's JSON file, in plain numpy; `safetensors` says how they are put together.

Each function is one operation: its name is the name in the file, its parameters are the fields there. `x` and other
arrays have the batch dimension first; whatever has a default may be absent from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any  # NDArray; numpy's own stubs give Any for most of what is done with it here
Number = Any  # an array, or a plain number
Shape = Sequence[int]


def add(x: Number, y: Number) -> Array:
    """`x + y`."""
    return x + y


def sub(x: Number, y: Number) -> Array:
    """`x - y`."""
    return x - y


def mul(x: Number, y: Number) -> Array:
    """`x * y`."""
    return x * y


def div(x: Number, y: Number) -> Array:
    """`x / y`."""
    return x / y


def addcmul(x: Array, a: Array, b: Array) -> Array:
    """`x + a * b`."""
    return x + a * b


def clamp(x: Array, min: Number | None = None, max: Number | None = None) -> Array:
    """`x` held within [min, max]; null is no bound."""
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """`x @ weight.T + bias`."""
    product = x @ weight.T
    return product if bias is None else product + bias


def layer_norm(
    x: Array, shape: Shape, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last len(shape) axes, which have that shape."""
    axes = tuple(range(-len(shape), 0))
    mean = x.mean(axes, keepdims=True)
    normal = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + np.float32(eps))
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.tanh(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), as (1 + tanh(x / 2)) / 2, which can't overflow."""
    half = x.dtype.type(0.5)
    return half + half * np.tanh(half * x)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """`x` where positive, else `alpha * (exp(x) - 1)`."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def silu(x: Array) -> Array:
    """`x * sigmoid(x)`."""
    return x * sigmoid(x)


def gelu(x: Array, approximate: str = "none") -> Array:
    """`x * Phi(x)`, with Phi of the standard normal by the error function, or by tanh where `approximate` says so."""
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + np.tanh(inner))
    erf = np.frompyfunc(math.erf, 1, 1)(x * math.sqrt(0.5)).astype(x.dtype)
    return 0.5 * x * (1.0 + erf)


def exp(x: Array) -> Array:
    """The exponential."""
    return np.exp(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return np.logaddexp(x, x.dtype.type(0))


def softmax(x: Array, axis: int) -> Array:
    """exp(x) / sum exp(x) along an axis."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def minimum(x: Array, y: Array) -> Array:
    """The smaller one."""
    return np.minimum(x, y)


def maximum(x: Array, y: Array) -> Array:
    """The larger one."""
    return np.maximum(x, y)


def amax(x: Array, axis: Shape | int | None = None, keepdims: bool = False) -> Array:
    """Largest value along axes."""
    return np.asarray(x.max(_axes(axis), keepdims=keepdims))


def amin(x: Array, axis: Shape | int | None = None, keepdims: bool = False) -> Array:
    """Smallest value along axes."""
    return np.asarray(x.min(_axes(axis), keepdims=keepdims))


def mean(x: Array, axis: Shape | int | None = None, keepdims: bool = False) -> Array:
    """Mean along axes."""
    return np.asarray(x.mean(_axes(axis), keepdims=keepdims))


def sum(x: Array, axis: Shape | int | None = None, keepdims: bool = False) -> Array:
    """Sum along axes."""
    return np.asarray(x.sum(_axes(axis), keepdims=keepdims))


def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the first largest value along an axis, int64."""
    return np.asarray(np.argmax(x, axis, keepdims=keepdims))


def index(x: Array, at: Sequence[Array | None]) -> Array:
    """x[at[0], at[1], ...], where null takes the whole axis."""
    return np.asarray(x[tuple(slice(None) if i is None else i for i in at)])


def select(x: Array, axis: int, at: int) -> Array:
    """One index of an axis, which goes."""
    return np.take(x, at, axis)


def slice_(x: Array, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """start:end:step of an axis."""
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(start, end, step)
    return x[tuple(cut)]


def chunk(x: Array, chunks: int, axis: int = 0) -> list[Array]:
    """A list of parts of ceil(size / chunks) each, the last one perhaps smaller."""
    return split(x, -(-x.shape[axis] // chunks), axis)


def split(x: Array, sizes: Shape | int, axis: int = 0) -> list[Array]:
    """A list of parts of the given sizes, or of equal size, the last one perhaps smaller."""
    bounds = (
        list(range(sizes, x.shape[axis], sizes)) if isinstance(sizes, int) else [int(i) for i in np.cumsum(sizes)[:-1]]
    )
    return np.split(x, bounds, axis)


def item(x: list[Array], at: int) -> Array:
    """One entry of a list."""
    return x[at]


def concat(x: Sequence[Array], axis: int = 0) -> Array:
    """Arrays one after the other along an axis."""
    return np.concatenate(x, axis)


def reshape(x: Array, shape: Shape) -> Array:
    """Another shape; -1 stands for the batch."""
    return x.reshape(shape)


def flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    """Axes start ... end joined into one."""
    first, last = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:first], -1, *x.shape[last + 1 :])


def unsqueeze(x: Array, axis: int) -> Array:
    """A new axis of size 1."""
    return np.expand_dims(x, axis)


def squeeze(x: Array, axis: int) -> Array:
    """Without an axis of size 1."""
    return np.squeeze(x, axis)


def cast(x: Array, dtype: str) -> Array:
    """Another dtype."""
    return x.astype(dtype)


def invert(x: Array) -> Array:
    """`not x`, for booleans."""
    return np.logical_not(x)


def masked_fill(x: Array, mask: Array, value: Number) -> Array:
    """`x`, but `value` where `mask` is true."""
    return np.where(mask, x.dtype.type(value), x)


def lstm_cell(
    x: Array, state: Sequence[Array], w_in: Array, w_state: Array, b_in: Array, b_state: Array
) -> list[Array]:
    """One step of an LSTM from [hidden, cell] to the same: gates input, forget, candidate, output, in this order."""
    gates = x @ w_in.T + b_in + state[0] @ w_state.T + b_state
    enter, keep, candidate, leave = np.split(gates, 4, -1)
    cells = sigmoid(keep) * state[1] + sigmoid(enter) * np.tanh(candidate)
    return [sigmoid(leave) * np.tanh(cells), cells]


def gru_cell(x: Array, state: Array, w_in: Array, w_state: Array, b_in: Array, b_state: Array) -> Array:
    """One step of a GRU from hidden to hidden: gates reset, update, candidate, in this order."""
    reset, update, candidate = np.split(x @ w_in.T + b_in, 3, -1)
    state_reset, state_update, state_candidate = np.split(state @ w_state.T + b_state, 3, -1)
    keep = sigmoid(update + state_update)
    new = np.tanh(candidate + sigmoid(reset + state_reset) * state_candidate)
    return new + keep * (state - new)


def _axes(axis: Shape | int | None) -> Any:  # noqa: ANN401 - what numpy takes
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


OPS: dict[str, Callable[..., Any]] = {
    function.__name__.rstrip("_"): function
    for function in (
        add, addcmul, amax, amin, argmax, cast, chunk, clamp, concat, div, elu, exp, flatten, gelu, gru_cell, index,
        invert, item, layer_norm, linear, lstm_cell, masked_fill, maximum, mean, minimum, mul, relu, reshape, select,
        sigmoid, silu, slice_, softmax, softplus, split, squeeze, sub, sum, tanh, unsqueeze,
    )
}  # fmt: skip
