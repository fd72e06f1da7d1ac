"""What all algorithms that learn from a replay have in common.

After each rollout its rows join the replay, and then come the gradient steps that are due: `updates_per_step` for each
env transition after the warm-up, whatever the length of a rollout. Until the warm-up is over actions are random, and
nothing is learnt. Rewards are scaled when they are drawn, so that running statistics scale old ones too.

Dimension letters: T time steps, N environments, B rows of a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.off_policy import OffPolicyConfig
from erlcli.core.algorithm import Algorithm, Context
from erlcli.core.h_term import HTerm
from erlcli.core.optim import Optimizer
from erlcli.core.policy import VectorPolicy
from erlcli.core.prioritized import Priorities
from erlcli.core.replay import Replay
from erlcli.core.seeding import derive, generator
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Rollout

FOLD = 256  # updates whose metrics are averaged at once
DRAWN_BYTES = 2**19  # of transitions drawn at once: they should still be in the cache when they are learnt from


class ExploringPolicy(VectorPolicy):
    """A policy that acts at random until the learner says that the warm-up is over.

    Args:
        obs: the observation space.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        warmup: whether to start with random actions.
        raw: whether networks begin with an encoder.
    """

    warmup: Tensor

    def __init__(self, obs: Box, obs_clip: float | None, warmup: bool, raw: bool = False) -> None:
        super().__init__(obs, obs_clip, raw)
        self.register_buffer("warmup", torch.tensor(warmup))
        self.extras = {}


class OffPolicyAlgorithm(Algorithm):
    """Replay, warm-up, the number of updates, metrics and state; what is left is the gradient step.

    A subclass calls this constructor first and then fills `networks` and `optimizers`.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.

    Attributes:
        networks: the learner's own modules by name, beside the policy; saved in checkpoints.
        optimizers: by name; `critic` is there always, and its steps are the algorithm's updates.
        generator: for whatever `learn` draws, on the learner's device.
        learning_rate: scalar on the device; the step size of the rollout that is learnt from.
        h_term: add-on to the actor's loss, or None; fed here, and put into the loss by the subclass that has an actor.
    """

    config: OffPolicyConfig
    policy: ExploringPolicy
    replay: Replay
    h_term: HTerm | None = None

    def __init__(self, config: OffPolicyConfig, context: Context) -> None:
        self.config = config
        self.device = context.device
        self.collective = context.collective
        self.rollout_length = config.rollout_length
        policy = self.build_policy(config, context)
        if not isinstance(policy, ExploringPolicy):
            raise TypeError(f"build_policy: expected an ExploringPolicy, found {type(policy).__name__}")
        self.policy = policy.to(self.device)
        replay = config.replay
        self.replay = Replay(
            context.spec.obs,
            self.policy.action_shape,
            self.policy.action_dtype,
            num_envs=context.spec.num_envs,
            capacity=replay.capacity,
            gamma=config.gamma,
            n_step=config.n_step,
            device=self.device,
            storage=self.device if replay.device == "learner" else torch.device("cpu"),
            priorities=Priorities(replay.alpha, replay.priority_floor) if replay.prioritized else None,
        )
        self.reward_normalizer = context.reward_normalizer(config.gamma)
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.generator = generator(context.seed, "learner", device=self.device)
        self.learning_rate = Optimizer.scalar(self.device).fill_(config.learning_rate(0.0))
        self._draws = generator(context.seed, "replay", device=self.replay.storage)
        self._ratio = Fraction(str(config.updates_per_step))  # 0.1 is a tenth, not the nearest float
        self._credit = Fraction(0)  # updates that are due but not whole yet
        self._steps = 0

    @abstractmethod
    def learn(self, batch: Transitions) -> dict[str, Tensor]:
        """One gradient step.

        Args:
            batch: drawn from the replay, rewards scaled; observations are raw: see `ExploringPolicy.features`.

        Returns:
            Device scalars without gradient by name, the same names in every call; they are averaged over a rollout.
        """

    @property
    def updates(self) -> int:
        """Gradient steps of the critic taken so far."""
        return self.optimizers["critic"].updates

    def settle(self) -> None:
        """See `Algorithm.settle`."""
        for optimizer in self.optimizers.values():
            optimizer.settle()

    def update(self, rollout: Rollout, progress: float, following: float | None = None) -> dict[str, float | Tensor]:
        """Remember one rollout and take the gradient steps that it makes due; see `Algorithm.update`."""
        if self.reward_normalizer is not None:
            ended = rollout.terminated | rollout.truncated
            self.reward_normalizer.begin(rollout.obs)
            self.reward_normalizer.update(rollout.reward, ended, rollout.unsure)
        due = self._due(self.replay.add(rollout))
        self.replay.beta = self.config.replay.beta(progress)
        if self.h_term is not None:
            self.h_term.add(rollout)
        learning_rate = self.config.learning_rate(progress)
        self.learning_rate.fill_(learning_rate)
        # The replay keeps raw observations and no densities, so the statistics need not be those that were acted by.
        self.policy.update_normalizer(rollout.obs[:-1], rollout.unsure, self.collective)
        metrics = self._learn(due)
        self.policy.warmup.fill_(self._steps < self.config.warmup_steps)
        metrics |= self.set_acting(progress if following is None else following)
        metrics |= {
            "replay/size": len(self.replay),
            "schedule/learning_rate": learning_rate,
        }
        if self.replay.priorities is not None:
            metrics["schedule/beta"] = self.replay.beta
        if self.h_term is not None:
            metrics |= self.h_term.metrics()
        return metrics

    def _due(self, taken: int) -> int:
        """How many updates `taken` more steps make due; fractions are carried over."""
        before, self._steps = self._steps, self._steps + taken
        self._credit += self._ratio * max(0, self._steps - max(before, self.config.warmup_steps))
        due = int(self._credit)
        self._credit -= due
        return due

    def _learn(self, due: int) -> dict[str, float | Tensor]:
        """`due` gradient steps, and the means of their metrics."""
        sums: dict[str, Tensor] = {}
        rows: list[dict[str, Tensor]] = []
        for left, batch in zip(range(due - 1, -1, -1), self._batches(due), strict=True):
            rows.append(self.learn(batch))
            if not left or len(rows) == FOLD:  # one sum for many updates: an operation costs as much as a small layer
                for name in rows[0]:
                    total = torch.stack([row[name] for row in rows]).sum()
                    sums[name] = sums[name] + total if name in sums else total
                rows.clear()
        if not due:
            return {}
        metrics: dict[str, float | Tensor] = {name: total / due for name, total in sums.items()}
        for name, optimizer in self.optimizers.items():
            optimizer.check_finite()
            metrics[f"grad_norm/{name}"] = optimizer.mean_grad_norm()
        return metrics

    def _batches(self, due: int) -> Iterator[Transitions]:
        """A batch for each of `due` updates. Uniform ones are drawn many at a time, which costs hardly more than one;
        prioritised ones can't be, since each update changes what the next one draws from.
        """
        size = self.config.batch_size
        many = 1 if self.replay.priorities is not None else max(1, DRAWN_BYTES // (size * self.replay.drawn_bytes))
        while due:
            count = min(due, many)
            yield from self._scaled(self.replay.sample(count * size, self._draws)).parts(size)
            due -= count

    def _scaled(self, batch: Transitions) -> Transitions:
        """The batch with its rewards in the units of the losses. Sums of n rewards are clipped as a whole."""
        if self.reward_normalizer is not None:
            return replace(batch, reward=self.reward_normalizer(batch.reward) * self.config.reward_scale)
        if self.config.reward_scale != 1.0:
            return replace(batch, reward=batch.reward * self.config.reward_scale)
        return batch

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`. The replay finds by itself that environments were reset."""
        self.generator.manual_seed(seed)
        self._draws.manual_seed(derive(seed, "replay"))
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()
        if self.h_term is not None:
            self.h_term.restart(seed)

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers, counters, priorities and reward statistics; the transitions are saved apart."""
        state: dict[str, Any] = {
            "networks": {name: module.state_dict() for name, module in self.networks.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "replay": self.replay.state_dict(),
            "steps": self._steps,
            "credit": str(self._credit),
        }
        if self.reward_normalizer is not None:
            state["reward_normalizer"] = self.reward_normalizer.state_dict()
        if self.h_term is not None:
            state["h_term"] = self.h_term.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Algorithm.load_state_dict`; the replay's transitions come first."""
        for name, module in self.networks.items():
            module.load_state_dict(state["networks"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.replay.load_state_dict(state["replay"])
        self._steps = int(state["steps"])
        self._credit = Fraction(state["credit"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        if self.h_term is not None and "h_term" in state:  # switched on at a resume, it starts with nothing
            self.h_term.load_state_dict(state["h_term"])
