"""Twin delayed deep deterministic policy gradient.

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv 1802.09477). DDPG with

    y = r + gamma min(Q'_1, Q'_2)(s', clip(mu'(s') + e, -1, 1)),  e = clip(sigma z, -c, c), z standard normal

in each dimension by itself, and with an actor and targets that move at every second step of the critics only. Actions
are in [-1, 1] here, whatever the environment's bounds, so sigma and c are shares of half their distance, as in the
paper, and an asymmetric space gets the same noise as a symmetric one.

Dimension letters: B rows of a batch, A action dimensions.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from erlcli.algorithms.config.ddpg import DeterministicConfig
from erlcli.algorithms.config.td3 import TD3Config
from erlcli.algorithms.ddpg import DDPG
from erlcli.core.algorithm import Context


class TD3(DDPG):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config: ClassVar[type[DeterministicConfig]] = TD3Config
    config: TD3Config
    critics: ClassVar[int] = 2

    def __init__(self, config: TD3Config, context: Context) -> None:
        super().__init__(config, context)
        self.policy_delay = config.policy_delay

    def draws(self, rows: int) -> tuple[Tensor, ...]:
        """Noise for the target's actions, (B, A)."""
        noise = torch.empty(rows, *self.policy.action_shape, device=self.device)
        return (noise.normal_(0.0, self.config.target_noise, generator=self.generator),)

    def target_action(self, next_features: Tensor, *draws: Tensor) -> Tensor:
        """mu'(s') smoothed by clipped noise, (B, A)."""
        (noise,) = draws
        clip = self.config.target_noise_clip
        return (super().target_action(next_features) + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)
