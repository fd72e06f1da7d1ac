"""Where rollouts are written: names and shapes of their tensors, and views of these for each time step.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.policy import Policy
from erlcli.core.types import EnvSpec, FinalObs, Game, Rollout, Start, Step
from erlcli.engine.shared import Layout

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


@dataclass(frozen=True, slots=True)
class Row:
    """Where one time step of a rollout goes, as views: a copy of several tensors at once costs little more than of one.

    Attributes:
        obs: (N, *obs) acted upon.
        acting: for the action and, in the order of the policy's `extras`, what is beside it.
        step: for what the environments give, in the order of `parts`.
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
        flags = self.terminated, self.truncated, self.valid
        step = parts(Step(self.obs[1:], self.reward, *flags, game=self.game, next_obs=self.next_obs))
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


def parts(step: Step) -> list[Tensor]:
    """What of a step every rollout keeps, for each environment; the observations of `final_obs` are of some alone."""
    kept = [step.obs, step.reward, step.terminated, step.truncated, step.valid]
    if step.game is not None:
        kept += [step.game.reward, step.game.over]
    if step.next_obs is not None:
        kept.append(step.next_obs)
    return kept
