"""Truncated quantile critics.

Kuznetsov et al., "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
Critics" (arXiv 2005.04269). SAC whose E critics give K quantiles each, theta_i of shares t_i = (i - 1/2) / K. The
target distribution mixes the E K quantiles at (s', a'), a' ~ pi(.|s'), sorted, without the E d largest:

    y_j = r + gamma (z_(j) - alpha log pi(a'|s')),  j = 1 ... E (K - d)

and every critic minimises the quantile Huber loss, the mean over i and j of |t_i - 1[u < 0]| huber(u), u = y_j -
theta_i. The actor climbs the mean of all E K quantiles, without truncation.

Deviation: 2 critics by default instead of 5.

Dimension letters: E critics, K quantiles, J of the target, B rows of a batch, F features.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.algorithms.config.tqc import TQCConfig
from erlcli.algorithms.ddpg import action_dim
from erlcli.algorithms.soft import SoftActorCritic
from erlcli.core.algorithm import Context
from erlcli.core.encoders import make_encoder
from erlcli.core.ensemble import QEnsemble
from erlcli.core.target import Target
from erlcli.core.transitions import Transitions


class TQC(SoftActorCritic):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config: ClassVar[type[TQCConfig]] = TQCConfig
    config: TQCConfig

    def __init__(self, config: TQCConfig, context: Context) -> None:
        super().__init__(config, context)
        self.target_critic = Target(self.critic, self.optimizers["critic"].flat)
        self.networks["target_critic"] = self.target_critic.module
        self.shares = (torch.arange(config.quantiles, device=self.device) + 0.5) / config.quantiles

    def build_critic(self, context: Context) -> QEnsemble:
        """See `SoftActorCritic.build_critic`."""
        config, network, obs = self.config, context.network, context.spec.obs
        encoder = make_encoder(obs, network)
        return QEnsemble(
            config.critics,
            (obs.size if encoder is None else encoder.width) + action_dim(context),
            network.hidden if config.critic_hidden is None else config.critic_hidden,
            config.quantiles,
            **network.layers,
            encoder=encoder,
        )

    def quantiles(self, critic: QEnsemble, features: Tensor, action: Tensor, *, frozen: bool = False) -> Tensor:
        """(E, B, K), a single quantile too."""
        out: Tensor = critic(critic.join(features, action, frozen=frozen), frozen=frozen)
        return out

    def critic_loss(self, batch: Transitions, features: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `SoftActorCritic.critic_loss`; the TD error is that of the distributions' means."""
        target = self.target(batch, *draws)  # (B, J)
        value = self.quantiles(self.critic, features, batch.action)  # (E, B, K)
        loss = (quantile_huber(value, target, self.shares) * batch.weight).sum() / len(target)
        detached = value.detach()
        error = (detached.mean(-1) - target.mean(-1)).abs().mean(0)
        return loss, error, detached.mean()

    @torch.no_grad()
    def target(self, batch: Transitions, noise: Tensor) -> Tensor:
        """y, (B, J)."""
        next_features, next_action, cost = self.next_action(batch, noise)
        value = self.quantiles(self.target_critic.module, next_features, next_action)
        mixture = value.transpose(0, 1).flatten(1).sort(dim=-1).values  # (B, E K)
        kept = mixture[:, : self.config.critics * (self.config.quantiles - self.config.drop)]
        soft = kept - cost.unsqueeze(-1)
        return torch.addcmul(batch.reward.unsqueeze(-1), batch.discount.unsqueeze(-1), soft)

    def actor_value(self, features: Tensor, action: Tensor) -> Tensor:
        """See `SoftActorCritic.actor_value`."""
        return self.quantiles(self.critic, features, action, frozen=True).mean((0, 2))

    def follow(self) -> None:
        """See `SoftActorCritic.follow`."""
        self.target_critic.update(self.config.tau)


def quantile_huber(value: Tensor, target: Tensor, shares: Tensor) -> Tensor:
    """The quantile Huber loss with threshold 1.

    Args:
        value: (..., B, K) quantiles.
        target: (B, J) samples of the target distribution, without gradient.
        shares: (K,) which quantiles these are, in (0, 1).

    Returns:
        (..., B), the mean over K and J.
    """
    error = target.unsqueeze(-2) - value.unsqueeze(-1)  # (..., B, K, J)
    huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    weight = (shares.unsqueeze(-1) - (error.detach() < 0).to(error.dtype)).abs()
    return (huber * weight).mean((-2, -1))
