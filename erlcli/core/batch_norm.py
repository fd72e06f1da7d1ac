"""Batch renormalisation, with its two modes told apart by an argument instead of a hidden flag.

Ioffe, "Batch Renormalization" (arXiv 1702.03275): normalise by the batch's own statistics, then correct towards the
running ones by

    r = clip(std_batch / std, 1 / r_max, r_max),  d = clip((mean_batch - mean) / std, -d_max, d_max)

which are constants to the gradient. Until the running statistics have seen enough, r = 1 and d = 0: batch norm.

Dimension letters: E members, B batch, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOMENTUM = 0.99
EPS = 1e-3
R_MAX, D_MAX = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalises over the batch, which is the last dimension but one.

    The running statistics are buffers, so that a policy's state carries them: acting goes by them alone.

    Args:
        shape: of the statistics: (F,), or (E, 1, F) for members with statistics of their own.
        warmup: updates with plain batch norm.
    """

    mean: Tensor
    var: Tensor
    scale: Tensor
    updates: Tensor

    def __init__(self, shape: tuple[int, ...], warmup: int = 100_000) -> None:
        super().__init__()
        self.warmup = warmup
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("scale", torch.full(shape, (1.0 + EPS) ** -0.5))  # 1 / std, so that acting needs no root
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, *, training: bool = False, frozen: bool = False) -> Tensor:
        """Normalise.

        Args:
            x: (..., B, F).
            training: by this batch's statistics, which the running ones then take in; else by the running ones.
            frozen: no gradient reaches weight and bias.

        Returns:
            Of the shape of `x`, broadcast to members.
        """
        weight, bias = (self.weight.detach(), self.bias.detach()) if frozen else (self.weight, self.bias)
        if not training:
            return torch.addcmul(bias, (x - self.mean) * self.scale, weight)
        var, mean = torch.var_mean(x, dim=-2, correction=0, keepdim=self.mean.ndim > 1)
        inverse = (var + EPS).rsqrt()
        plain = (x - mean) * inverse
        with torch.no_grad():
            warm = self.updates >= self.warmup
            r = torch.where(warm, (self.scale / inverse).clamp(1.0 / R_MAX, R_MAX), 1.0)
            d = torch.where(warm, ((mean - self.mean) * self.scale).clamp(-D_MAX, D_MAX), 0.0)
            self._take_in(mean, var)
        return torch.addcmul(bias, plain * r + d, weight)

    def _take_in(self, mean: Tensor, var: Tensor) -> None:
        self.mean.lerp_(mean.expand_as(self.mean), 1.0 - MOMENTUM)
        self.var.lerp_(var.expand_as(self.var), 1.0 - MOMENTUM)
        self.scale.copy_((self.var + EPS).rsqrt())
        self.updates += 1
