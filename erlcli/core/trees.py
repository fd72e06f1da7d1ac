"""Tensors within other objects: found, replaced, and named by the way that leads to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn


def tensors(value: object) -> list[Tensor]:
    """The tensors in (nested) objects, dicts, lists and tuples, in order; all else is passed over."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: object, found: list[Tensor]) -> None:
    inner: Iterable[object]
    if isinstance(value, Tensor):
        found.append(value)
        return
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif hasattr(value, "__dict__"):
        inner = vars(value).values()
    else:
        return
    for one in inner:
        if type(one) is Tensor:  # as most are, and this runs before each compiled step
            found.append(one)
        elif one is not None:
            _collect(one, found)


def rebuilt(value: Any, replacements: Iterator[Tensor]) -> Any:  # noqa: ANN401 - of the same type
    """A copy with other tensors in the order of `tensors`.

    Args:
        value: a tensor, None, or (nested) tuples and dataclasses of them.
        replacements: one for each of its tensors.

    Raises:
        TypeError: it holds something else.
    """
    if isinstance(value, Tensor):
        return next(replacements)
    if isinstance(value, tuple):
        return tuple(rebuilt(inner, replacements) for inner in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: rebuilt(getattr(value, f.name), replacements) for f in fields(value)})
    if value is not None:
        raise TypeError(f"argument: expected tensors, found {type(value).__name__}")
    return None


def named(owner: object) -> dict[str, Tensor]:
    """The tensors of an object and of those of this package that it is made of.

    Returns:
        By the attributes that lead there, such as `policy.network.0.weight`; each once, under the first of its names.
    """
    found: dict[str, Tensor] = {}
    seen: set[int] = set()

    def walk(path: str, value: object) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            found[path.removeprefix(".")] = value
        elif isinstance(value, nn.Module):
            for name, tensor in (*value.named_parameters(), *value.named_buffers()):
                walk(f"{path}.{name}", tensor)
        elif isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{path}.{name}", inner)
        elif isinstance(value, (list, tuple)):
            for i, inner in enumerate(value):
                walk(f"{path}.{i}", inner)
        elif hasattr(value, "__dict__") and (value is owner or type(value).__module__.startswith("erlcli.")):
            walk(path, vars(value))

    walk("", owner)
    return found
