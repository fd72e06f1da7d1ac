"""What SAC, TQC, CrossQ and their kin have in common: the actor, its temperature, and the order of a gradient step.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). Beside its critics each minimises

    L_pi = E[alpha log pi(a|s) - V(s, a)],  a = tanh(mean + std z), z standard normal
    L_alpha = -log alpha E[log pi(a|s) + H]

where V is what the critics make of the action, and H the entropy aimed at, by default minus the number of dimensions.

Actor and temperature share an optimiser: a clipped gradient is clipped as a whole.

Dimension letters: N environments, E critics, B rows of a batch, F features, A action dimensions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.sac import SoftConfig
from erlcli.algorithms.ddpg import action_dim
from erlcli.algorithms.h_term import TermStep, h_term
from erlcli.algorithms.off_policy import ExploringPolicy, OffPolicyAlgorithm
from erlcli.core.algorithm import Context, Supports
from erlcli.core.encoders import encoded, wants_encoder
from erlcli.core.ensemble import QEnsemble
from erlcli.core.exploration import uniform
from erlcli.core.gaussian import StateTanhGaussian
from erlcli.core.h_term import log_density
from erlcli.core.networks import mlp
from erlcli.core.optim import Optimizer
from erlcli.core.transitions import Transitions

ACTOR_METRICS = ("loss/actor", "policy/entropy", "policy/alpha")


class SquashedPolicy(ExploringPolicy):
    """A normal distribution that depends on the observation, squashed by tanh.

    Args:
        config: the `[algorithm]` section: warm-up.
        context: environment, networks, normalisation.
    """

    def __init__(self, config: SoftConfig, context: Context) -> None:
        spec, normalize = context.spec, context.normalize
        super().__init__(
            spec.obs,
            normalize.obs_clip if normalize.obs else None,
            config.warmup_steps > 0,
            wants_encoder(spec.obs, context.network),
        )
        self.distribution = StateTanhGaussian(action_dim(context))
        self.network = encoded(spec.obs, context.network, lambda inputs: self.build_network(config, context, inputs))
        self.action_shape = self.distribution.action_shape
        self.action_dtype = self.distribution.action_dtype

    def build_network(self, config: SoftConfig, context: Context, inputs: int) -> nn.Module:
        """Features (B, inputs) to the distribution's parameters (B, 2 A)."""
        network = context.network
        return mlp(
            inputs,
            network.hidden,
            self.distribution.num_params,
            **network.layers,
            output_gain=0.01,
        )

    def params(self, features: Tensor, *, training: bool = False) -> Tensor:
        """Distribution parameters; `training` where the actor learns from this batch."""
        params: Tensor = self.network(features)
        return params

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals (*shape, A)."""
        return self.distribution.noise(shape, generator, device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """A sample; in the warm-up uniform in [-1, 1]."""
        action = self.distribution.action(self.params(self.features(obs)), noise)
        return torch.where(self.warmup, uniform(noise), action), {}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """Tanh of the mean."""
        return self.distribution.mode(self.params(self.features(obs)))


class Temperature(nn.Module):
    """The weight of the entropy, alpha = exp(log_alpha).

    Args:
        initial: alpha at the start.
        learn: whether it has a gradient.
    """

    def __init__(self, initial: float, learn: bool) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)), requires_grad=learn)

    def alpha(self) -> Tensor:
        """A scalar without gradient."""
        return self.log_alpha.detach().exp()


class SoftActorCritic(OffPolicyAlgorithm):
    """What all of this family do; what is left to say is how critics learn and what the actor climbs.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    supports: ClassVar[Supports] = Supports(continuous=True)
    config: SoftConfig
    policy: SquashedPolicy

    def __init__(self, config: SoftConfig, context: Context) -> None:
        super().__init__(config, context)
        self.h_term = h_term(config.h_term, context, self.policy)
        size = action_dim(context)
        self.critic = self.build_critic(context).to(self.device)
        self.temperature = Temperature(config.alpha, config.learn_alpha).to(self.device)
        self.target_entropy = float(-size) if config.target_entropy is None else config.target_entropy
        self.networks = {"critic": self.critic}
        actor: dict[str, nn.Module] = {"policy": self.policy.network}
        if config.learn_alpha:  # else the recipe says what it is, and no checkpoint
            actor["temperature"] = self.networks["temperature"] = self.temperature
        self.optimizers = {
            "critic": self.optimizer({"critic": self.critic}, context),
            "actor": self.optimizer(actor, context),
        }
        scalar = torch.zeros((), device=self.device)
        self._actor_metrics = dict(zip(ACTOR_METRICS, (scalar, scalar, self.temperature.alpha()), strict=True))
        inside = self.draws_inside()
        self._critic_step = context.compiled("critics' step", type(self).critic_step, refusal=inside)
        self._actor_step = TermStep(context, "actor's step", type(self).actor_step, self.h_term, refusal=inside)

    @classmethod
    def build_policy(cls, config: SoftConfig, context: Context) -> SquashedPolicy:
        """The actor."""
        return SquashedPolicy(config, context)

    def optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """An optimiser with the settings of the recipe."""
        config = self.config
        return Optimizer(
            modules, eps=config.adam_eps, max_grad_norm=config.max_grad_norm, collective=context.collective
        )

    @abstractmethod
    def build_critic(self, context: Context) -> QEnsemble:
        """E critics, behind an encoder of their own where observations want one."""

    @abstractmethod
    def critic_loss(self, batch: Transitions, features: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the critics minimise.

        Args:
            batch: see `OffPolicyAlgorithm.learn`.
            features: (B, F) of its observations.
            draws: what `draws` has drawn.

        Returns:
            The scalar loss; |TD error| (B,), the mean over the critics, and the mean value, both without gradient.
        """

    @abstractmethod
    def actor_value(self, features: Tensor, action: Tensor) -> Tensor:
        """What the actor climbs, (B,); its gradient reaches `action` alone."""

    def follow(self) -> None:
        """Move the target networks, where there are any."""

    def actor_due(self) -> bool:
        """Whether the actor learns at this step of the critics."""
        return self.updates % self.config.policy_delay == 0

    def draws(self, rows: int) -> tuple[Tensor, ...]:
        """What a step of the critics takes beside `rows` transitions: noise for the next actions first."""
        return (self.policy.noise((rows,), self.generator, self.device),)

    def draws_inside(self) -> str | None:
        """What of the recipe draws within a step; None where nothing does."""
        return None

    def learn(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the critics, and of the actor and the targets where due; see `OffPolicyAlgorithm.learn`."""
        rows = len(batch.reward)
        loss, error, value = self._critic_step(self, batch, *self.draws(rows))
        self.optimizers["critic"].count(1)
        if self.replay.priorities is not None:
            self.replay.update_priorities(batch.index, error)
        if self.actor_due():
            noise = self.policy.noise((rows,), self.generator, self.device)
            self._actor_metrics = dict(zip(ACTOR_METRICS, self._actor_step(self, batch.obs, noise), strict=True))
            self.optimizers["actor"].count(1)
        if self.updates % self.config.target_interval == 0:
            self.follow()
        return {"loss/critic": loss, "value/q": value, **self._actor_metrics}

    def critic_step(self, batch: Transitions, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step of the critics; loss, |TD error| (B,) and the mean value, without gradient."""
        loss, error, value = self.critic_loss(batch, self.policy.features(batch.obs), *draws)
        self.optimizers["critic"].apply(loss, self.learning_rate)
        return loss.detach(), error, value

    def actor_step(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step of actor and temperature with noise for its actions; `ACTOR_METRICS`."""
        policy, alpha = self.policy, self.temperature.alpha()
        features = policy.features(obs)
        action, log_prob = policy.distribution.sample(policy.params(features, training=True), noise)
        mean_log_prob = log_prob.mean()
        loss = alpha * mean_log_prob - self.actor_value(features, action).mean()
        total = loss
        if self.config.learn_alpha:
            total = loss - self.temperature.log_alpha * (mean_log_prob.detach() + self.target_entropy)
        if self.h_term is not None and self.h_term.is_due:
            total = total + self.h_term.loss(self._log_density)
        self.optimizers["actor"].apply(total, self.learning_rate)
        return loss.detach(), -mean_log_prob.detach(), alpha

    def _log_density(self, obs: Tensor, action: Tensor) -> Tensor:
        return log_density(self.policy.distribution, self.policy.params(self.policy.features(obs)), action)

    def next_action(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, F) of the next observations, actions (B, A) of the actor there, and alpha log pi (B,)."""
        policy = self.policy
        next_features = policy.features(batch.next_obs)
        action, log_prob = policy.distribution.sample(policy.params(next_features), noise)
        return next_features, action, self.temperature.alpha() * log_prob

    def state_dict(self) -> dict[str, Any]:
        """With the metrics of the actor's last step, which are reported until its next one."""
        return {**super().state_dict(), "actor_metrics": torch.stack(list(self._actor_metrics.values()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        super().load_state_dict(state)
        values = state["actor_metrics"].to(self.device).unbind()
        self._actor_metrics = dict(zip(self._actor_metrics, values, strict=True))
