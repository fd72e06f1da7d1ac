"""Quantile regression DQN.

Dabney et al., "Distributional Reinforcement Learning with Quantile Regression" (arXiv 1710.10044). The network gives K
quantiles of the return of each action, for the midpoints tau_i = (2 i - 1) / 2K. With the greedy action a' by the mean
of the target network's quantiles (algorithm 1), minimise

    sum_i E_j[ |tau_i - 1(u_ij < 0)| L_kappa(u_ij) / kappa ],  u_ij = R + gamma^k theta'_j(s', a') - theta_i(s, a)

where L_kappa is the Huber loss (equation 10). The rest is as in `dqn`. The TD error for priorities is that of the
means.

Dimension letters: B batch, C choices, K quantiles.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.algorithms.config.qrdqn import QRDQNConfig
from erlcli.algorithms.dqn import DQN, QPolicy, plain_network
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions


class QuantileNetwork(nn.Module):
    """Quantiles of the return of each choice.

    Args:
        inputs: width of the input.
        choices: C.
        quantiles: K.
        network: the `[network]` section.
    """

    def __init__(self, inputs: int, choices: int, quantiles: int, network: NetworkConfig) -> None:
        super().__init__()
        self.choices, self.quantiles = choices, quantiles
        self.body = plain_network(inputs, choices * quantiles, network)

    def forward(self, features: Tensor) -> Tensor:
        """(..., F) to (..., C, K)."""
        flat: Tensor = self.body(features)
        return flat.reshape(*flat.shape[:-1], self.choices, self.quantiles)


class QuantilePolicy(QPolicy):
    """Epsilon-greedy on the means of quantiles."""

    def values(self, features: Tensor) -> Tensor:
        """Q values (..., C)."""
        quantiles: Tensor = self.network(features)
        return quantiles.mean(-1)


class QRDQN(DQN):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = QRDQNConfig  # type: ignore[assignment]
    policy_class: ClassVar[type[QPolicy]] = QuantilePolicy
    config: QRDQNConfig

    def __init__(self, config: QRDQNConfig, context: Context) -> None:
        super().__init__(config, context)
        self.midpoints = (torch.arange(config.quantiles, device=self.device) + 0.5) / config.quantiles  # (K,)

    @classmethod
    def build_network(cls, config: Any, inputs: int, choices: int, network: NetworkConfig) -> nn.Module:  # noqa: ANN401
        """See `DQN.build_network`."""
        return QuantileNetwork(inputs, choices, config.quantiles, network)

    def step(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """See `DQN.step`; on the quantile Huber loss."""
        features, next_features = self.policy.features(batch.obs), self.policy.features(batch.next_obs)
        with torch.no_grad():
            target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * self.next_quantiles(next_features)
        quantiles = chosen(self.policy.network(features), batch.action)  # (B, K)
        loss = (quantile_loss(quantiles, target, self.midpoints, self.config.kappa) * batch.weight).mean()
        self.optimizer.apply(loss, self.learning_rate)
        quantiles = quantiles.detach()
        return loss.detach(), (quantiles - target).mean(-1), quantiles.mean()

    def next_quantiles(self, features: Tensor) -> Tensor:
        """The quantiles (B, K) of what follows."""
        quantiles: Tensor = self.target.module(features)
        return chosen(quantiles, quantiles.mean(-1).argmax(-1))


def chosen(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles (B, K) of the actions (B,) among (B, C, K)."""
    index = action.view(-1, 1, 1).expand(-1, 1, quantiles.shape[-1])
    return quantiles.gather(1, index).squeeze(1)


def quantile_loss(quantiles: Tensor, target: Tensor, midpoints: Tensor, kappa: float) -> Tensor:
    """Quantile Huber loss (B,): the sum over estimates (B, K) of the mean over samples (B, J) of the target."""
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # (B, K, J)
    huber = F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa) / kappa
    share = (midpoints.view(1, -1, 1) - (error.detach() < 0).to(error.dtype)).abs()
    return (share * huber).mean(2).sum(1)
