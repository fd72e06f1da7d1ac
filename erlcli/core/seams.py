"""Where one rollout goes on from the last."""

from __future__ import annotations

from torch import Tensor


class Seam:
    """Tells which environments are not where the last rollout left them.

    They were made anew after a failure, and no rollout has an end of what was open in them.
    """

    def __init__(self) -> None:
        self._tail: Tensor | None = None  # (N, *obs) that the next rollout begins with; a graph may have its address
        self._known = False  # whether it is still true

    def reset_before(self, obs: Tensor) -> Tensor | None:
        """(N,) which were reset between the last rollout and that with `obs` (T + 1, N, *obs); None for the first."""
        if self._tail is None:
            self._tail = obs[0].clone()
        reset = (self._tail != obs[0]).reshape(len(self._tail), -1).any(1) if self._known else None
        self._tail.copy_(obs[-1])
        self._known = True
        return reset

    def forget(self) -> None:
        """Every environment was reset, on purpose."""
        self._known = False
