"""A sum tree: draws indices in proportion to their priorities, in a handful of tensor operations for a whole batch.

Each node is the sum of `FANOUT` children, so a million leaves are three levels below the root instead of the twenty
of a binary tree: an operation costs about as much as summing a few hundred rows. Nodes are recomputed from their
children, never adjusted by differences, so that sums don't drift and depend on nothing but the leaves.

Dimension letters: B batch, F fan-out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.pages import zeros

FANOUT = 128


@dataclass(frozen=True)
class Priorities:
    """Proportional prioritisation (arXiv 1511.05952, section 3.3): P(i) ~ (|TD error| + floor)^alpha.

    Attributes:
        alpha: in [0, 1]; 0 is uniform.
        floor: added to TD errors, > 0.
    """

    alpha: float = 0.6
    floor: float = 1e-6


class SumTree:
    """Priorities of `size` indices, all 0 at first.

    Args:
        size: number of leaves.
        device: where it lives.

    Attributes:
        levels: (nodes / F, F) float64 each, the leaves first; the last one has one row, whose sum is the total.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.levels: list[Tensor] = []
        for rows in level_rows(size):
            self.levels.append(zeros((rows, FANOUT), torch.float64, device))
        self._leaves = self.levels[0].view(-1)

    @property
    def total(self) -> Tensor:
        """Sum of all priorities; a scalar, on the device."""
        return self.levels[-1].sum()

    def __getitem__(self, index: Tensor) -> Tensor:
        """Priorities (B,) float64 of (B,) indices."""
        return self._leaves.index_select(0, index)

    def set(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of (B,) indices to (B,) finite numbers >= 0.

        Of an index that comes twice, the larger priority stays: the result does not depend on who writes last.
        """
        self._leaves.scatter_reduce_(0, index, priority.to(torch.float64), "amax", include_self=False)
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            index = index.div(FANOUT, rounding_mode="floor")
            upper.view(-1).index_copy_(0, index, lower.index_select(0, index).sum(1))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw (count,) indices, one from each of `count` equal shares of the total. None of priority 0 is drawn.

        Args:
            count: B.
            generator: on the tree's device.
        """
        device = self._leaves.device
        root = self.levels[-1][0].cumsum(0)
        share = torch.rand(count, generator=generator, dtype=torch.float64, device=device)
        share += torch.arange(count, device=device)
        child, rest = _descend(root, share.mul_(root[-1] / count))  # (B,) how far into the children of a node
        for level in reversed(self.levels[:-1]):
            node = child
            child, rest = _descend(level.index_select(0, node).cumsum(1), rest)
            child += node * FANOUT
        return child


def level_rows(size: int) -> list[int]:
    """Rows of F nodes in each level of a tree of `size` leaves, the leaves first."""
    rows = [math.ceil(size / FANOUT)]
    while rows[-1] > 1:
        rows.append(math.ceil(rows[-1] / FANOUT))
    return rows


def _descend(cumulative: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """The child in which each `rest` lies, and what is left of it there.

    Rounding may put `rest` at or beyond the end, where a child without priority would be taken: it is held below.

    Args:
        cumulative: (B, F) cumulative sums of the children, or (F,) where the node is the same for all.
        rest: (B,).
    """
    rest = torch.minimum(rest, cumulative[..., -1].nextafter(rest.new_zeros(())))
    if cumulative.ndim == 1:
        child = torch.searchsorted(cumulative, rest, right=True)
        before = cumulative.index_select(0, (child - 1).clamp_(min=0))
    else:
        child = torch.searchsorted(cumulative, rest.unsqueeze(1), right=True)
        before = cumulative.gather(1, (child - 1).clamp_(min=0)).squeeze(1)
        child = child.squeeze(1)
    return child, rest - before.masked_fill_(child == 0, 0.0)
