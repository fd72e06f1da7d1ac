"""Tensors in memory that processes share.

The memory has no name (memfd, or an unlinked file): it is reached only through an inherited file descriptor and goes
with the last process that holds it, so nothing can be left behind, whoever is killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 64  # bytes: a cache line

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class SharedBlock:
    """Named tensors in one shared block.

    Attributes:
        fd: to inherit.
        tensors: name to tensor, all zeros at first.
    """

    fd: int
    tensors: dict[str, Tensor]

    @staticmethod
    def create(layout: Layout) -> SharedBlock:
        """A new block that holds `layout`.

        Raises:
            OSError: there is not enough memory.
        """
        size = _size(layout)
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("erl", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return SharedBlock.attach(fd, layout)

    @staticmethod
    def attach(fd: int, layout: Layout) -> SharedBlock:
        """The block behind an inherited descriptor; `layout` has to be the creator's."""
        memory = mmap.mmap(fd, _size(layout))
        tensors: dict[str, Tensor] = {}
        offset = 0
        for name, (shape, dtype) in layout.items():
            count = _count(shape)
            tensors[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
            offset += _bytes(shape, dtype)
        return SharedBlock(fd, tensors)

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor."""
        os.close(self.fd)
        self.tensors = {}


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-_count(shape) * dtype.itemsize // ALIGN) * ALIGN


def _size(layout: Layout) -> int:
    return sum(_bytes(shape, dtype) for shape, dtype in layout.values())
