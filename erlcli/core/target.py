"""Target networks: slow copies of online networks, whose update is one operation on one flat vector."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Target(Generic[M]):
    """A copy of a module that follows it.

    Args:
        online: what it follows; on its device already.
        flat: (P,) the vector that holds all of `online`'s parameters in their order, such as `Optimizer.flat` of an
            optimiser of this one module. Later optimiser steps are seen through it.

    Attributes:
        module: the copy, without gradients. Buffers are copied once: they are for modules whose buffers are constant.
    """

    def __init__(self, online: M, flat: Tensor) -> None:
        self.module: M = copy.deepcopy(online).requires_grad_(False)
        self._online = flat
        self.flat = flat.detach().clone()
        size = sum(p.numel() for p in self.module.parameters())
        if size != len(flat):
            raise ValueError(f"flat: {len(flat)} parameters, the module has {size}")
        offset = 0
        for p in self.module.parameters():
            p.grad = None
            p.data = self.flat[offset : offset + p.numel()].view_as(p)
            offset += p.numel()

    @torch.no_grad()
    def update(self, tau: float) -> None:
        """Move by tau of the way to the online network; 1 is an exact copy."""
        self.flat.lerp_(self._online, tau)
