"""What PPO and A2C have in common: an actor and a critic of its own, learnt from advantages over the newest rollout.

Advantages are those of "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (arXiv 1506.02438),
over the rollout and no further; the critic's target is A + V. Rewards may be divided by the running std of the
discounted return.

Several learners do together what one would do with all their environments: advantages are normalised over the rows of
all, `batch_size` counts the rows of all, and so do the statistics. Each draws its minibatches from its own rows. The
mean of the learners' gradients is that over all rows where minibatches have equally many; they differ by resets of
next-step autoreset envs, and then rows of a learner with fewer weigh a little more.

With a recurrent `[network]` actor and critic have a memory each; see `critic_memory`.

Actor and critic are separate networks, or share encoder and hidden layers with an output layer each: by default where
there is an encoder, since a second one would double the work (`network.share_trunk`). Memories are never shared.

Dimension letters: T time steps, N environments, B rows of a minibatch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.on_policy import OnPolicyConfig
from erlcli.algorithms.critic_memory import CriticMemory
from erlcli.core import distributions
from erlcli.core.algorithm import Algorithm, Context, Supports
from erlcli.core.batches import Batch, Recurrence
from erlcli.core.categorical import legal
from erlcli.core.encoders import encoded, make_encoder, trunk_width
from erlcli.core.memory import RecurrentCritic
from erlcli.core.networks import Critic, mlp
from erlcli.core.optim import Optimizer
from erlcli.core.policy import ActorPolicy
from erlcli.core.returns import gae, next_values
from erlcli.core.schedule import Schedule
from erlcli.core.sde import LatentNoisePolicy
from erlcli.core.seeding import generator
from erlcli.core.types import Box, FinalObs, Rollout

MOST_STEPS = 1000  # gradient steps in one graph, some hundred kernels each: beyond, it costs more memory than time
# Machine code estimates rollouts of so few steps, each of which is code of its own, and where there are so few gradient
# steps a rollout that a run which is long enough to compile these has many rollouts.
SHORT, FEW_UPDATES = 32, 2


@dataclass(frozen=True)
class Told:
    """What the environments said of each step, (T, N) each; see `Rollout`."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Learnt:
    """What has come of one rollout.

    Attributes:
        metrics: device scalars, and numbers that are the same for every rollout of equal shape.
        updates: gradient steps.
    """

    metrics: dict[str, float | Tensor]
    updates: int


