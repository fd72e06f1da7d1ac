"""What learners do together. With one learner, which is what runs today, every operation is the identity."""

from __future__ import annotations

from torch import Tensor


class Collective:
    """A group of learners that hold equal weights."""

    rank = 0
    world_size = 1

    def any(self, flag: bool) -> bool:
        """Whether any member raised its flag; all members get the same answer."""
        return flag

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average `tensor` over the members, in place."""
        return tensor
