"""Proximal policy optimisation.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347). For each rollout, over several epochs of
minibatches, minimise

    L = -E[min(r A, clip(r, 1 - e, 1 + e) A)] + c_v 0.5 E[(V(s) - R)^2] - c_e E[H(pi(.|s))]
    r = exp(log pi(a|s) - log pi_old(a|s)),  R = A + V_old(s)

with the advantages, networks and memories of `on_policy`. The gradient of the first term is taken as

    grad -min(r A, clip(r) A) = -w grad log pi(a|s),  w = r A unless clip(r) A is smaller, else 0

which is the same and leaves autograd a product to go back through: on a CPU a minibatch of small networks is mostly
the overhead of its operations.

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
from erlcli.algorithms.h_term import TermStep, h_term
from erlcli.algorithms.on_policy import MOST_STEPS, Learnt, OnPolicyAlgorithm, explained_variance
from erlcli.core.algorithm import Context
from erlcli.core.batches import Batch, minibatches
from erlcli.core.collective import ALONE
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
        self.ratio_low = torch.zeros((), device=self.device)  # 1 - clip_range
        self.ratio_high = torch.zeros((), device=self.device)
        self.h_term = h_term(config.h_term, context, self.policy)
        self._step = TermStep(context, "gradient step", type(self).step, self.h_term, rows_vary=True)
        self._adapted: AdaptedRate | None = None
        if config.adaptive_kl is not None:
            self._adapted = AdaptedRate(config, self.learning_rate)

    def build_optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """Adam."""
        config = self.config
        return Optimizer(
            modules, eps=config.adam_eps, max_grad_norm=config.max_grad_norm, collective=context.collective
        )

    @classmethod
    def not_captured(cls, config: PPOConfig, context: Context) -> str | None:  # type: ignore[override]
        """See `OnPolicyAlgorithm.not_captured`."""
        if config.target_kl is not None:
            return "algorithm.target_kl: it looks at the KL after each epoch"
        if config.h_term.enabled:
            return "algorithm.h_term: what it remembers has a changing size"
        steps = config.epochs * ALONE.minibatches(config.rollout_length * context.spec.num_envs, config.batch_size)
        if steps > MOST_STEPS:
            return f"{steps:,} gradient steps a rollout, at most {MOST_STEPS:,}: raise algorithm.batch_size"
        return super().not_captured(config, context)

    def schedule(self, progress: float) -> dict[str, float | Tensor]:
        """See `OnPolicyAlgorithm.schedule`."""
        config, clip_range = self.config, self.config.clip_range(progress)
        self.ratio_low.fill_(1.0 - clip_range)
        self.ratio_high.fill_(1.0 + clip_range)
        scheduled = {"schedule/clip_range": clip_range, **super().schedule(progress)}
        if self._adapted is None:
            return self.follow(config.learning_rate, progress) | scheduled
        self._adapted.begin(config)
        return scheduled  # `learn` adds the step size

    def learn(self, rollout: Rollout) -> Learnt:
        """Epochs of minibatches over one rollout."""
        config, adapted = self.config, self._adapted
        batch, recurrence = self.prepare(rollout)
        if self.h_term is not None:
            self.h_term.add(rollout)
        count = self.collective.minibatches(len(batch.value), config.batch_size)
        if not count:  # every env was only reset; a step on nothing but momentum would still move the weights
            return Learnt({"policy/epochs": 0}, 0)
        shuffled = len(batch.value) if recurrence is None else len(recurrence.sequences.begin)
        order: Tensor | None = None  # does not matter to the rows of a single minibatch
        sums = torch.zeros(len(METRICS), device=self.device)
        epochs = steps = updates = 0
        while epochs < config.epochs:
            epochs += 1
            if count > 1 or recurrence is not None:
                order = torch.randperm(shuffled, generator=self.generator, device=self.device)
            sums.zero_()
            steps = 0
            for minibatch in minibatches(batch, count, order, recurrence):
                (parts,) = self._step(self, minibatch)
                sums += parts
                steps += 1
            self.collective.mean_(sums)  # learners have to agree when to end, and on the step size
            updates += steps
            if config.target_kl is not None and sums[KL] / steps > 1.5 * config.target_kl:
                break
        metrics: dict[str, float | Tensor] = dict(zip(METRICS, (sums / steps).unbind(), strict=True))
        metrics |= {
            "policy/epochs": epochs,
            "value/explained_variance": explained_variance(batch.value, batch.returns),
        }
        if adapted is not None:
            metrics["schedule/learning_rate"] = adapted.adapt(config, sums[KL].double() / steps)
        if self.h_term is not None:
            metrics |= self.h_term.metrics()
        return Learnt(metrics, updates)

    def step(self, batch: Batch) -> tuple[Tensor]:
        """One gradient step; what `loss` tells beside the loss."""
        loss, parts = self.loss(batch)
        if self.h_term is not None and self.h_term.is_due:
            loss = loss + self.h_term.loss(self._log_density)
        self.optimizer.apply(loss, self.learning_rate)
        return (parts,)

    def _log_density(self, obs: Tensor, action: Tensor) -> Tensor:
        return log_density(self.policy.distribution, self.policy.params(self.policy.features(obs)), action)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of one minibatch, with what `schedule` has set.

        Returns:
            A scalar that has the gradient of the loss, and (5,) without gradient: policy loss, value loss, entropy, KL,
            share of clipped ratios.
        """
        distribution = self.policy.distribution
        params, value = self.forward(batch)
        log_prob = distribution.log_prob(params, batch.action)
        with torch.no_grad():
            log_ratio = log_prob - batch.log_prob
            ratio = log_ratio.exp()
            clipped = ratio.clamp(self.ratio_low, self.ratio_high)
            gain, bounded = ratio * batch.advantage, clipped * batch.advantage
            weight = torch.where(gain > bounded, 0.0, gain)  # NaN stays, and is told

        error = (value - batch.returns).square()
        if self.config.clip_value is not None:
            bound = self.config.clip_value
            held = batch.value + (value - batch.value).clamp(-bound, bound)
            error = torch.maximum(error, (held - batch.returns).square())

        rows = (0.5 * self.config.value_coef) * error - weight * log_prob
        # A graph of a GPU is recorded once, for whatever the coefficient may be set to.
        entropy_counts = self.device.type != "cpu" or not self.config.entropy_coef.is_zero
        with torch.set_grad_enabled(entropy_counts and torch.is_grad_enabled()):
            entropy = distribution.entropy(params, log_prob)
        if entropy_counts:
            rows = rows - self.entropy_coef * entropy
        with torch.no_grad():
            was_clipped = (ratio != clipped).to(torch.float32)
            each = [
                -torch.minimum(gain, bounded),
                0.5 * error,
                entropy.expand_as(error),
                ratio - 1.0 - log_ratio,
                was_clipped,
            ]
            parts = torch.stack(each).mean(1)
        return rows.mean(), parts

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
    """A step size that follows the KL of rollouts, without a look at either.

    Args:
        config: with `adaptive_kl`.
        rate: scalar on the device, to be set.
    """

    def __init__(self, config: PPOConfig, rate: Tensor) -> None:
        self.rate = rate
        self.began = config.learning_rate.start
        rate.fill_(self.began)

    def begin(self, config: PPOConfig) -> None:
        """Begins anew where somebody has put another `learning_rate` into the recipe."""
        if config.learning_rate.start != self.began:
            self.began = config.learning_rate.start
            self.rate.fill_(self.began)

    def adapt(self, config: PPOConfig, kl: Tensor) -> Tensor:
        """A rollout has moved the policy by `kl`, a scalar; returns the step size that did it."""
        wanted, used = config.adaptive_kl, self.rate.clone()
        if wanted is not None:
            slower = (used / 2.0).clamp(min=config.min_learning_rate)
            faster = (used * 2.0).clamp(max=config.max_learning_rate)
            self.rate.copy_(torch.where(kl > 2.0 * wanted, slower, torch.where(kl < 0.5 * wanted, faster, used)))
        return used

    def state_dict(self) -> dict[str, float]:
        """Where it is."""
        return {"rate": float(self.rate), "began": self.began}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The inverse of `state_dict`."""
        self.began = float(state["began"])
        self.rate.fill_(float(state["rate"]))
