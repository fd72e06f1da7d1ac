"""Soft actor-critics: SAC, and ModSAC, REDQ and DroQ, which differ from it by a line or a setting.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). For each batch, minimise

    L_Q = 1/2 sum_i E[(Q_i(s, a) - y)^2],  y = r + gamma (min_i Q'_i(s', a') - alpha log pi(a'|s')),  a' ~ pi(.|s')
    L_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)],  a = tanh(mean + std z), z standard normal
    L_alpha = -log alpha E[log pi(a|s) + H]

where H is the entropy aimed at, by default minus the number of action dimensions; targets follow at rate tau.

* REDQ (arXiv 2101.05982): E = 10 critics, y takes the min over M = 2 of them drawn anew for each step, G = 20 steps
  of the critics for each environment step and one of the actor, which climbs the mean over all E.
* DroQ (arXiv 2110.02034): 2 critics with dropout and layer norm, whose masks are drawn in targets and in the actor's
  loss too; G = 20, the actor climbs the mean.
* ModSAC: c is a moving average of the critics' mean squared error, l = exp(-c^2), and the actor (with the temperature)
  moves only while its steps < (1 + the critics' steps) / (2 - l): always where the critics fit, every second time
  where they don't. l is read once a rollout; and as its steps are counted against the rates that held when they were
  due, a change of the rate takes effect at once instead of making good for the past.

Beyond the papers: returns may be of n steps; time limits are bootstrapped. `soft` has the actor and its temperature.

Dimension letters: E critics, M of a random subset, B rows of a batch, F features.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from erlcli.algorithms.config.sac import DroQConfig, EnsembleConfig, ModSACConfig, REDQConfig, SACConfig
from erlcli.algorithms.ddpg import action_dim, squared_loss
from erlcli.algorithms.soft import SoftActorCritic
from erlcli.core.algorithm import Context
from erlcli.core.encoders import make_encoder
from erlcli.core.ensemble import QEnsemble
from erlcli.core.target import Target
from erlcli.core.transitions import Transitions
from erlcli.core.types import Rollout


class SAC(SoftActorCritic):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config: ClassVar[type[EnsembleConfig]] = SACConfig
    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig, context: Context) -> None:
        super().__init__(config, context)
        self.target_critic = Target(self.critic, self.optimizers["critic"].flat)
        self.networks["target_critic"] = self.target_critic.module

    def build_critic(self, context: Context) -> QEnsemble:
        """See `SoftActorCritic.build_critic`."""
        config, network, obs = self.config, context.network, context.spec.obs
        encoder = make_encoder(obs, network)
        return QEnsemble(
            config.critics,
            (obs.size if encoder is None else encoder.width) + action_dim(context),
            network.hidden if config.critic_hidden is None else config.critic_hidden,
            1,
            activation=network.activation,
            layer_norm=network.layer_norm or config.critic_layer_norm,
            init=network.init,
            dropout=config.dropout,
            encoder=encoder,
        )

    def draws(self, rows: int) -> tuple[Tensor, ...]:
        """Noise, and where the target is that of a random subset, which critics these are."""
        noise = super().draws(rows)
        return (*noise, self.subset()) if self.config.target == "subset" else noise

    def draws_inside(self) -> str | None:
        """See `SoftActorCritic.draws_inside`."""
        return "algorithm.dropout: it draws within the step" if self.config.dropout else None

    def critic_loss(self, batch: Transitions, features: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `SoftActorCritic.critic_loss`."""
        target = self.target(batch, *draws)
        value = self.critic.q(features, batch.action, generator=self.generator)  # (E, B)
        error = value - target
        return squared_loss(error, batch.weight), error.detach().abs().mean(0), value.detach().mean()

    @torch.no_grad()
    def target(self, batch: Transitions, noise: Tensor, members: Tensor | None = None) -> Tensor:
        """y, (B,), of these critics or all."""
        next_features, next_action, cost = self.next_action(batch, noise)
        value = self.target_critic.module.q(next_features, next_action, members=members, generator=self.generator)
        combined = value.mean(0) if self.config.target == "mean" else value.amin(0)
        return torch.addcmul(batch.reward, batch.discount, combined - cost)

    def subset(self) -> Tensor:
        """M different critics, every set of them equally likely."""
        order = torch.randperm(self.config.critics, generator=self.generator, device=self.device)
        return order[: self.config.subset]

    def actor_value(self, features: Tensor, action: Tensor) -> Tensor:
        """See `SoftActorCritic.actor_value`."""
        value = self.critic.q(features, action, frozen=True, generator=self.generator)
        return value.mean(0) if self.config.actor_value == "mean" else value.amin(0)

    def follow(self) -> None:
        """See `SoftActorCritic.follow`."""
        self.target_critic.update(self.config.tau)


class REDQ(SAC):
    """SAC with many critics, of which random ones give the target; see `REDQConfig`."""

    Config: ClassVar[type[EnsembleConfig]] = REDQConfig


class DroQ(SAC):
    """SAC with dropout and layer norm in the critics; see `DroQConfig`."""

    Config: ClassVar[type[EnsembleConfig]] = DroQConfig


class ModSAC(SAC):
    """SAC whose actor moves the more often the better the critics fit.

    Attributes:
        loss: moving average of the critics' mean squared error, c.
        rate: steps of the actor for each one of the critics, in [1/2, 1].
        credit: steps of the actor that are due.
    """

    Config: ClassVar[type[EnsembleConfig]] = ModSACConfig
    config: ModSACConfig

    def __init__(self, config: ModSACConfig, context: Context) -> None:
        super().__init__(config, context)
        self.loss = torch.tensor(math.sqrt(math.log(2.0)), device=self.device)  # l = 1/2: neither good nor bad
        self.rate = self._rate()
        self.credit = 0.0

    def critic_loss(self, batch: Transitions, features: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `SoftActorCritic.critic_loss`."""
        loss, error, value = super().critic_loss(batch, features, *draws)
        mean_square = loss.detach() * (2.0 / self.config.critics)
        self.loss.lerp_(mean_square, 1.0 - self.config.loss_memory)
        return loss, error, value

    def actor_due(self) -> bool:
        """Whether actor steps / (critic steps + 1) < rate, each step of the critics counted by the rate it had."""
        if not super().actor_due():
            return False
        self.credit += self.rate
        if self.credit <= 1e-9:  # sums of rates like 2/3 miss the 0 that they should be by less
            return False
        self.credit -= 1.0
        return True

    def _rate(self) -> float:
        return 1.0 / (2.0 - math.exp(-(float(self.loss) ** 2)))

    def update(self, rollout: Rollout, progress: float, following: float | None = None) -> dict[str, float | Tensor]:
        """Learn from one rollout, then read the loss: the rate stays within the next one's; see `Algorithm.update`."""
        return super().update(rollout, progress, following) | self.read_loss()

    def read_loss(self) -> dict[str, float | Tensor]:
        """Set the rate by the loss so far; returns it as a metric."""
        self.rate = self._rate()
        return {"schedule/actor_rate": self.rate}

    def state_dict(self) -> dict[str, Any]:
        """With both time scales."""
        scales = {"loss": self.loss.clone(), "rate": self.rate, "credit": self.credit}
        return {**super().state_dict(), "time_scales": scales}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        super().load_state_dict(state)
        scales = state["time_scales"]
        self.loss.copy_(scales["loss"])
        self.rate, self.credit = float(scales["rate"]), float(scales["credit"])
