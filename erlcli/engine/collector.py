"""Steps environments with a policy and writes down what happens. Workers and the inline sampler run the same one.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.actor import Actor
from erlcli.core.graphs import Graphs
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import Step
from erlcli.engine.buffers import Buffers, parts
from erlcli.envs.vecenv import VecEnv


@dataclass
class Timing:
    """Seconds of one rollout, by what they went into."""

    env: float = 0.0
    act: float = 0.0


class Collector:
    """Fills buffers, rollout after rollout.

    Where environments and policy are tensor operations alone, the T steps of a rollout are one CUDA graph; nobody is
    asked before each step then, and what of the time passed in the environments is not known.

    Args:
        env: the environments.
        policy: acts; its state may be replaced between rollouts.
        length: T.
        first_index: index of the first environment among those of all workers.
        on_step: called before each env step with what comes next; may raise to end the rollout.
        graphs: captures rollouts.
        actor: acts for the policy where an observation is all that it acts on.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        length: int,
        first_index: int,
        on_step: Callable[[str], None],
        graphs: Graphs | None = None,
        actor: Actor | None = None,
    ) -> None:
        self.actor = actor or Actor(policy)
        self.graphs = graphs or Graphs()
        self.env = env
        self.policy = policy
        self.length = length
        self.first_index = first_index
        self.on_step = on_step
        self.generator = torch.Generator(device=env.spec.device)
        self.timing = Timing()
        self._in_env = 0.0  # seconds of this rollout
        self._obs: Tensor | None = None
        self._mask: Tensor | None = None  # of the legal choices after _obs
        self._state = policy.initial_state(env.spec.num_envs, env.spec.device)
        self._fresh = torch.ones(env.spec.num_envs, dtype=torch.bool, device=env.spec.device)
        self.use(env)

    def use(self, env: VecEnv) -> None:
        """Step these environments from here on; `restart` comes next."""
        self.env = env
        generators = [self.generator]
        if env.spec.capturable and env.generator is not None:
            generators.append(env.generator)
        self._steps = self.graphs.capture("rollout", self._take_steps, generators, self._not_captured())

    def _not_captured(self) -> str | None:
        if not self.env.spec.gives_next_obs:
            return "environments are stepped on the host"
        if not self.env.spec.capturable:
            return "the environment says of itself that it is not capturable"
        return None if self.policy.capturable else "the noise of exploration has a memory on the host"

    def restart(self, seed: int) -> None:
        """Reset every environment and draw from `seed` from here on.

        Raises:
            EnvError: an environment failed.
        """
        self.on_step("env reset")
        self.generator.manual_seed(derive(seed, "act", self.first_index))
        obs = self.env.reset(seed, self.first_index)
        self._obs = obs.clone() if self._obs is None else self._obs.copy_(obs)
        self._mask = self.env.first_mask() if self.policy.masked else None
        self._fresh.fill_(True)

    @torch.inference_mode()
    def collect(self, into: Buffers) -> None:
        """T steps of N environments.

        Raises:
            EnvError: an environment failed.
        """
        if self._obs is None:
            raise RuntimeError("restart() comes before collect()")
        if self.env.spec.capturable:
            self.on_step("env step")  # a graph asks nobody
        started, self._in_env = time.perf_counter(), 0.0
        self._steps(self._obs, into)
        self.env.verify()
        self.timing = Timing(self._in_env, time.perf_counter() - started - self._in_env)

    def _take_steps(self, first: Tensor, into: Buffers) -> None:
        """What `collect` does, from the observations `first` (N, *obs) on, which become those after the last step."""
        env, policy, actor, clock = self.env, self.policy, self.actor, time.perf_counter
        noise = policy.rollout_noise(self.length, env.spec.num_envs, self.generator, env.spec.device)
        finals = [0] * env.spec.num_envs
        plain, mask, state = policy.plain, self._mask, self._begin(into)
        into.obs[0].copy_(first)
        for t, row in enumerate(into.rows):
            if plain:
                chosen, *beside = actor(row.obs, noise[t])
            else:
                if into.mask is not None and mask is not None:
                    into.mask[t].copy_(mask)
                chosen, extras, state = policy.step(row.obs, noise[t], mask, state)
                beside = [extras[name] for name in into.extras]
            torch._foreach_copy_(row.acting, [chosen, *beside])
            self.on_step("env step")
            before = clock()
            step = env.step(chosen)
            self._in_env += clock() - before
            torch._foreach_copy_(row.step, parts(step))
            if step.final_obs is not None:
                into.keep_finals(step.final_obs, t, finals)
            if not plain:
                mask = step.mask
                self._forget(step, state)
        self._mask = mask.clone() if mask is not None else None
        if state is not None and self._state is not None:
            self._state.copy_(state)
        if into.final_count is not None:
            into.final_count.copy_(torch.tensor(finals))
        first.copy_(into.obs[self.length])

    def _begin(self, into: Buffers) -> Tensor | None:
        """The state to act from, which is noted."""
        if self._state is None or into.start_state is None or into.start_fresh is None:
            return None
        state = self._state.masked_fill(self._fresh.unsqueeze(-1), 0.0)
        into.start_state.copy_(state)
        into.start_fresh.copy_(self._fresh)
        return state

    def _forget(self, step: Step, state: Tensor | None) -> None:
        """Where the next observation begins an episode, nothing is remembered of the one before."""
        if state is None:
            return
        if step.next_obs is not None:
            torch.logical_or(step.terminated, step.truncated, out=self._fresh)
        else:
            torch.logical_not(step.valid, out=self._fresh)
        if step.final_obs is not None:
            self._fresh[list(step.final_obs)] = True
        state.masked_fill_(self._fresh.unsqueeze(-1), 0.0)