class OnPolicyAlgorithm(Algorithm):
    """Networks, advantages, minibatches and state; what is left is the loss, and how often it is stepped on.

    All that changes from one rollout to the next is on the device, since `learn` may be captured (`core.graphs`).

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.

    Attributes:
        policy: the actor.
        critic: V(s), or V of all that was seen where the network is recurrent.
        learning_rate: scalar on the device; the step size of the rollout that is learnt from.
        entropy_coef: likewise.
    """

    supports: ClassVar[Supports] = Supports(
        discrete=True, multi_discrete=True, continuous=True, unbounded=True, masks=True
    )
    config: OnPolicyConfig
    policy: ActorPolicy
    critic: Critic | RecurrentCritic
    shares_trunk: ClassVar[bool] = True

    def __init__(self, config: OnPolicyConfig, context: Context) -> None:
        self.config = config
        self.device = context.device
        self.collective = context.collective
        self.rollout_length = config.rollout_length
        self.shared = context.shared_trunk
        self.policy = self.build_policy(config, context).to(self.device)
        self.critic = self.build_critic(context).to(self.device)
        self.optimizer = self.build_optimizer({"policy": self.policy, "critic": self.critic}, context)
        self.reward_normalizer = context.reward_normalizer(config.gamma)
        self.generator = generator(context.seed, "learner", device=self.device)
        self.learning_rate = Optimizer.scalar(self.device)
        self.entropy_coef = torch.zeros((), device=self.device)
        self._estimate: Callable[..., tuple[Tensor, ...]] = type(self).estimate
        num_envs = context.spec.num_envs
        updates = config.gradient_steps(config.rollout_length * num_envs, num_envs)
        if config.rollout_length <= SHORT and updates <= FEW_UPDATES and not self.policy.raw:
            self._estimate = context.compiled("estimates", type(self).estimate)
        self._learn = context.graphs.capture("update", self.learn, [self.generator], self.not_captured(config, context))
        self.critic_memory: CriticMemory | None = None
        if isinstance(self.critic, RecurrentCritic):
            self.critic_memory = CriticMemory(self.policy, self.critic, num_envs, config.sequence_length)

    @classmethod
    def build_policy(cls, config: OnPolicyConfig, context: Context) -> ActorPolicy:
        """Actor network with the distribution that fits the action space."""
        spec, network = context.spec, context.network
        memory = context.memory()
        encoder = make_encoder(spec.obs, network) if memory is None else None
        obs_clip = context.normalize.obs_clip if context.normalize.obs else None
        shape = (network.hidden, network.activation, network.layer_norm, obs_clip, memory)
        if config.std == "sde" and isinstance(spec.action, Box):
            return LatentNoisePolicy(
                spec.obs, spec.action, config.log_std, config.sde_interval, *shape, encoder=encoder, init=network.init
            )
        distribution = distributions.for_space(spec.action, config.log_std, config.squash, config.std == "state")
        return ActorPolicy(spec.obs, distribution, *shape, masked=spec.mask > 0, encoder=encoder, init=network.init)

    @classmethod
    def build_critic(cls, context: Context) -> Critic | RecurrentCritic:
        """A network for values, with a memory or an encoder of its own where the recipe wants one.

        The output layer alone where the rest is the policy's.
        """
        network, memory, obs = context.network, context.memory(), context.spec.obs

        def body(inputs: int, hidden: tuple[int, ...] = network.hidden) -> nn.Module:
            return mlp(inputs, hidden, 1, **network.layers)

        if memory is not None:
            return RecurrentCritic(memory, body(memory.hidden))
        return Critic(body(trunk_width(obs, network), ()) if context.shared_trunk else encoded(obs, network, body))

    @abstractmethod
    def build_optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """What steps on the losses of actor and critic together."""

    @classmethod
    def not_captured(cls, config: OnPolicyConfig, context: Context) -> str | None:
        """Why `learn` can't be captured in a CUDA graph; None if it can."""
        if not context.spec.gives_next_obs:
            return "environments on the host give rollouts of changing shapes"
        if context.collective.world_size > 1:
            return "several learners exchange gradients"
        if context.network.recurrent is not None:
            return "network.recurrent: sequences have changing shapes"
        return None

    def update(self, rollout: Rollout, progress: float, following: float | None = None) -> dict[str, float | Tensor]:
        """Learn from one rollout; see `Algorithm.update`."""
        scheduled = self.schedule(progress)
        learnt = self._learn(rollout)
        if learnt.updates:
            self.optimizer.count(learnt.updates)
            self.optimizer.check_finite()
            scheduled = {"loss/grad_norm": self.optimizer.mean_grad_norm(), **scheduled}
        return {**learnt.metrics, **scheduled}

    def schedule(self, progress: float) -> dict[str, float | Tensor]:
        """Set what the recipe's schedules say for `progress`, in [0, 1]; returns metrics."""
        entropy_coef = self.config.entropy_coef(progress)
        self.entropy_coef.fill_(entropy_coef)
        return {"schedule/entropy_coef": entropy_coef}

    def follow(self, learning_rate: Schedule, progress: float) -> dict[str, float | Tensor]:
        """Set the step size; returns it as a metric."""
        rate = learning_rate(progress)
        self.learning_rate.fill_(rate)
        return {"schedule/learning_rate": rate}

    @abstractmethod
    def learn(self, rollout: Rollout) -> Learnt:
        """Take the gradient steps of one rollout; none where there is no valid row."""

    @property
    def updates(self) -> int:
        """Gradient steps taken so far."""
        return self.optimizer.updates

    def settle(self) -> None:
        """See `Algorithm.settle`."""
        self.optimizer.settle()

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Distribution parameters (B, ...), illegal choices left out, and values (B,) of a minibatch."""
        policy, critic, packing = self.policy, self.critic, batch.packing
        if self.shared:
            trunk = policy.trunk(batch.obs)
            params, value = policy.head(trunk), critic(trunk)
        elif packing is None or policy.memory is None:
            params, value = policy.params(batch.obs), critic(batch.obs)
        else:
            params = policy.params(policy.memory.over_sequences(batch.obs, packing.sizes, packing.actor_state))
            value = critic(batch.obs, packing.sizes, packing.critic_state)
        return params if batch.mask is None else legal(params, batch.mask), value

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> tuple[Batch, Recurrence | None]:
        """Values, advantages and targets of the valid rows."""
        if self.reward_normalizer is not None:
            self.reward_normalizer.begin(rollout.obs)
        told = Told(rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
        recurrence: Recurrence | None = None
        if self.critic_memory is not None:
            obs = self.policy.prepare(rollout.obs)  # (T + 1, N, ...)
            value, following, recurrence = self.critic_memory.values(rollout, obs)
            advantage, returns = self._advantages(told, value, following, rollout.unsure)
            self._take_in(rollout.obs, rollout.unsure)
        elif len(rollout.final_obs.obs):  # as many as there happen to be
            obs, value, advantage, returns = self.estimate(rollout.obs, rollout.final_obs, None, told)
        else:
            obs, value, advantage, returns = self._estimate(self, rollout.obs, None, rollout.next_obs, told)
        batch = Batch(
            obs[:-1].flatten(0, 1),
            rollout.action.flatten(0, 1),
            rollout.extras["log_prob"].flatten(),
            value.flatten(),
            advantage.flatten(),
            returns.flatten(),
            rollout.mask.flatten(0, 1) if rollout.mask is not None else None,
        )
        if recurrence is not None:
            batch = batch.rows(recurrence.sequences.rows)
        elif rollout.unsure is not None and not bool(rollout.valid.all()):
            batch = batch.rows(rollout.valid.flatten().nonzero().squeeze(-1))
        return batch, recurrence

    @torch.no_grad()
    def estimate(self, obs: Tensor, finals: FinalObs | None, next_obs: Tensor | None, told: Told) -> tuple[Tensor, ...]:
        """Values and advantages of a policy without a memory; takes the rollout into the statistics.

        Args:
            obs: (T + 1, N, *obs).
            finals: `Rollout.final_obs`; None where there are none.
            next_obs: (T, N, *obs), see `Rollout`.
            told: what the environments said.

        Returns:
            (T + 1, N, ...) prepared observations, and (T, N) values, advantages and returns.
        """
        prepared = self.policy.prepare(obs)
        if next_obs is not None:
            value, following = self._values(prepared[:-1]), self._values(self.policy.prepare(next_obs))
        else:
            values = self._values(prepared)
            value, following = values[:-1], values[1:]
            if finals is not None:
                following = next_values(values, finals, self._values(self.policy.prepare(finals.obs)))
        unsure = told.valid if next_obs is None else None
        advantage, returns = self._advantages(told, value, following, unsure)
        self._take_in(obs, unsure)
        return prepared, value, advantage, returns

    def _values(self, prepared: Tensor) -> Tensor:
        """V (...) of prepared observations (..., F)."""
        value: Tensor = self.critic(self.policy.trunk(prepared) if self.shared else prepared)
        return value

    def _advantages(self, told: Told, value: Tensor, following: Tensor, unsure: Tensor | None) -> tuple[Tensor, Tensor]:
        """Advantages (T, N), which may be normalised, and targets of the critic (T, N); see `gae`."""
        config, reward = self.config, told.reward
        if self.reward_normalizer is not None:
            # The scale of rewards does not touch acting, so it may take in this rollout before it is used.
            self.reward_normalizer.update(reward, told.terminated | told.truncated, unsure)
            reward = self.reward_normalizer(reward)
        advantage = gae(
            reward,
            value,
            following,
            told.terminated,
            told.truncated,
            told.valid,
            config.gamma,
            config.gae_lambda,
        )
        returns = advantage + value
        if config.normalize_advantage:
            std, mean = self.collective.std_mean(advantage.flatten(), None if unsure is None else unsure.flatten())
            advantage.sub_(mean).div_(std + 1e-8)
        return advantage, returns

    def _take_in(self, obs: Tensor, valid: Tensor | None) -> None:
        """Put observations (T + 1, N, *obs) into the statistics, once they are prepared by those that were acted by."""
        self.policy.update_normalizer(obs[:-1], valid, self.collective)

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`."""
        self.generator.manual_seed(seed)
        if self.critic_memory is not None:
            self.critic_memory.restart()
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()

    def state_dict(self) -> dict[str, Any]:
        """Critic, optimiser and reward statistics; states of memories are zeros wherever a run can be resumed."""
        state: dict[str, Any] = {
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self.reward_normalizer is not None:
            state["reward_normalizer"] = self.reward_normalizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`."""
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - value) / Var(returns): 1 is a perfect critic, 0 is no better than a constant."""
    return 1.0 - (returns - value).var(correction=0) / (returns.var(correction=0) + 1e-8)
