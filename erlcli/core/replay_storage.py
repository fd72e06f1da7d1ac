"""The memory of a replay: what it allocates, how much that is, and the ring of last observations.

Dimension letters: R rows, N environments, K ended episodes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from erlcli.core.prioritized import FANOUT, level_rows
from erlcli.core.types import Box


class FinalsRing:
    """A ring of last observations, in the order of their rows; it grows when it is full."""

    def __init__(self, obs: Box, device: torch.device) -> None:
        self.obs = torch.zeros(1, *obs.shape, dtype=getattr(torch, obs.dtype), device=device)
        self._first = self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def free(self) -> int:
        """Room that is left."""
        return len(self.obs) - self._count

    def put(self, obs: Tensor) -> Tensor:
        """Append (K, *obs), for which there is room; (K,) where they are."""
        slots = torch.arange(len(obs), device=obs.device).add_(self._first + self._count).remainder_(len(self.obs))
        self.obs[slots] = obs
        self._count += len(obs)
        return slots.to(torch.int32)

    def drop(self, count: int) -> None:
        """Forget the oldest."""
        self._first = (self._first + count) % len(self.obs)
        self._count -= count

    def grow(self, room: int) -> Tensor:
        """Make room for `room` more, at least doubling; the new slot of each old one."""
        old = len(self.obs)
        order = torch.arange(old, device=self.obs.device)
        grown = self.obs.new_zeros(max(2 * old, self._count + room), *self.obs.shape[1:])
        grown[: self._count] = self.obs[(order[: self._count] + self._first) % old]
        moved = ((order - self._first) % old).to(torch.int32)
        self.obs, self._first = grown, 0
        return moved


def layout(
    obs: Box, action_shape: tuple[int, ...], action_dtype: torch.dtype, num_envs: int, capacity: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Names, shapes and dtypes of what a replay allocates for its rows."""
    ring = (max(1, capacity // num_envs) + 1, num_envs)
    return {
        "obs": ((*ring, *obs.shape), getattr(torch, obs.dtype)),
        "action": ((*ring, *action_shape), action_dtype),
        "reward": (ring, torch.float32),
        "flags": (ring, torch.uint8),
        "slot": (ring, torch.int32),
        "order": ((math.prod(ring),), torch.int32),
    }


def required_bytes(
    obs: Box,
    action_shape: tuple[int, ...],
    action_dtype: torch.dtype,
    *,
    num_envs: int,
    capacity: int,
    prioritized: bool,
) -> int:
    """Memory of a replay's rows; last observations of episodes, which are few, come on top."""
    shapes = layout(obs, action_shape, action_dtype, num_envs, capacity)
    total = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
    if prioritized:
        total += sum(rows * FANOUT * 8 for rows in level_rows(math.prod(shapes["reward"][0])))
    return total
