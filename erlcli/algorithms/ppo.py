"""Proximal policy optimisation.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347). For each rollout, over several epochs of
minibatches, minimise

    L = -E[min(r A, clip(r, 1 - e, 1 + e) A)] + c_v 0.5 E[(V(s) - R)^2] - c_e E[H(pi(.|s))]
    r = exp(log pi(a|s) - log pi_old(a|s)),  R = A + V_old(s)

with the advantages, networks and memories of `on_policy`.

Beyond the paper: actor and critic are separate networks, or share a trunk; advantages are normalised over the rollout,
not the minibatch; rewards may be divided by the running std of the discounted return; the value change may be clipped;
the epochs may end early on KL, which is estimated as E[(r - 1) - log r] (non-negative and of low variance); the step
size may follow that KL, halved above twice the wanted one and doubled below half of it. rsl_rl, where this comes from,
changes it by a factor of 1.5 after each minibatch; here it is once a rollout, since looking at a KL makes a GPU wait.

Dimension letters: T time steps, N environments, B rows of a minibatch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.ppo import PPOConfig
from erlcli.algorithms.h_term import h_term
from erlcli.algorithms.on_policy import Batch, OnPolicyAlgorithm, explained_variance
from erlcli.core.algorithm import Context
from erlcli.core.h_term import log_density
from erlcli.core.optim import Optimizer
from erlcli.core.types import Rollout

METRICS = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clip_fraction")
KL = METRICS.index("policy/kl")


class PPO(OnPolicyAlgorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = PPOConfig
    config: PPOConfig

    def __init__(self, config: PPOConfig, context: Context) -> None:
        super().__init__(config, context)
        self.h_term = h_term(config.h_term, context, self.policy)
        self._adapted: AdaptedRate | None = None
        if config.adaptive_kl is not None:
            self._adapted = AdaptedRate(config)

    def build_optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """Adam."""
        config = self.config
        return Optimizer(
            modules, eps=config.adam_eps, max_grad_norm=config.max_grad_norm, collective=context.collective
        )

    def update(self, rollout: Rollout, progress: float) -> dict[str, float | Tensor]:
        """Epochs of minibatches over one rollout; see `Algorithm.update`."""
        config = self.config
        adapted = self._adapted
        learning_rate = config.learning_rate(progress) if adapted is None else adapted.now(config)
        clip_range = config.clip_range(progress)
        entropy_coef = config.entropy_coef(progress)
        batch, recurrence = self.prepare(rollout)
        if self.h_term is not None:
            self.h_term.add(rollout)
        count = self.collective.minibatches(len(batch.value), config.batch_size)
        if not count:  # every env was only reset; a step on nothing but momentum would still move the weights
            return {"policy/epochs": 0}
        shuffled = len(batch.value) if recurrence is None else len(recurrence.sequences.begin)
        sums = torch.zeros(len(METRICS), device=self.device)
        epochs = minibatches = 0
        while epochs < config.epochs:
            epochs += 1
            order = torch.randperm(shuffled, generator=self.generator, device=self.device)
            sums.zero_()
            minibatches = 0
            for minibatch in self.minibatches(batch, count, order, recurrence):
                loss, parts = self.loss(minibatch, clip_range, entropy_coef)
                if self.h_term is not None and self.h_term.due():
                    loss = loss + self.h_term.loss(self._log_density)
                self.optimizer.step(loss, learning_rate)
                sums += parts
                minibatches += 1
            self.collective.mean_(sums)  # learners have to agree when to end, and on the step size
            if config.target_kl is not None and sums[KL] / minibatches > 1.5 * config.target_kl:
                break
        self.optimizer.check_finite()
        self.update_statistics(rollout)
        if adapted is not None:
            adapted.adapt(config, float(sums[KL]) / minibatches)
        metrics: dict[str, float | Tensor] = dict(zip(METRICS, (sums / minibatches).unbind(), strict=True))
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
        params, value = self.forward(batch)
        log_prob = distribution.log_prob(params, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()

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

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`."""
        super().restart(seed)
        if self.h_term is not None:
            self.h_term.restart(seed)

    def state_dict(self) -> dict[str, Any]:
        """See `OnPolicyAlgorithm.state_dict`; with the step size where it is adapted, and the H-term's trajectories."""
        state = super().state_dict()
        if self._adapted is not None:
            state["rate"] = self._adapted.state_dict()
        if self.h_term is not None:
            state["h_term"] = self.h_term.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`. What was switched on after the checkpoint starts with nothing."""
        super().load_state_dict(state)
        if self._adapted is not None and "rate" in state:
            self._adapted.load_state_dict(state["rate"])
        if self.h_term is not None and "h_term" in state:
            self.h_term.load_state_dict(state["h_term"])


class AdaptedRate:
    """A step size that follows the KL of rollouts.

    Args:
        config: with `adaptive_kl`.
    """

    def __init__(self, config: PPOConfig) -> None:
        self.rate = self.began = config.learning_rate.start

    def now(self, config: PPOConfig) -> float:
        """The step size; begins anew where somebody has put another `learning_rate` into the recipe."""
        if config.learning_rate.start != self.began:
            self.rate = self.began = config.learning_rate.start
        return self.rate

    def adapt(self, config: PPOConfig, kl: float) -> None:
        """A rollout has moved the policy by `kl`."""
        if config.adaptive_kl is None:
            return
        if kl > 2.0 * config.adaptive_kl:
            self.rate = max(self.rate / 2.0, config.min_learning_rate)
        elif kl < 0.5 * config.adaptive_kl:
            self.rate = min(self.rate * 2.0, config.max_learning_rate)

    def state_dict(self) -> dict[str, float]:
        """Where it is."""
        return {"rate": self.rate, "began": self.began}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The inverse of `state_dict`."""
        self.rate, self.began = float(state["rate"]), float(state["began"])
