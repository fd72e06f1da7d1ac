"""Finds operations that make the host wait for the device, on any device, the CPU included.

Whatever a CUDA graph is to record, and whatever is to run ahead of a GPU, must not look at the value of a tensor. On
the CPU such a look costs nothing and goes unnoticed, so it is looked for here.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations of ATen whose result has a shape or a Python value that depends on the values of tensors.
READS = frozenset(
    {
        "_local_scalar_dense", "_unique", "_unique2", "bincount", "equal", "is_nonzero", "item", "masked_select",
        "nonzero", "repeat_interleave", "unique_consecutive", "unique_dim",
    }
)  # fmt: skip
METHODS = frozenset({"__array__", "cpu", "numpy", "tolist"})  # which on the CPU are no operations of ATen


@dataclass(frozen=True)
class Read:
    """A look at a tensor's value.

    Attributes:
        operation: name of it.
        where: `file:line` of the innermost call from outside of torch.
    """

    operation: str
    where: str

    def __str__(self) -> str:
        """For messages."""
        return f"{self.operation} ({self.where})"


@dataclass
class HostReads:
    """A context that writes down all that waits for the device.

    Those are looks at values, indexing by a mask, and copies from one device to another that are not asynchronous.

    Attributes:
        found: in the order of their occurrence.
    """

    found: list[Read] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> HostReads:
        self._stack.enter_context(_Methods(self.found))
        self._stack.enter_context(_Operations(self.found))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class _Methods(TorchFunctionMode):
    """Sees calls as Python makes them."""

    def __init__(self, found: list[Read]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - any function of torch
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if getattr(func, "__name__", "") in METHODS:
            self.found.append(Read(func.__name__, _caller()))
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Sees operations as they reach a device."""

    def __init__(self, found: list[Read]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's OpOverload
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name = func.overloadpacket.__name__
        if name in READS or (name.startswith("index") and _by_mask(args)) or _blocks(name, args, kwargs or {}):
            self.found.append(Read(name, _caller()))
        return func(*args, **(kwargs or {}))


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether the indices of `index(self, indices)` or `index_put_(self, indices, ...)` hold a mask."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _blocks(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether tensors move between devices, and the host waits for it."""
    if name == "copy_":
        to, source, *rest = args
        waits = not (rest[0] if rest else kwargs.get("non_blocking", False))
        return bool(to.device != source.device and waits)
    if name == "_to_copy" and kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type != args[0].device.type and not kwargs.get("non_blocking", False)
    return False


def _caller() -> str:
    """The innermost line that is neither torch's nor this module's."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}"
    return "unknown"
