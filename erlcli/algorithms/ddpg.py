"""Deep deterministic policy gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning" (arXiv 1509.02971). For each batch, minimise

    L = 1/2 E[(Q(s, a) - y)^2],  y = r + gamma Q'(s', mu'(s'))

over the critic, then -E[Q(s, mu(s))] over the actor; the targets Q' and mu' follow at rate tau.

Beyond the paper: returns may be of n steps; time limits are bootstrapped; Gaussian noise beside the paper's
Ornstein-Uhlenbeck process, which here goes on over the ends of episodes; the noise is scaled to actions in [-1, 1],
and what leaves that range is clipped; no weight decay, and one learning rate for both networks.

Dimension letters: N environments, E critics, B rows of a batch, F features, A action dimensions.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from erlcli.algorithms.config.ddpg import DDPGConfig, DeterministicConfig
from erlcli.algorithms.h_term import TermStep, h_term
from erlcli.algorithms.off_policy import ExploringPolicy, OffPolicyAlgorithm
from erlcli.core.algorithm import Context, Supports
from erlcli.core.encoders import actor_network, make_encoder, wants_encoder
from erlcli.core.ensemble import QEnsemble
from erlcli.core.exploration import GaussianNoise, OrnsteinUhlenbeckNoise, uniform
from erlcli.core.h_term import deterministic_log_density
from erlcli.core.optim import Optimizer
from erlcli.core.target import Target
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box


class DeterministicPolicy(ExploringPolicy):
    """tanh of a network, and noise beside it while exploring.

    Args:
        config: the `[algorithm]` section: warm-up and noise.
        context: environment, networks, normalisation.

    Attributes:
        sigma: buffer, standard deviation of the noise in the policy's units.
    """

    sigma: Tensor

    def __init__(self, config: DeterministicConfig, context: Context) -> None:
        spec, network, normalize = context.spec, context.network, context.normalize
        super().__init__(
            spec.obs,
            normalize.obs_clip if normalize.obs else None,
            config.warmup_steps > 0,
            wants_encoder(spec.obs, network),
        )
        size = action_dim(context)
        self.network = actor_network(spec.obs, network, size)
        self.register_buffer("sigma", torch.tensor(config.noise_std(0.0)))
        self.exploration = (
            GaussianNoise(size) if config.noise == "gaussian" else OrnsteinUhlenbeckNoise(size, config.ou_theta)
        )
        self.capturable = config.noise == "gaussian"  # the other kind remembers
        self.action_shape = (size,)
        self.action_dtype = torch.float32

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals (*shape, A), independent or not in time."""
        return self.exploration(shape, generator, device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The greedy action and noise, within [-1, 1]; in the warm-up uniform within these bounds."""
        noisy = torch.addcmul(self.act_greedy(obs), noise, self.sigma).clamp(-1.0, 1.0)
        return torch.where(self.warmup, uniform(noise), noisy), {}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """mu(s)."""
        action: Tensor = self.network(self.features(obs))
        return action.tanh()


class DDPG(OffPolicyAlgorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.

    Attributes:
        critics: E.
        policy_delay: gradient steps of the critics for each one of the actor.
    """

    Config: ClassVar[type[DeterministicConfig]] = DDPGConfig
    supports: ClassVar[Supports] = Supports(continuous=True)
    config: DeterministicConfig
    policy: DeterministicPolicy
    critics: ClassVar[int] = 1
    policy_delay = 1

    def __init__(self, config: DeterministicConfig, context: Context) -> None:
        super().__init__(config, context)
        self.h_term = h_term(config.h_term, context, self.policy)
        network, obs = context.network, context.spec.obs
        encoder = make_encoder(obs, network)
        self.critic = QEnsemble(
            self.critics,
            (obs.size if encoder is None else encoder.width) + action_dim(context),
            network.hidden,
            1,
            **network.layers,
            encoder=encoder,
        ).to(self.device)
        actor = self.policy.network
        critic_optimizer, actor_optimizer = (
            Optimizer(
                {name: module},
                eps=config.adam_eps,
                max_grad_norm=config.max_grad_norm,
                collective=context.collective,
            )
            for name, module in (("critic", self.critic), ("policy", actor))
        )
        self.target_critic = Target(self.critic, critic_optimizer.flat)
        self.target_actor = Target(actor, actor_optimizer.flat)
        self.optimizers = {"critic": critic_optimizer, "actor": actor_optimizer}
        self.networks = {
            "critic": self.critic,
            "target_critic": self.target_critic.module,
            "target_actor": self.target_actor.module,
        }
        self._actor_loss = torch.zeros((), device=self.device)
        self._critic_step = context.compiled("critics' step", type(self).critic_step)
        self._actor_step = TermStep(context, "actor's step", type(self).actor_step, self.h_term)

    @classmethod
    def build_policy(cls, config: DeterministicConfig, context: Context) -> DeterministicPolicy:
        """The actor with its noise."""
        return DeterministicPolicy(config, context)

    def learn(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the critics, and of actor and targets where they are due; see `OffPolicyAlgorithm.learn`."""
        config = self.config
        loss, error, value = self._critic_step(self, batch, *self.draws(len(batch.reward)))
        self.optimizers["critic"].count(1)
        if self.replay.priorities is not None:
            self.replay.update_priorities(batch.index, error)
        if self.updates % self.policy_delay == 0:
            (self._actor_loss,) = self._actor_step(self, batch.obs)
            self.optimizers["actor"].count(1)
        if self.updates % config.target_interval == 0:
            self.target_critic.update(config.tau)
            self.target_actor.update(config.tau)
        return {"loss/critic": loss, "loss/actor": self._actor_loss, "value/q": value}

    def draws(self, rows: int) -> tuple[Tensor, ...]:
        """What a step of the critics takes beside `rows` transitions: what is random in their targets."""
        return ()

    def critic_step(self, batch: Transitions, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step of the critics; loss, |TD error| (B,) and the mean value, without gradient."""
        target = self.target(batch, *draws)
        value = self.critic.q(self.policy.features(batch.obs), batch.action)  # (E, B)
        error = value - target
        loss = squared_loss(error, batch.weight)
        self.optimizers["critic"].apply(loss, self.learning_rate)
        return loss.detach(), error.detach().abs().mean(0), value.detach().mean()

    @torch.no_grad()
    def target(self, batch: Transitions, *draws: Tensor) -> Tensor:
        """What the critics are drawn to, (B,): the lowest of the target critics bootstraps."""
        next_features = self.policy.features(batch.next_obs)
        value = self.target_critic.module.q(next_features, self.target_action(next_features, *draws))
        return torch.addcmul(batch.reward, batch.discount, value.amin(0))

    def target_action(self, next_features: Tensor, *draws: Tensor) -> Tensor:
        """mu'(s'), (B, A)."""
        action: Tensor = self.target_actor.module(next_features)
        return action.tanh()

    def actor_step(self, obs: Tensor) -> tuple[Tensor]:
        """One gradient step of the actor, uphill on the first critic; its loss."""
        features = self.policy.features(obs)
        action = self.policy.network(features).tanh()
        loss = -self.critic.q(features, action, members=slice(0, 1), frozen=True).mean()
        total = loss
        if self.h_term is not None and self.h_term.is_due:
            total = loss + self.h_term.loss(self._log_density)
        self.optimizers["actor"].apply(total, self.learning_rate)
        return (loss.detach(),)

    def _log_density(self, obs: Tensor, action: Tensor) -> Tensor:
        return deterministic_log_density(self.policy.act_greedy(obs), action, self.policy.sigma)

    def set_acting(self, progress: float) -> dict[str, float | Tensor]:
        """The scale of the noise; see `Algorithm.set_acting`."""
        std = self.config.noise_std(progress)
        self.policy.sigma.fill_(std)
        return {"schedule/noise_std": std}

    def state_dict(self) -> dict[str, Any]:
        """With the loss of the actor's last step, which is reported until its next one."""
        return {**super().state_dict(), "actor_loss": self._actor_loss.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        super().load_state_dict(state)
        self._actor_loss = state["actor_loss"].to(self.device)


def action_dim(context: Context) -> int:
    """A of a continuous action space."""
    action = context.spec.action
    if not isinstance(action, Box):
        raise TypeError(f"action: expected a Box, found {action}")
    return action.size


def squared_loss(error: Tensor, weight: Tensor) -> Tensor:
    """Half the mean of the squared errors (E, B), weighted by (B,) and summed over E critics, which learn apart."""
    return (error.square() * weight).sum() * (0.5 / error.shape[-1])
