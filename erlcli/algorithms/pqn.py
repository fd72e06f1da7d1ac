"""Parallelised Q-network.

Gallici et al., "Simplifying Deep Temporal Difference Learning" (arXiv 2407.04811). Many environments take the place of
the replay, and layer norm that of the target network. For each rollout, over several epochs of minibatches, minimise
1/2 (Q(s_t, a_t) - G_t)^2 with the returns of Peng's Q(lambda):

    G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))

Terminated episodes have no future; truncated ones and the end of a rollout are bootstrapped from max_a Q.

Beyond the paper: Adam instead of RAdam; rewards may be divided by the running std of the discounted return.

Dimension letters: T time steps, N environments, B rows of a minibatch, C choices.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from erlcli.algorithms.config.pqn import PQNConfig
from erlcli.algorithms.dqn import QPolicy, plain_network
from erlcli.core.algorithm import Algorithm, Context, Supports
from erlcli.core.encoders import encoded, wants_encoder
from erlcli.core.optim import Optimizer
from erlcli.core.returns import gae, next_values
from erlcli.core.seeding import generator
from erlcli.core.types import Discrete, Rollout


class PQN(Algorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = PQNConfig
    supports: ClassVar[Supports] = Supports(discrete=True)

    def __init__(self, config: PQNConfig, context: Context) -> None:
        self.config: PQNConfig = config
        self.device = context.device
        self.collective = context.collective
        self.rollout_length = config.rollout_length
        self.policy: QPolicy = self.build_policy(config, context).to(self.device)
        self.optimizer = Optimizer(
            {"critic": self.policy.network},
            eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            collective=context.collective,
        )
        self.reward_normalizer = context.reward_normalizer(config.gamma)
        self.generator = generator(context.seed, "learner", device=self.device)
        self.learning_rate = Optimizer.scalar(self.device)
        self._step = context.compiled("gradient step", type(self).step, rows_vary=True)

    @classmethod
    def build_policy(cls, config: PQNConfig, context: Context) -> QPolicy:
        """The Q network with epsilon."""
        spec, action = context.spec, context.spec.action
        if not isinstance(action, Discrete):
            raise TypeError(f"action space: expected Discrete, found {action}")
        network = replace(context.network, layer_norm=context.network.layer_norm or config.layer_norm)
        return QPolicy(
            spec.obs,
            action,
            encoded(spec.obs, network, lambda inputs: plain_network(inputs, action.n, network)),
            context.normalize.obs_clip if context.normalize.obs else None,
            config.epsilon(0.0),
            warmup=False,
            raw=wants_encoder(spec.obs, network),
        )

    @property
    def updates(self) -> int:
        """Gradient steps taken so far."""
        return self.optimizer.updates

    def settle(self) -> None:
        """See `Algorithm.settle`."""
        self.optimizer.settle()

    def update(self, rollout: Rollout, progress: float, following: float | None = None) -> dict[str, float | Tensor]:
        """Epochs of minibatches over one rollout; see `Algorithm.update`."""
        config = self.config
        learning_rate = config.learning_rate(progress)
        self.learning_rate.fill_(learning_rate)
        # Nothing of the step depends on the statistics that were acted by.
        self.policy.update_normalizer(rollout.obs[:-1], rollout.unsure, self.collective)
        features, action, returns = self._prepare(rollout)
        rows = len(returns)
        metrics = self.set_acting(progress if following is None else following)
        metrics["schedule/learning_rate"] = learning_rate
        minibatches = self.collective.minibatches(rows, config.batch_size)
        if not minibatches:  # every env was only reset; a step on nothing but momentum would still move the weights
            return metrics
        # Every row is used once an epoch, in minibatches that differ by at most one row.
        bounds = [rows * i // minibatches for i in range(minibatches + 1)]
        sums = torch.zeros(2, device=self.device)
        for _ in range(config.epochs):
            order = torch.randperm(rows, generator=self.generator, device=self.device)
            for start, stop in itertools.pairwise(bounds):
                index = order[start:stop]
                (parts,) = self._step(self, features[index], action[index], returns[index])
                sums += parts
        self.optimizer.count(config.epochs * minibatches)
        self.optimizer.check_finite()
        loss_mean, q_mean = (sums / (config.epochs * minibatches)).unbind()
        return metrics | {
            "loss/critic": loss_mean,
            "value/q": q_mean,
            "loss/grad_norm": self.optimizer.mean_grad_norm(),
        }

    def set_acting(self, progress: float) -> dict[str, float | Tensor]:
        """Epsilon; see `Algorithm.set_acting`."""
        epsilon = self.config.epsilon(progress / self.config.exploration_fraction)
        self.policy.epsilon.fill_(epsilon)
        return {"schedule/epsilon": epsilon}

    def step(self, features: Tensor, action: Tensor, returns: Tensor) -> tuple[Tensor]:
        """One gradient step on (B, F), (B,) and (B,); loss and mean value, (2,)."""
        q = self.policy.values(features).gather(-1, action.unsqueeze(-1)).squeeze(-1)  # (B,)
        loss = 0.5 * (q - returns).square().mean()
        self.optimizer.apply(loss, self.learning_rate)
        return (torch.stack([loss.detach(), q.detach().mean()]),)

    @torch.no_grad()
    def _prepare(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Features, actions and returns of the valid rows."""
        config = self.config
        features = self.policy.features(rollout.obs)  # (T + 1, N, F)
        last = rollout.final_obs.obs if rollout.next_obs is None else rollout.next_obs
        value = self.policy.values(features).amax(-1)  # (T + 1, N)
        final_value = self.policy.values(self.policy.features(last)).amax(-1)  # (K,) or (T, N)
        following = final_value if rollout.next_obs is not None else next_values(value, rollout.final_obs, final_value)
        reward = rollout.reward
        if self.reward_normalizer is not None:
            self.reward_normalizer.begin(rollout.obs)
            self.reward_normalizer.update(reward, rollout.terminated | rollout.truncated, rollout.unsure)
            reward = self.reward_normalizer(reward)
        # With V = max Q in the place of a critic, the return of Q(lambda) is GAE's advantage plus V.
        advantage = gae(
            reward * config.reward_scale,
            value[:-1],
            following,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            config.gamma,
            config.q_lambda,
        )
        valid = rollout.valid
        return features[:-1][valid], rollout.action[valid], (advantage + value[:-1])[valid]

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`."""
        self.generator.manual_seed(seed)
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and reward statistics; the network is the policy's."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self.reward_normalizer is not None:
            state["reward_normalizer"] = self.reward_normalizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
