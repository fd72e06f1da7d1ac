"""Steps environments with a policy and writes down what happens. Workers and the inline sampler run the same one.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.actor import Actor
from erlcli.core.graphs import Graphs
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, FinalObs, Game, Rollout, Start, Step
from erlcli.engine.shared import Layout
from erlcli.envs.vecenv import VecEnv

PREFIX = "extras/"
BY_TIME = (
    "obs", "action", "reward", "terminated", "truncated", "valid", "next_obs", "mask", "game_reward", "game_over",
)  # fmt: skip
BY_ENV = ("final_obs", "final_step", "final_count", "start_state", "start_fresh")


def rollout_layout(spec: EnvSpec, policy: Policy, length: int, num_envs: int) -> Layout:
    """Names, shapes and dtypes of one rollout's buffers.

    `final_obs` has room for the worst case, an end at every step; untouched pages cost no memory. Where environments
    give all their next observations, these take its place.
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
    }
    if spec.gives_next_obs:
        layout["next_obs"] = ((*shape, *spec.obs.shape), obs_dtype)
    else:
        layout["final_obs"] = ((num_envs, length, *spec.obs.shape), obs_dtype)
        layout["final_step"] = ((num_envs, length), torch.int64)
        layout["final_count"] = ((num_envs,), torch.int64)
    if spec.games:
        layout["game_reward"], layout["game_over"] = (shape, torch.float32), (shape, torch.bool)
    if policy.masked:
        layout["mask"] = ((*shape, spec.mask), torch.bool)
    if policy.state_size:
        layout["start_state"] = ((num_envs, policy.state_size), torch.float32)
        layout["start_fresh"] = ((num_envs,), torch.bool)
    for name, (inner, dtype) in policy.extras.items():
        layout[PREFIX + name] = ((*shape, *inner), dtype)
    return layout


@dataclass
class Timing:
    """Seconds of one rollout, by what they went into."""

    env: float = 0.0
    act: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """Where one time step of a rollout goes, as views: a copy of several tensors at once costs little more than of one.

    Attributes:
        obs: (N, *obs) acted upon.
        acting: for the action and, in the order of the policy's `extras`, what is beside it.
        step: for what the environments give, as `Collector` lists it.
    """

    obs: Tensor
    acting: list[Tensor]
    step: list[Tensor]


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
        self.next_obs = tensors.get("next_obs")
        self.final_obs = tensors.get("final_obs")
        self.final_step = tensors.get("final_step")
        self.final_count = tensors.get("final_count")
        self.mask = tensors.get("mask")
        self.game_reward = tensors.get("game_reward")
        self.game_over = tensors.get("game_over")
        self.start_state = tensors.get("start_state")
        self.start_fresh = tensors.get("start_fresh")
        self.extras = {k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)}

    def columns(self, start: int, stop: int) -> Buffers:
        """Views of the envs `start ... stop - 1`."""
        views = {name: t[:, start:stop] for name in BY_TIME if (t := getattr(self, name)) is not None}
        views |= {name: t[start:stop] for name in BY_ENV if (t := getattr(self, name)) is not None}
        views |= {PREFIX + name: tensor[:, start:stop] for name, tensor in self.extras.items()}
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
            self.mask,
            Start(self.start_state, self.start_fresh)
            if self.start_state is not None and self.start_fresh is not None
            else None,
            self.game,
            self.next_obs,
        )

    @functools.cached_property
    def rows(self) -> list[Row]:
        """One for each time step, made once."""
        acting = [self.action, *self.extras.values()]
        step = [self.obs[1:], self.reward, self.terminated, self.truncated, self.valid]
        if self.game is not None:
            step += [self.game.reward, self.game.over]
        if self.next_obs is not None:
            step.append(self.next_obs)
        observed = self.obs[:-1].unbind()
        columns = zip(*(t.unbind() for t in (*acting, *step)), strict=True)
        return [
            Row(obs, list(row[: len(acting)]), list(row[len(acting) :]))
            for obs, row in zip(observed, columns, strict=True)
        ]

    @property
    def game(self) -> Game | None:
        """Views of what the game says itself; None where that is what is trained on."""
        if self.game_reward is None or self.game_over is None:
            return None
        return Game(self.game_reward, self.game_over)

    def keep_finals(self, final_obs: dict[int, Tensor], t: int, counts: list[int]) -> None:
        """Write down the last observations of step t.

        Args:
            final_obs: see `Step.final_obs`.
            t: step of the rollout.
            counts: of each environment in this rollout so far; goes on to count.
        """
        if self.final_obs is None or self.final_step is None:
            raise TypeError("the environments were to give all next observations, and gave last ones by index")
        for n, last in final_obs.items():
            self.final_obs[n, counts[n]].copy_(last)
            self.final_step[n, counts[n]] = t
            counts[n] += 1

    def _finals(self) -> FinalObs:
        if self.final_obs is None or self.final_step is None or self.final_count is None:
            return FinalObs.none(self.obs)
        counts = self.final_count.tolist()
        ended = [n for n, count in enumerate(counts) if count]
        if not ended:
            return FinalObs.none(self.obs)
        steps = torch.cat([self.final_step[n, : counts[n]] for n in ended])
        envs = torch.cat([torch.full((counts[n],), n) for n in ended])
        obs = torch.cat([self.final_obs[n, : counts[n]] for n in ended])
        return FinalObs(torch.stack([steps, envs], dim=1), obs)


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
            torch._foreach_copy_(row.step, _given(step))
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


def _given(step: Step) -> list[Tensor]:
    """What a step gives, in the order of `Row.step`."""
    given = [step.obs, step.reward, step.terminated, step.truncated, step.valid]
    if step.game is not None:
        given += [step.game.reward, step.game.over]
    if step.next_obs is not None:
        given.append(step.next_obs)
    return given
