"""Where one rollout goes on from the last."""

from __future__ import annotations

from torch import Tensor


class Seam:
    """Tells which environments are not where the last rollout left them.

    They were made anew after a failure, and no rollout has an end of what was open in them.
    """

    def __init__(self) -> None:
        self._tail: Tensor | None = None  # (N, *obs) that the next rollout begins with

    def reset_before(self, obs: Tensor) -> Tensor | None:
        """(N,) which were reset between the last rollout and that with `obs` (T + 1, N, *obs); None for the first."""
        tail, self._tail = self._tail, obs[-1].clone()
        return None if tail is None else (tail != obs[0]).reshape(len(tail), -1).any(1)

    def forget(self) -> None:
        """Every environment was reset, on purpose."""
        self._tail = None
