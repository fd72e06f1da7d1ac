"""What learners do together. With one learner every operation is the identity, and costs nothing.

Learners hold equal weights and each its share of the environments. All of them call the same operations in the same
order, so whatever decides about a call has to be known to all: it is agreed on with `any`, `sum` or `gather` first.

Dimension letters: B samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Collective:
    """A group of learners that hold equal weights; this one has a single member. See `process_group` for others.

    Attributes:
        rank: of this member, from 0 on; the first one alone writes down what the run does.
        world_size: how many there are.
    """

    rank = 0
    world_size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the member that writes down what the run does."""
        return self.rank == 0

    def use(self, device: torch.device) -> None:
        """Compute on `device` from here on."""

    def any(self, flag: bool) -> bool:
        """Whether any member raised its flag; all members get the same answer."""
        return flag

    def sum(self, number: int) -> int:
        """The sum of the members' numbers."""
        return number

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - JSON
        """The members' JSON values by rank; all members get all."""
        return [value]

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average `tensor` over the members, in place."""
        return tensor

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Give all members the first one's `tensor`, in place."""
        return tensor

    def moments(self, samples: Tensor, valid: Tensor | None = None) -> tuple[int | Tensor, Tensor, Tensor]:
        """Number, mean and population variance (*shape) of the samples of all members together.

        Args:
            samples: (B, *shape) floats.
            valid: (B,) bool, those that count; None where all do. They are not picked but masked, so that it may be
                compiled.

        Returns:
            Without any sample mean and variance are zeros.
        """
        if valid is not None:
            return _masked_moments(samples, valid)
        if not len(samples):
            return 0, samples.new_zeros(samples.shape[1:]), samples.new_zeros(samples.shape[1:])
        variance, mean = torch.var_mean(samples, dim=0, correction=0)
        return len(samples), mean, variance

    def std_mean(self, samples: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Population standard deviation and mean of samples (B,), as `moments` takes them."""
        if valid is not None:
            _, mean, variance = _masked_moments(samples, valid)
            return variance.sqrt(), mean
        std, mean = torch.std_mean(samples, correction=0)
        return std, mean

    def minibatches(self, rows: int, batch_size: int) -> int:
        """In how many minibatches each member's rows go, so that all take equally many gradient steps.

        Args:
            rows: of this member.
            batch_size: rows of one minibatch, over all members.

        Returns:
            At least 1, and no more than any member has rows; 0 where one has none, so that nobody can take a step.
        """
        counts: list[int] = self.gather(rows)
        return min(min(counts), max(1, round(sum(counts) / batch_size)))


def _masked_moments(samples: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    counts = valid.view(-1, *(1,) * (samples.ndim - 1))
    count = valid.sum()
    divisor = count.clamp(min=1)
    mean = torch.where(counts, samples, 0.0).sum(0) / divisor
    return count, mean, torch.where(counts, samples - mean, 0.0).square().sum(0) / divisor


ALONE = Collective()
