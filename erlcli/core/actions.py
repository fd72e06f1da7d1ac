"""From a policy's units to the environment's: the one place, shared by environments and export."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erlcli.core.types import ActionSpace, Box, Discrete


class ActionMap(nn.Module):
    """Policy actions (..., A) or (...,) to env actions (..., *shape).

    Continuous dimensions with two finite bounds map [-1, 1] onto them, and what lies outside is clipped; others pass
    as they are, clipped to whatever bound there is. Discrete choices are shifted by the space's start.

    Args:
        space: the environment's action space.
    """

    scale: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, space: ActionSpace) -> None:
        super().__init__()
        self.shape: tuple[int, ...]
        if isinstance(space, Box):
            low, high = np.asarray(space.low), np.asarray(space.high)
            finite = np.isfinite(low) & np.isfinite(high)
            self.shape, self.dtype, self.clip = space.shape, getattr(torch, space.dtype), True
            bounds = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
            scale, offset = (bounds[1] - bounds[0]) / 2, (bounds[1] + bounds[0]) / 2
        else:
            if isinstance(space, Discrete):
                self.shape, self.dtype, start = (), torch.int64, [space.start]
            else:
                self.shape, self.dtype = space.shape, getattr(torch, space.dtype)
                start = list(space.start) or [0] * len(space.nvec)
            self.clip = False
            low = high = scale = np.zeros(0)
            offset = np.asarray(start)
        # Bounds of a float64 env, rounded to float32, would let actions out of its space.
        self.unit = torch.int64 if not self.clip else torch.promote_types(torch.float32, self.dtype)
        for name, value in (("scale", scale), ("offset", offset), ("low", low), ("high", high)):
            self.register_buffer(name, torch.as_tensor(value).to(self.unit), persistent=False)
        self.identity = bool((offset == 0).all() and (scale == 1).all())  # all() of no scales is True
        # Bounds that all dimensions share are numbers: clamping by tensors takes longer than a small network's layer.
        self.shared = (float(low.flat[0]), float(high.flat[0])) if low.size and _one(low) and _one(high) else None

    def forward(self, action: Tensor) -> Tensor:
        """Env actions of the env's dtype."""
        if self.clip:
            action = action.to(self.unit)
            if not self.identity:
                action = torch.addcmul(self.offset, action, self.scale)
            action = action.clamp(*self.shared) if self.shared is not None else action.clamp(self.low, self.high)
            if len(self.shape) != 1:
                action = action.reshape(*action.shape[:-1], *self.shape)
            return action.to(self.dtype)
        if not self.shape:
            return action if self.identity else action + self.offset
        shifted = action + self.offset
        return shifted.reshape(*action.shape[:-1], *self.shape).to(self.dtype)


def _one(values: NDArray[Any]) -> bool:
    """Whether they are all the same number."""
    return bool((values == values.flat[0]).all())
