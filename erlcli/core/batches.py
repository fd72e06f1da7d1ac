"""The rows of a rollout as minibatches: drawn one by one, or as whole sequences for a memory to run through.

Dimension letters: T time steps, N environments, B rows of a minibatch, C choices, P sequences, L longest sequence,
S numbers of a state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from erlcli.core.sequences import Sequences

TENSORS = ("obs", "action", "log_prob", "value", "advantage", "returns")


@dataclass(frozen=True)
class Packing:
    """How the rows of a minibatch make sequences; see `Memory.over_sequences`.

    Attributes:
        sizes: (L,) int64 on the CPU.
        actor_state: (P, S) before each sequence.
        critic_state: (P, S).
    """

    sizes: Tensor
    actor_state: Tensor
    critic_state: Tensor


@dataclass(frozen=True)
class Batch:
    """Rows to learn from, all of the same length."""

    obs: Tensor  # (B, ...) what `VectorPolicy.prepare` makes of observations
    action: Tensor  # (B, ...)
    log_prob: Tensor  # (B,) under the policy that acted
    value: Tensor  # (B,) estimate at the time of the rollout
    advantage: Tensor  # (B,)
    returns: Tensor  # (B,) targets of the critic
    mask: Tensor | None = None  # (B, C) bool, the legal choices; None where all are
    packing: Packing | None = None  # of a minibatch of sequences

    def rows(self, index: Tensor) -> Batch:
        """A copy of the chosen rows."""
        tensors: dict[str, Any] = {name: getattr(self, name)[index] for name in TENSORS}
        return Batch(**tensors, mask=self.mask[index] if self.mask is not None else None)

    def parts(self, sizes: list[int]) -> Iterator[Batch]:
        """Views of as many rows as `sizes` says, one after the other."""
        names = TENSORS if self.mask is None else (*TENSORS, "mask")
        columns = (getattr(self, name).split(sizes) for name in names)
        return (Batch(*tensors) for tensors in zip(*columns, strict=True))


@dataclass(frozen=True)
class Recurrence:
    """What a rollout's rows are to a memory.

    Attributes:
        sequences: its valid rows, in whose order the `Batch` is.
        actor_state: (P, S) before each of them.
        critic_state: (P, S).
    """

    sequences: Sequences
    actor_state: Tensor
    critic_state: Tensor

    def packing(self, sizes: Tensor, numbers: Tensor) -> Packing:
        """That of the sequences `numbers`."""
        return Packing(sizes, self.actor_state[numbers], self.critic_state[numbers])


def minibatches(batch: Batch, count: int, order: Tensor | None, recurrence: Recurrence | None) -> Iterator[Batch]:
    """All of a rollout's rows, each once.

    Args:
        batch: the rows.
        count: minibatches of about equal size; fewer where there are fewer sequences than that.
        order: a permutation of the rows, of the sequences where there are any. None for a single minibatch of a
            policy without a memory, whose rows stay as they are.
        recurrence: of the rows; None for a policy without a memory.
    """
    if order is None:
        yield batch
    elif recurrence is None:
        # In minibatches that differ by at most one row.
        rows = len(order)
        ends = itertools.pairwise(rows * i // count for i in range(count + 1))
        yield from batch.rows(order).parts([stop - start for start, stop in ends])
    else:
        for numbers in recurrence.sequences.parts(count, order):
            index, sizes, sorted_numbers = recurrence.sequences.pack(numbers)
            yield replace(batch.rows(index), packing=recurrence.packing(sizes, sorted_numbers))
