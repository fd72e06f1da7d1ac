"""Running statistics of observations and returns.

Statistics live in buffers: of the policy for observations (they change acting, and an exported policy carries them), of
the learner for rewards. Only learners update them, and only once what is learnt from a rollout is prepared by those
that it was acted by, or PPO's probability ratio would not start at 1. Evaluation never touches them. Several learners
pool what each has seen of a rollout, so that all hold the statistics of one that has seen everything.

Dimension letters: T time steps, N environments, B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from erlcli.core.collective import ALONE, Collective
from erlcli.core.returns import running
from erlcli.core.seams import Seam

EPSILON = 1e-8  # added to variances


def pool(counts: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of R sets of samples taken together.

    Args:
        counts: (R,) float64 samples in each; fractions are weights.
        means: (R, *shape).
        variances: (R, *shape), as of populations.

    Returns:
        Count (scalar), mean and variance (*shape); where nothing was seen, mean and variance are those of the first.
    """
    total = counts.sum()
    if total == 0:
        return total, means[0].clone(), variances[0].clone()
    share = (counts / total).view(-1, *(1,) * (means.ndim - 1))  # (R, 1, ...)
    mean = (share * means).sum(0)
    return total, mean, (share * (variances + (means - mean) ** 2)).sum(0)


class RunningMoments(nn.Module):
    """Mean and variance of all that was seen, by the parallel formula of Chan, Golub and LeVeque (1979).

    Buffers: `count` (scalar), `mean` and `var` of the given shape, all float64 so that ten million samples still move
    the mean.
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor, collective: Collective = ALONE, valid: Tensor | None = None) -> None:
        """Take in (B, *shape) samples, and those of the other learners; all, or those that are `valid` (B,)."""
        added, batch_mean, batch_var = collective.moments(batch.to(torch.float64), valid)
        share = added / self.count.add_(added).clamp(min=1)
        shift = batch_mean - self.mean
        self.mean.addcmul_(shift, share)
        self.var.lerp_(torch.addcmul(batch_var, shift * shift, 1.0 - share), share)


class ObsNormalizer(nn.Module):
    """(obs - mean) / std, clipped to [-clip, clip]. Before the first update it only casts and clips.

    Args:
        shape: of one observation.
        clip: largest magnitude let through.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        super().__init__()
        self.moments = RunningMoments(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.clip = clip

    def forward(self, obs: Tensor) -> Tensor:
        """(..., *shape) observations of any dtype to float32."""
        return ((obs - self.shift) * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, obs: Tensor, collective: Collective = ALONE, valid: Tensor | None = None) -> None:
        """Take in (B, *shape) observations, and those of the other learners; all, or those that are `valid` (B,)."""
        self.moments.update(obs, collective, valid)
        self.shift.copy_(self.moments.mean)
        self.scale.copy_((self.moments.var + EPSILON).rsqrt())


class RewardNormalizer(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, without moving their mean.

    Args:
        num_envs: N; each environment carries its own running return.
        gamma: discount of the running return.
        clip: largest magnitude of a normalised reward.
        collective: the group of learners, each with its own environments.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float, collective: Collective = ALONE) -> None:
        super().__init__()
        self.collective = collective
        self.moments = RunningMoments(())
        self._seam = Seam()
        self.register_buffer("carry", torch.zeros(num_envs), persistent=False)  # a run goes on from fresh envs
        self.gamma = gamma
        self.clip = clip

    def forward(self, reward: Tensor) -> Tensor:
        """(T, N) rewards, scaled by the statistics up to the last update."""
        scale = (self.moments.var + EPSILON).rsqrt().to(reward.dtype)
        return (reward * scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def begin(self, obs: Tensor) -> None:
        """Before `update`: forget what was open in environments that were made anew, by observations (T + 1, N, *)."""
        reset = self._seam.reset_before(obs)
        if reset is not None:
            self.carry.masked_fill_(reset, 0.0)

    @torch.no_grad()
    def update(self, reward: Tensor, ended: Tensor, valid: Tensor | None) -> None:
        """Take in (T, N) rewards; `ended` (T, N) starts the running return anew.

        Rows not `valid` (T, N) don't count; None where all are.
        """
        if valid is not None:
            reward = reward.masked_fill(~valid, 0.0)  # or it would go on in the next episode's return
        keep = ~ended * self.gamma
        first = torch.ones_like(keep[:1])  # `carry` has been multiplied by what the step before it kept
        returns = running(reward, torch.cat([first, keep[:-1]]), self.carry)
        self.carry.copy_(returns[-1] * keep[-1])
        self.moments.update(returns.flatten(), self.collective, None if valid is None else valid.flatten())

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the open episodes: every environment was reset."""
        self._seam.forget()
        self.carry.zero_()
