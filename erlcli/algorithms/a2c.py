"""Advantage actor-critic.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), with all environments stepped
together instead of asynchronously. For each rollout one gradient step on

    L = -E[log pi(a|s) A] + c_v 0.5 E[(V(s) - R)^2] - c_e E[H(pi(.|s))],  R = A + V(s)

where gae_lambda = 1 makes R the paper's sum of discounted rewards up to the end of the rollout, bootstrapped there.
Advantages, networks and memories are those of `on_policy`, as in PPO; what differs is this loss, one step a rollout
instead of epochs of minibatches, and the optimiser.

The paper's RMSProp is Adam without momentum, beta1 = 0, and is computed so, by the one fused kernel that all algorithms
use. The difference to RMSProp as written is that the mean of squared gradients is corrected for its start from zero:
without that the first steps would be up to 1 / sqrt(1 - decay) = 10 times too long, from which A2C often does not
recover.

Beyond the paper: actor and critic are separate networks; gradients are scaled down to a norm; rewards and observations
may be normalised.

Dimension letters: B rows of a rollout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.a2c import A2CConfig
from erlcli.algorithms.on_policy import Learnt, OnPolicyAlgorithm, explained_variance
from erlcli.core.algorithm import Context
from erlcli.core.batches import Batch, minibatches
from erlcli.core.optim import Optimizer
from erlcli.core.types import Rollout


class A2C(OnPolicyAlgorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = A2CConfig
    config: A2CConfig

    def __init__(self, config: A2CConfig, context: Context) -> None:
        super().__init__(config, context)
        self._step = context.compiled("gradient step", type(self).step, rows_vary=True)

    def build_optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """RMSProp; see the module's docstring."""
        config = self.config
        return Optimizer(
            modules,
            eps=config.rms_eps,
            betas=(0.0, config.rms_decay),
            max_grad_norm=config.max_grad_norm,
            collective=context.collective,
        )

    def schedule(self, progress: float) -> dict[str, float | Tensor]:
        """See `OnPolicyAlgorithm.schedule`."""
        return self.follow(self.config.learning_rate, progress) | super().schedule(progress)

    def learn(self, rollout: Rollout) -> Learnt:
        """One step on one rollout."""
        batch, recurrence = self.prepare(rollout)
        if self.collective.any(not len(batch.value)):  # every env was only reset
            return Learnt({}, 0)
        if recurrence is not None:
            order = torch.arange(len(recurrence.sequences.begin), device=self.device)
            (batch,) = minibatches(batch, 1, order, recurrence)
        (parts,) = self._step(self, batch)
        policy_loss, value_loss, entropy = parts.unbind()
        metrics: dict[str, float | Tensor] = {
            "loss/policy": policy_loss,
            "loss/value": value_loss,
            "policy/entropy": entropy,
            "value/explained_variance": explained_variance(batch.value, batch.returns),
        }
        return Learnt(metrics, 1)

    def step(self, batch: Batch) -> tuple[Tensor]:
        """One gradient step; what `loss` tells beside the loss."""
        loss, parts = self.loss(batch)
        self.optimizer.apply(loss, self.learning_rate)
        return (parts,)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of a rollout, with what `schedule` has set.

        Returns:
            The scalar to minimise, and (3,) without gradient: policy loss, value loss, entropy.
        """
        distribution = self.policy.distribution
        params, value = self.forward(batch)
        log_prob = distribution.log_prob(params, batch.action)
        policy_loss = -(log_prob * batch.advantage).mean()
        value_loss = 0.5 * (value - batch.returns).square().mean()
        entropy = distribution.entropy(params, log_prob).mean()
        loss = policy_loss + self.config.value_coef * value_loss - self.entropy_coef * entropy
        return loss, torch.stack([policy_loss, value_loss, entropy]).detach()
