"""Proximal policy optimisation.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), with the advantages of "High-Dimensional
Continuous Control Using Generalized Advantage Estimation" (arXiv 1506.02438). For each rollout, over several epochs of
minibatches, minimise

    L = -E[min(r A, clip(r, 1 - e, 1 + e) A)] + c_v 0.5 E[(V(s) - R)^2] - c_e E[H(pi(.|s))]
    r = exp(log pi(a|s) - log pi_old(a|s)),  R = A + V_old(s)

Beyond the papers: actor and critic are separate networks; advantages are normalised over the rollout, not the
minibatch; rewards may be divided by the running std of the discounted return; the value change may be clipped; the
epochs may end early on KL, which is estimated as E[(r - 1) - log r] (non-negative and of low variance).

Dimension letters: T time steps, N environments, B rows of a minibatch, A action dimensions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from erlcli.algorithms.config.ppo import PPOConfig
from erlcli.algorithms.h_term import h_term
from erlcli.core import distributions
from erlcli.core.algorithm import Algorithm, Context, Supports
from erlcli.core.h_term import log_density
from erlcli.core.networks import Critic, mlp
from erlcli.core.optim import Optimizer
from erlcli.core.policy import ActorPolicy
from erlcli.core.returns import gae, next_values
from erlcli.core.seeding import generator
from erlcli.core.types import Rollout


@dataclass(frozen=True)
class Batch:
    """Rows to learn from, all of the same length."""

    features: Tensor  # (B, F) normalised, flat observations
    action: Tensor  # (B, ...)
    log_prob: Tensor  # (B,) under the policy that acted
    value: Tensor  # (B,) estimate at the time of the rollout
    advantage: Tensor  # (B,)
    returns: Tensor  # (B,) targets of the critic

    def rows(self, index: Tensor | slice) -> Batch:
        """The chosen rows: a copy for a tensor of indices, views for a slice."""
        return Batch(*(getattr(self, f.name)[index] for f in fields(self)))


class PPO(Algorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = PPOConfig
    supports: ClassVar[Supports] = Supports(discrete=True, multi_discrete=True, continuous=True, unbounded=True)

    def __init__(self, config: PPOConfig, context: Context) -> None:
        self.config: PPOConfig = config
        self.device = context.device
        self.rollout_length = config.rollout_length
        network = context.network
        self.policy: ActorPolicy = self.build_policy(config, context).to(self.device)
        self.critic = Critic(
            mlp(
                context.spec.obs.size,
                network.hidden,
                1,
                activation=network.activation,
                layer_norm=network.layer_norm,
            )
        ).to(self.device)
        self.optimizer = Optimizer(
            {"policy": self.policy, "critic": self.critic},
            eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            collective=context.collective,
        )
        self.reward_normalizer = context.reward_normalizer(config.gamma)
        self.generator = generator(context.seed, "learner", device=self.device)
        self.h_term = h_term(config.h_term, context, self.policy)

    @classmethod
    def build_policy(cls, config: PPOConfig, context: Context) -> ActorPolicy:
        """Actor network with the distribution that fits the action space."""
        return ActorPolicy(
            context.spec.obs,
            distributions.for_space(context.spec.action, config.log_std, config.squash),
            context.network.hidden,
            context.network.activation,
            context.network.layer_norm,
            context.normalize.obs_clip if context.normalize.obs else None,
        )

    @property
    def updates(self) -> int:
        """Gradient steps taken so far."""
        return self.optimizer.updates

    def update(self, rollout: Rollout, progress: float) -> dict[str, float | Tensor]:
        """Epochs of minibatches over one rollout; see `Algorithm.update`."""
        config = self.config
        learning_rate = config.learning_rate(progress)
        clip_range = config.clip_range(progress)
        entropy_coef = config.entropy_coef(progress)
        batch = self._prepare(rollout)
        if self.h_term is not None:
            self.h_term.add(rollout)
        rows = len(batch.value)
        if not rows:  # every env was only reset; a step on nothing but momentum would still move the weights
            return {"policy/epochs": 0}
        # Every row is used once an epoch, in minibatches that differ by at most one row.
        minibatches = max(1, round(rows / config.batch_size))
        bounds = [rows * i // minibatches for i in range(minibatches + 1)]
        sums = torch.zeros(5, device=self.device)
        epochs = 0
        while epochs < config.epochs:
            epochs += 1
            shuffled = batch.rows(torch.randperm(rows, generator=self.generator, device=self.device))
            sums.zero_()
            for start, stop in itertools.pairwise(bounds):
                loss, parts = self.loss(shuffled.rows(slice(start, stop)), clip_range, entropy_coef)
                if self.h_term is not None and self.h_term.due():
                    loss = loss + self.h_term.loss(self._log_density)
                self.optimizer.step(loss, learning_rate)
                sums += parts
            if config.target_kl is not None and sums[3] / minibatches > 1.5 * config.target_kl:
                break
        self.optimizer.check_finite()
        self._update_statistics(rollout)
        means = (sums / minibatches).unbind()
        names = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clip_fraction")
        metrics: dict[str, float | Tensor] = dict(zip(names, means, strict=True))
        metrics |= {
            "policy/epochs": epochs,
            "loss/grad_norm": self.optimizer.mean_grad_norm(),
            "value/explained_variance": explained_variance(batch.value, batch.returns),
            "schedule/learning_rate": learning_rate,
            "schedule/clip_range": clip_range,
            "schedule/entropy_coef": entropy_coef,
        }
        if self.h_term is not None:
            metrics |= self.h_term.metrics()
        return metrics

    def _log_density(self, obs: Tensor, action: Tensor) -> Tensor:
        return log_density(self.policy.distribution, self.policy.params(self.policy.features(obs)), action)

    def loss(self, batch: Batch, clip_range: float, entropy_coef: float) -> tuple[Tensor, Tensor]:
        """The loss of one minibatch.

        Returns:
            The scalar to minimise, and (5,) without gradient: policy loss, value loss, entropy, KL, share of clipped
            ratios.
        """
        distribution = self.policy.distribution
        params = self.policy.params(batch.features)
        log_prob = distribution.log_prob(params, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()

        value = self.critic(batch.features)
        error = (value - batch.returns).square()
        if self.config.clip_value is not None:
            bound = self.config.clip_value
            held = batch.value + (value - batch.value).clamp(-bound, bound)
            error = torch.maximum(error, (held - batch.returns).square())
        value_loss = 0.5 * error.mean()

        entropy = distribution.entropy(params, log_prob).mean()
        loss = policy_loss + self.config.value_coef * value_loss - entropy_coef * entropy
        with torch.no_grad():
            kl = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = (ratio != clipped).to(torch.float32).mean()
            parts = torch.stack([policy_loss, value_loss, entropy, kl, clip_fraction])
        return loss, parts

    @torch.no_grad()
    def _prepare(self, rollout: Rollout) -> Batch:
        """Values, advantages and targets of the valid rows."""
        config = self.config
        features = self.policy.features(rollout.obs)  # (T + 1, N, F)
        value = self.critic(features)  # (T + 1, N)
        final_value = self.critic(self.policy.features(rollout.final_obs.obs))  # (K,)
        reward = rollout.reward
        if self.reward_normalizer is not None:
            # The scale of rewards does not touch acting, so it may take in this rollout before it is used.
            ended = rollout.terminated | rollout.truncated
            self.reward_normalizer.update(reward, ended, rollout.valid)
            reward = self.reward_normalizer(reward)
        advantage = gae(
            reward,
            value[:-1],
            next_values(value, rollout.final_obs, final_value),
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            config.gamma,
            config.gae_lambda,
        )
        returns = advantage + value[:-1]
        full = Batch(
            features[:-1].flatten(0, 1),
            rollout.action.flatten(0, 1),
            rollout.extras["log_prob"].flatten(),
            value[:-1].flatten(),
            advantage.flatten(),
            returns.flatten(),
        )
        batch = full if bool(rollout.valid.all()) else full.rows(rollout.valid.flatten().nonzero().squeeze(-1))
        if config.normalize_advantage:
            std, mean = torch.std_mean(batch.advantage, correction=0)
            batch.advantage.sub_(mean).div_(std + 1e-8)
        return batch

    def _update_statistics(self, rollout: Rollout) -> None:
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(rollout.obs[:-1][rollout.valid])

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`."""
        self.generator.manual_seed(seed)
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()
        if self.h_term is not None:
            self.h_term.restart(seed)

    def state_dict(self) -> dict[str, Any]:
        """Critic, optimiser and reward statistics."""
        state: dict[str, Any] = {
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self.reward_normalizer is not None:
            state["reward_normalizer"] = self.reward_normalizer.state_dict()
        if self.h_term is not None:
            state["h_term"] = self.h_term.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        if self.h_term is not None and "h_term" in state:  # switched on at a resume, it starts with nothing
            self.h_term.load_state_dict(state["h_term"])


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - value) / Var(returns): 1 is a perfect critic, 0 is no better than a constant."""
    return 1.0 - (returns - value).var(correction=0) / (returns.var(correction=0) + 1e-8)
