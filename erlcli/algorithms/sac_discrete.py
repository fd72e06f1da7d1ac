"""Soft actor-critic for discrete actions.

Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (arXiv 1910.07207). Actor and critics give a number for
every choice, so that expectations over the policy are sums and nothing is sampled:

    V(s') = sum_a pi(a|s') (min_i Q'_i(s', a) - alpha log pi(a|s'))
    L_Q = 1/2 sum_i E[(Q_i(s, a) - (r + gamma V(s')))^2]
    L_pi = E[sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))]
    L_alpha = E[sum_a pi(a|s) (-log alpha (log pi(a|s) + H))],  H = 0.98 log C

Beyond the paper: the share 0.98 of the largest entropy is a setting, since a policy that has to stay that random earns
little where single mistakes are fatal; returns may be of n steps; actor and temperature share an optimiser.

Dimension letters: N environments, B batch, C choices, E critics.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.sac_discrete import DiscreteSACConfig
from erlcli.algorithms.off_policy import ExploringPolicy, OffPolicyAlgorithm
from erlcli.algorithms.soft import Temperature
from erlcli.core.algorithm import Context, Supports
from erlcli.core.categorical import Categorical
from erlcli.core.encoders import actor_network, encoded, wants_encoder
from erlcli.core.ensemble import Ensemble
from erlcli.core.optim import Optimizer
from erlcli.core.target import Target
from erlcli.core.transitions import Transitions
from erlcli.core.types import Discrete

CRITICS = 2

METRICS = ("loss/critic", "loss/actor", "policy/entropy", "policy/alpha", "value/q")


class CategoricalPolicy(ExploringPolicy):
    """A softmax over choices.

    Args:
        config: the `[algorithm]` section: warm-up.
        context: environment, networks, normalisation.
    """

    def __init__(self, config: DiscreteSACConfig, context: Context) -> None:
        spec, network, normalize = context.spec, context.network, context.normalize
        super().__init__(
            spec.obs,
            normalize.obs_clip if normalize.obs else None,
            config.warmup_steps > 0,
            wants_encoder(spec.obs, network),
        )
        self.distribution = Categorical(choices(context))
        self.network = actor_network(spec.obs, network, self.distribution.num_params)
        self.action_shape = self.distribution.action_shape
        self.action_dtype = self.distribution.action_dtype

    def logits(self, features: Tensor) -> Tensor:
        """(..., C)."""
        logits: Tensor = self.network(features)
        return logits

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard Gumbel variates, (*shape, C)."""
        return self.distribution.noise(shape, generator, device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """A sample; in the warm-up all choices are alike."""
        logits = self.logits(self.features(obs)).masked_fill(self.warmup, 0.0)
        return (logits + noise).argmax(-1), {}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """The likeliest choice."""
        return self.distribution.mode(self.logits(self.features(obs)))

    def choice_scores(self, obs: Tensor) -> Tensor:
        """Logits (N, C)."""
        return self.logits(self.features(obs))


class DiscreteSAC(OffPolicyAlgorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = DiscreteSACConfig
    supports: ClassVar[Supports] = Supports(discrete=True)
    config: DiscreteSACConfig
    policy: CategoricalPolicy

    def __init__(self, config: DiscreteSACConfig, context: Context) -> None:
        super().__init__(config, context)
        network, obs, count = context.network, context.spec.obs, choices(context)
        self.critic = encoded(
            obs,
            network,
            lambda inputs: Ensemble(
                CRITICS,
                inputs,
                network.hidden,
                count,
                **network.layers,
            ),
        ).to(self.device)
        self.temperature = Temperature(config.alpha, config.learn_alpha).to(self.device)
        self.target_entropy = config.target_entropy_share * math.log(count)
        critic: dict[str, nn.Module] = {"critic": self.critic}
        actor: dict[str, nn.Module] = {"policy": self.policy.network}
        self.networks = {"critic": self.critic}
        if config.learn_alpha:  # else the recipe says what it is, and no checkpoint
            actor["temperature"] = self.networks["temperature"] = self.temperature
        self.optimizers = {
            name: Optimizer(
                modules, eps=config.adam_eps, max_grad_norm=config.max_grad_norm, collective=context.collective
            )
            for name, modules in {"critic": critic, "actor": actor}.items()
        }
        self.target = Target(self.critic, self.optimizers["critic"].flat)
        self.networks["target"] = self.target.module
        self._step = context.compiled("gradient step", type(self).step)

    @classmethod
    def build_policy(cls, config: DiscreteSACConfig, context: Context) -> CategoricalPolicy:
        """The actor."""
        return CategoricalPolicy(config, context)

    def learn(self, batch: Transitions) -> dict[str, Tensor]:
        """One step, and what follows from it; see `OffPolicyAlgorithm.learn`."""
        error, *metrics = self._step(self, batch)
        for optimizer in self.optimizers.values():
            optimizer.count(1)
        self.replay.update_priorities(batch.index, error)
        if self.updates % self.config.target_interval == 0:
            self.target.update(self.config.tau)
        return dict(zip(METRICS, metrics, strict=True))

    def step(self, batch: Transitions) -> tuple[Tensor, ...]:
        """One gradient step of critics, actor and temperature; |TD error| (B,) and `METRICS`, without gradient."""
        alpha = self.temperature.alpha()
        features = self.policy.features(batch.obs)
        target = batch.reward + batch.discount * self.next_value(self.policy.features(batch.next_obs), alpha)
        action = batch.action.view(1, -1, 1).expand(CRITICS, -1, 1)
        q = self.critic(features).gather(-1, action).squeeze(-1)  # (E, B)
        error = q - target
        loss = (error.square() * batch.weight).mean(1).sum() * 0.5
        self.optimizers["critic"].apply(loss, self.learning_rate)
        actor_loss, entropy = self._improve(features, alpha)
        return error.detach().abs().mean(0), loss.detach(), actor_loss, entropy, alpha, q.detach().mean()

    @torch.no_grad()
    def next_value(self, features: Tensor, alpha: Tensor) -> Tensor:
        """The soft value (B,) of what follows."""
        log_probs = self.policy.logits(features).log_softmax(-1)
        q = self.target.module(features).amin(0)  # (B, C)
        value: Tensor = (log_probs.exp() * (q - alpha * log_probs)).sum(-1)
        return value

    def _improve(self, features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """One step of actor and temperature; the actor's loss and the policy's mean entropy."""
        with torch.no_grad():
            q = self.critic(features).amin(0)  # (B, C)
        log_probs = self.policy.logits(features).log_softmax(-1)
        loss = (log_probs.exp() * (alpha * log_probs - q)).sum(-1).mean()
        entropy = -(log_probs.exp() * log_probs).detach().sum(-1).mean()
        total = loss
        if self.config.learn_alpha:
            total = loss + self.temperature.log_alpha * (entropy - self.target_entropy)
        self.optimizers["actor"].apply(total, self.learning_rate)
        return loss.detach(), entropy


def choices(context: Context) -> int:
    """C of the environment."""
    action = context.spec.action
    if not isinstance(action, Discrete):
        raise TypeError(f"action space: expected Discrete, found {action}")
    return action.n
