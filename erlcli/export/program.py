"""Traced policies as programs of `numpy_ops`; `safetensors` says what a program looks like in a file."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from erlcli.errors import RecipeError
from erlcli.export.greedy import INPUT, OUTPUT
from erlcli.export.numpy_ops import OPS

Step = dict[str, Any]
WORDS = ("op", "out", "dtype", "approximate")  # fields whose text names no tensor

ATEN = {
    "add.Tensor": "add", "sub.Tensor": "sub", "mul.Tensor": "mul", "div.Tensor": "div", "addcmul.default": "addcmul",
    "clamp.default": "clamp", "clamp.Tensor": "clamp", "clamp_min.default": "clamp", "linear.default": "linear",
    "layer_norm.default": "layer_norm", "tanh.default": "tanh", "sigmoid.default": "sigmoid", "relu.default": "relu",
    "elu.default": "elu", "silu.default": "silu", "gelu.default": "gelu", "exp.default": "exp",
    "softplus.default": "softplus", "softmax.int": "softmax", "minimum.default": "minimum",
    "maximum.default": "maximum", "mean.default": "mean", "mean.dim": "mean", "sum.default": "sum",
    "sum.dim_IntList": "sum", "argmax.default": "argmax", "index.Tensor": "index", "select.int": "select",
    "slice.Tensor": "slice", "chunk.default": "chunk", "split.Tensor": "split", "split_with_sizes.default": "split",
    "cat.default": "concat", "reshape.default": "reshape", "view.default": "reshape", "flatten.using_ints": "flatten",
    "masked_fill.Scalar": "masked_fill", "bitwise_not.default": "invert", "lstm_cell.default": "lstm_cell",
    "gru_cell.default": "gru_cell",
    "unsqueeze.default": "unsqueeze", "squeeze.dim": "squeeze", "to.dtype": "cast", "_to_copy.default": "cast",
    "amax.default": "amax", "amin.default": "amin",
}  # fmt: skip
"""ATen operations to those of a program."""
SAME = ("alias.default", "clone.default", "contiguous.default", "detach.default", "dropout.default")
"""ATen operations that compute nothing in a frozen policy."""


def compute(program: list[Step], values: dict[str, Any]) -> dict[str, Any]:
    """Run a program.

    Args:
        program: the steps, in order.
        values: tensors by name, `obs` among them; the results are added.

    Returns:
        `values`; the action is under `action`.
    """

    def resolve(field: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(field, list):
            return [resolve(part) for part in field]
        return values[field] if isinstance(field, str) else field

    for step in program:
        fields = {k: v if k in WORDS else resolve(v) for k, v in step.items() if k not in ("op", "out")}
        values[step["out"]] = OPS[step["op"]](**fields)
    return values


def translate(
    exported: torch.export.ExportedProgram, outputs: Sequence[str] = (OUTPUT,)
) -> tuple[list[Step], dict[str, Tensor]]:
    """A traced policy as a program.

    Args:
        exported: the policy.
        outputs: names of its results.

    Returns:
        The steps, and the tensors that they name.

    Raises:
        RecipeError: an operation has no equivalent.
    """
    names = {spec.arg.name: spec.target or spec.arg.name for spec in exported.graph_signature.input_specs}
    names[exported.graph_signature.user_inputs[0]] = INPUT
    results = exported.graph.output_node().args[0]
    program: list[Step] = []
    if any("conv2d" in str(node.target) for node in exported.graph.nodes):  # or it would be whatever comes before them
        raise _unsupported("convolutions of images")
    for node in exported.graph.nodes:
        kind = str(node.target).removeprefix("aten.")
        skipped = not node.users or isinstance(node.meta.get("val"), torch.SymInt) or "assert" in kind
        if node.op != "call_function" or skipped:
            continue
        if kind in SAME or (ATEN.get(kind) in ("cast", "reshape") and _form(node) == _form(node.args[0])):
            names[node.name] = names[node.args[0].name]
            continue
        names[node.name] = node.name
        program.append(_step(node, kind, names))
    for result, name in zip(results, outputs, strict=True):
        _rename(program, names[result.name], name)
    stored: dict[str, Tensor] = {**exported.constants, **exported.state_dict}
    used = sorted(_texts([step for step in program]) & set(stored))
    return program, {name: stored[name].detach().contiguous().clone() for name in used}


def _step(node: fx.Node, kind: str, names: dict[str, str]) -> Step:
    op = "item" if "getitem" in kind else ATEN.get(kind)
    if op is None:
        raise _unsupported(kind)
    args: list[Any] = list(node.args)
    if op == "reshape":
        args = [args[0], [-1 if isinstance(size, torch.SymInt) else size for size in node.meta["val"].shape]]
        if args[1].count(-1) > 1:
            raise _unsupported(f"{kind} to a shape of which only the policy knows the sizes")
    elif op == "layer_norm":
        args = args[:5]  # what follows is whether cuDNN may be used
    try:
        keywords = {name: _encode(value, names) for name, value in node.kwargs.items()}
        fields = inspect.signature(OPS[op]).bind(*(_encode(arg, names) for arg in args), **keywords)
    except TypeError as error:
        raise _unsupported(f"{kind} ({error})") from None
    return {"op": op, **fields.arguments, "out": names[node.name]}


def _encode(value: Any, names: dict[str, str]) -> Any:  # noqa: ANN401 - an argument of an operation to a JSON value
    if isinstance(value, fx.Node) and value.name in names:
        return names[value.name]
    if isinstance(value, (list, tuple)):
        return [_encode(part, names) for part in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an argument that is {type(value).__name__}")


def _form(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, *(str(size) for size in value.shape)


def _rename(program: list[Step], old: str, new: str) -> None:
    for step in program:
        step.update({k: new for k, v in step.items() if v == old and k not in WORDS[:1]})


def _texts(value: Any) -> set[str]:  # noqa: ANN401 - any JSON value
    """Every text in a program."""
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*(_texts(part) for part in parts))


def _unsupported(what: str) -> RecipeError:
    return RecipeError(
        "--format safetensors: this policy can't be written down as a program of numpy operations",
        expected="dense or recurrent layers",
        found=what,
        remedy="--format onnx or --format torch",
    )
