"""Advantages and returns.

Dimension letters: T time steps, N environments, K ended episodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erlcli.core.types import FinalObs


def next_values(value: Tensor, final_obs: FinalObs, final_value: Tensor) -> Tensor:
    """The value of what really followed each step.

    Args:
        value: (T + 1, N) values of `Rollout.obs`.
        final_obs: where obs[t + 1] belongs to the next episode already.
        final_value: (K,) values of `final_obs.obs`.

    Returns:
        (T, N): value[t + 1], with the entries of `final_obs` put in their places.
    """
    following = value[1:].clone()
    if len(final_obs.index):
        following[final_obs.index[:, 0], final_obs.index[:, 1]] = final_value
    return following


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16) with time limits.

    A terminated step has no future; a truncated one is bootstrapped from the value of its true last observation; the
    sum over deltas stops at both, so that nothing leaks from one episode into the one before.

    Args:
        reward: (T, N).
        value: (T, N) values of the observations acted upon.
        next_value: (T, N), see `next_values`.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        valid: (T, N) bool; rows that are False get advantage 0.
        gamma: discount in [0, 1].
        gae_lambda: in [0, 1]; 0 is one-step TD, 1 is Monte Carlo.

    Returns:
        (T, N) advantages.
    """
    # Filled, not multiplied: NaN * 0 is NaN, and what stands in these places may be anything.
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    delta.masked_fill_(~valid, 0.0)
    carry = (~(terminated | truncated) & valid) * (gamma * gae_lambda)
    return running(delta, carry, torch.zeros_like(delta[0]), backwards=True)


def running(terms: Tensor, factors: Tensor, before: Tensor, *, backwards: bool = False) -> Tensor:
    """y[t] = terms[t] + factors[t] * y[t - 1], one operation a step.

    Args:
        terms: (T, N).
        factors: (T, N).
        before: (N,) y[-1], or y[T].
        backwards: from the last step on, with y[t + 1] in the place of y[t - 1].

    Returns:
        (T, N).
    """
    sums = torch.empty_like(terms)
    rows = list(zip(terms.unbind(0), factors.unbind(0), sums.unbind(0), strict=True))
    for term, factor, after in reversed(rows) if backwards else rows:
        torch.addcmul(term, factor, before, out=after)
        before = after
    return sums
