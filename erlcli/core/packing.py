"""Observations with several parts as one row of bytes.

A Dict observation with an image and a vector could be kept as a dict of tensors, but then everything between the
environment and the network (shared memory, rollouts, the replay and its parts on disk, last observations, spec.json,
the evaluator) would have to know of dicts. One flat row of bytes passes through all of that as any uint8 observation
does: nothing is converted, pixels stay one byte each, floats keep all their bits. Only encoders look inside, by views
without a copy.

A row holds the vector parts as float32, then the images as uint8, then zeros up to a multiple of four bytes, so that
floats are aligned in every row of a contiguous tensor.

Dimension letters: R bytes of a row, V floats of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from erlcli.core.types import Box, Part

ALIGN = 4  # bytes of a float32


def packed(parts: Sequence[tuple[str, Box]]) -> Box:
    """The space of rows that hold these parts.

    Args:
        parts: names and spaces, each of float32 or uint8.

    Returns:
        A uint8 box of shape (R,) whose `parts` say where each of them lies: vectors first, else in the order given.
    """
    found: list[Part] = []
    offset = 0
    for name, space in sorted(parts, key=lambda part: part[1].dtype == "uint8"):
        if space.dtype not in ("float32", "uint8"):
            raise ValueError(f"part {name}: expected float32 or uint8, found {space.dtype}")
        found.append(Part(name, space, offset))
        offset += space.size * (1 if space.dtype == "uint8" else ALIGN)
    size = -(-offset // ALIGN) * ALIGN
    return Box((size,), "uint8", (0.0,) * size, (255.0,) * size, tuple(found))


def vector_size(space: Box) -> int:
    """V: how many floats the vector parts of a packed space have together."""
    return sum(part.space.size for part in space.parts if part.space.dtype != "uint8")


def vector(row: Tensor, size: int) -> Tensor:
    """The floats (..., V) of packed rows (..., R): a view, which writes through.

    Args:
        row: uint8, contiguous in its last dimension, its rows aligned to four bytes.
        size: V.
    """
    return row[..., : size * ALIGN].view(torch.float32)


def image(row: Tensor, part: Part) -> Tensor:
    """An image (..., *shape) of packed rows (..., R): a view."""
    return row[..., part.offset : part.offset + part.space.size].view(*row.shape[:-1], *part.space.shape)
