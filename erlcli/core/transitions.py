"""What off-policy algorithms learn from: transitions that were drawn from a replay.

Dimension letters: B batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """Rows to learn from, on the learner's device.

    Attributes:
        obs: (B, *obs), raw.
        action: (B, *action) in the policy's own units.
        reward: (B,) discounted sum of up to n rewards.
        next_obs: (B, *obs) the true observation n steps later, or fewer at the end of an episode or of what there is.
        discount: (B,) gamma^k of the k steps in between, to bootstrap with; 0 where the episode terminated.
        weight: (B,) importance weights, the largest 1; all 1 for uniform draws.
        index: (B,) where the rows are, for `Replay.update_priorities`.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    weight: Tensor
    index: Tensor

    def parts(self, rows: int) -> Iterator[Transitions]:
        """Views of `rows` rows each, one after the other."""
        columns = (getattr(self, f.name).split(rows) for f in fields(self))
        return (Transitions(*tensors) for tensors in zip(*columns, strict=True))
