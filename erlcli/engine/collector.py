"""Steps environments with a policy and writes down what happens. Workers and the inline sampler run the same one.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.policy import Policy
from erlcli.core.seeding import generator
from erlcli.core.types import EnvSpec, FinalObs, Rollout
from erlcli.engine.shared import Layout
from erlcli.envs.vecenv import VecEnv

PREFIX = "extras/"


def rollout_layout(spec: EnvSpec, policy: Policy, length: int, num_envs: int) -> Layout:
    """Names, shapes and dtypes of one rollout's buffers.

    `final_obs` has room for the worst case, an end at every step; untouched pages cost no memory.
    """
    obs_dtype: torch.dtype = getattr(torch, spec.obs.dtype)
    shape = (length, num_envs)
    layout: Layout = {
        "obs": ((length + 1, num_envs, *spec.obs.shape), obs_dtype),
        "action": ((*shape, *policy.action_shape), policy.action_dtype),
        "reward": (shape, torch.float32),
        "terminated": (shape, torch.bool),
        "truncated": (shape, torch.bool),
        "valid": (shape, torch.bool),
        "final_obs": ((num_envs, length, *spec.obs.shape), obs_dtype),
        "final_step": ((num_envs, length), torch.int64),
        "final_count": ((num_envs,), torch.int64),
    }
    for name, (inner, dtype) in policy.extras.items():
        layout[PREFIX + name] = ((*shape, *inner), dtype)
    return layout


@dataclass
class Timing:
    """Seconds of one rollout, by what they went into."""

    env: float = 0.0
    act: float = 0.0


class Buffers:
    """One rollout's tensors, or the columns of one worker in them.

    Args:
        tensors: as `rollout_layout` names them.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.obs = tensors["obs"]
        self.action = tensors["action"]
        self.reward = tensors["reward"]
        self.terminated = tensors["terminated"]
        self.truncated = tensors["truncated"]
        self.valid = tensors["valid"]
        self.final_obs = tensors["final_obs"]
        self.final_step = tensors["final_step"]
        self.final_count = tensors["final_count"]
        self.extras = {k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)}

    def columns(self, start: int, stop: int) -> Buffers:
        """Views of the envs `start ... stop - 1`."""
        by_time = {
            "obs": self.obs,
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "valid": self.valid,
        } | {PREFIX + name: tensor for name, tensor in self.extras.items()}
        views = {name: tensor[:, start:stop] for name, tensor in by_time.items()}
        for name in ("final_obs", "final_step", "final_count"):
            views[name] = getattr(self, name)[start:stop]
        return Buffers(views)

    def rollout(self, version: int) -> Rollout:
        """The buffers as a `Rollout`, without a copy of anything but the final observations."""
        return Rollout(
            self.obs,
            self.action,
            self.reward,
            self.terminated,
            self.truncated,
            self.valid,
            self._finals(),
            self.extras,
            version,
        )

    def _finals(self) -> FinalObs:
        counts = self.final_count.tolist()
        ended = [n for n, count in enumerate(counts) if count]
        if not ended:
            return FinalObs(torch.zeros(0, 2, dtype=torch.int64), self.final_obs.new_zeros(0, *self.obs.shape[2:]))
        steps = torch.cat([self.final_step[n, : counts[n]] for n in ended])
        envs = torch.cat([torch.full((counts[n],), n) for n in ended])
        obs = torch.cat([self.final_obs[n, : counts[n]] for n in ended])
        return FinalObs(torch.stack([steps, envs], dim=1), obs)


class Collector:
    """Fills buffers, rollout after rollout.

    Args:
        env: the environments.
        policy: acts; its state may be replaced between rollouts.
        length: T.
        first_index: index of the first environment among those of all workers.
        on_step: called before each env step with what comes next; may raise to end the rollout.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        length: int,
        first_index: int,
        on_step: Callable[[str], None],
    ) -> None:
        self.env = env
        self.policy = policy
        self.length = length
        self.first_index = first_index
        self.on_step = on_step
        self.generator = torch.Generator(device=env.spec.device)
        self.timing = Timing()
        self._obs: Tensor | None = None

    def restart(self, seed: int) -> None:
        """Reset every environment and draw from `seed` from here on.

        Raises:
            EnvError: an environment failed.
        """
        self.on_step("env reset")
        self.generator = generator(seed, "act", self.first_index, device=self.env.spec.device)
        self._obs = self.env.reset(seed, self.first_index).clone()

    @torch.inference_mode()
    def collect(self, into: Buffers) -> None:
        """T steps of N environments.

        Raises:
            EnvError: an environment failed.
        """
        if self._obs is None:
            raise RuntimeError("restart() comes before collect()")
        env, policy, clock = self.env, self.policy, time.perf_counter
        shape = (self.length, env.spec.num_envs)
        noise = policy.noise(shape, self.generator, env.spec.device).unbind(0)
        obs, action, reward = into.obs, into.action, into.reward
        extras = list(into.extras.items())
        finals = [0] * env.spec.num_envs
        in_env = 0.0
        started = clock()
        obs[0].copy_(self._obs)
        for t in range(self.length):
            chosen, beside = policy.act(obs[t], noise[t])
            action[t].copy_(chosen)
            for name, buffer in extras:
                buffer[t].copy_(beside[name])
            self.on_step("env step")
            before = clock()
            step = env.step(chosen)
            in_env += clock() - before
            obs[t + 1].copy_(step.obs)
            reward[t].copy_(step.reward)
            into.terminated[t].copy_(step.terminated)
            into.truncated[t].copy_(step.truncated)
            into.valid[t].copy_(step.valid)
            if step.final_obs is not None:
                for n, last in step.final_obs.items():
                    into.final_obs[n, finals[n]].copy_(last)
                    into.final_step[n, finals[n]] = t
                    finals[n] += 1
        into.final_count.copy_(torch.tensor(finals))
        self._obs.copy_(obs[self.length])
        self.timing = Timing(in_env, clock() - started - in_env)
