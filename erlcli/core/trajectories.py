"""Whole episodes, kept as long as they are among the best: what the H-term learns from.

A step is written once, to a free slot, and never moves; an episode is a list of slots. Rollouts are taken in as they
come. What they leave open is continued by the next one, environment by environment. Steps that were only a reset
(`valid` is False) are left out.

Only whole episodes count. So an episode that was still open when the environments were reset, at a restart point or
after a failure, is dropped: its return would be that of a shorter one, which for costs is a better one. The loop marks
the last row before a restart point as truncated, like that of a time limit. Therefore an episode that is truncated in
the last row of a rollout stays open until the next rollout shows that the run went on.

The memory is bounded. Where there is no room, the episodes of the lowest returns make it. An environment whose
episode has taken half of its share of the slots gets it closed there, and goes on in a new one: endless tasks are kept
in pieces.

Dimension letters: T time steps, N environments, C slots, M new steps, O open steps, S steps of whole episodes,
E episodes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from erlcli.core.seams import Seam
from erlcli.core.types import Box, Rollout


class TrajectoryStore:
    """See the module's docstring.

    Args:
        obs: the observation space.
        action_shape: of one action in the policy's own units.
        action_dtype: of actions.
        num_envs: N.
        capacity: steps kept, C; at least twice those of a rollout.
        device: where they are kept.

    Attributes:
        obs: (C, *obs) raw observations, by slot.
        action: (C, *action), by slot.
        reward: (C,) as the environment gave them, by slot.
        slots: (S,) the slots of the whole episodes, one after the other, the oldest first.
        left: (S,) steps from here to the end of the episode, this one included.
        lengths: (E,) of the episodes.
        returns: (E,) float64, sums of their rewards.
    """

    def __init__(
        self,
        obs: Box,
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
        *,
        num_envs: int,
        capacity: int,
        device: torch.device,
    ) -> None:
        self.num_envs, self.capacity, self.device = num_envs, capacity, device
        self.obs = torch.zeros(capacity, *obs.shape, dtype=getattr(torch, obs.dtype), device=device)
        self.action = torch.zeros(capacity, *action_shape, dtype=action_dtype, device=device)
        self.reward = torch.zeros(capacity, device=device)
        self.slots = self.left = self.lengths = self._empty()
        self.returns = self._empty(torch.float64)
        self._free = torch.arange(capacity, device=device)  # slots that hold nothing
        self._longest = capacity // (2 * num_envs)  # open steps of one environment, so that half of C is enough for all
        self._seam = Seam()
        self._forget_open()

    def __len__(self) -> int:
        """S."""
        return len(self.slots)

    def _empty(self, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(0, dtype=dtype, device=self.device)

    def _forget_open(self) -> None:
        self._open_slot = self._open_env = self._empty()  # (O,) each, by environment and then by time
        self._open_ended = self._empty(torch.bool)  # (O,) ended in the last row of a rollout, perhaps only cut there
        self._seam.forget()

    def restart(self) -> None:
        """Forget what is open: every environment was reset."""
        self._free = torch.cat([self._free, self._open_slot])
        self._forget_open()

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout, on the store's device."""
        reset = self._seam.reset_before(rollout.obs)
        if reset is not None:
            self._drop_open(reset)
        env, step = rollout.valid.t().nonzero(as_tuple=True)  # (M,) each, by environment and then by time
        slot = self._take(len(env))
        self.obs[slot] = rollout.obs[step, env]
        self.action[slot] = rollout.action[step, env]
        self.reward[slot] = rollout.reward[step, env]
        ended = (rollout.terminated | rollout.truncated)[step, env]
        unsure = (step == len(rollout.reward) - 1) & ~rollout.terminated[step, env]

        known = torch.ones_like(self._open_env, dtype=torch.bool)
        env = torch.cat([self._open_env, env])
        order = env.argsort(stable=True)
        env, slot = env[order], torch.cat([self._open_slot, slot])[order]
        ended = torch.cat([self._open_ended, ended])[order]
        closed = self._close(env, ended & torch.cat([known, ~unsure])[order])[env]
        place = torch.arange(len(env), device=self.device)
        whole = place <= closed
        self._append(slot[whole], (ended | (place == closed))[whole])
        self._open_slot, self._open_env, self._open_ended = slot[~whole], env[~whole], ended[~whole]

    def _close(self, env: Tensor, ended: Tensor) -> Tensor:
        """(N,) the last place of each environment's whole episodes in the given order of steps; -1 for none."""
        places = torch.arange(len(env), device=self.device)
        last = torch.full((self.num_envs,), -1, device=self.device)
        closed = last.scatter_reduce(0, env, torch.where(ended, places, -1), "amax")
        newest = last.scatter_reduce(0, env, places, "amax")
        first = torch.full_like(last, len(env)).scatter_reduce(0, env, places, "amin")
        waiting = newest - torch.maximum(closed, first - 1)
        return torch.where(waiting >= self._longest, newest, closed)

    def _append(self, slots: Tensor, ended: Tensor) -> None:
        """Whole episodes, by their slots in order, and where they end."""
        if not len(slots):
            return
        last = ended.nonzero().squeeze(1)
        lengths = torch.diff(last, prepend=last.new_full((1,), -1))
        sums = self.reward[slots].to(torch.float64).cumsum(0)[last]
        self.slots = torch.cat([self.slots, slots])
        self.lengths = torch.cat([self.lengths, lengths])
        self.returns = torch.cat([self.returns, torch.diff(sums, prepend=sums.new_zeros(1))])
        self._count_down()

    def _count_down(self) -> None:
        ends = self.lengths.cumsum(0).repeat_interleave(self.lengths)
        self.left = ends - torch.arange(len(self.slots), device=self.device)

    def _drop_open(self, envs: Tensor) -> None:
        """Forget the open steps of some environments, (N,)."""
        lost = envs[self._open_env]
        if not bool(lost.any()):
            return
        self._free = torch.cat([self._free, self._open_slot[lost]])
        kept = ~lost
        self._open_slot, self._open_env = self._open_slot[kept], self._open_env[kept]
        self._open_ended = self._open_ended[kept]

    def _take(self, count: int) -> Tensor:
        """Free slots, for which the episodes of the lowest returns make room.

        Raises:
            ValueError: a rollout has more than half as many steps as there are slots.
        """
        if 2 * count > self.capacity:
            raise ValueError(f"rollout: {count} steps, the store has {self.capacity} slots")
        short = count - len(self._free)
        if short > 0:
            worst = self.returns.argsort(stable=True)
            enough = int((self.lengths[worst].cumsum(0) < short).sum()) + 1
            self._forget(worst[:enough])
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def drop(self, share: float) -> None:
        """Forget this share of the episodes, rounded down: those of the lowest returns."""
        count = int(share * len(self.returns))
        if count:
            self._forget(self.returns.argsort(stable=True)[:count])

    def _forget(self, episodes: Tensor) -> None:
        kept = torch.ones(len(self.lengths), dtype=torch.bool, device=self.device)
        kept[episodes] = False
        steps = kept.repeat_interleave(self.lengths)
        self._free = torch.cat([self._free, self.slots[~steps]])
        self.slots, self.lengths, self.returns = self.slots[steps], self.lengths[kept], self.returns[kept]
        self._count_down()

    def state_dict(self) -> dict[str, Any]:
        """The whole episodes; what is open is forgotten at every restart point."""
        return {
            "obs": self.obs[self.slots],
            "action": self.action[self.slots],
            "reward": self.reward[self.slots],
            "lengths": self.lengths.clone(),
            "returns": self.returns.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`; where the capacity is smaller now, the best episodes that fit are kept."""
        lengths, returns = state["lengths"].to(self.device), state["returns"].to(self.device)
        best = returns.argsort(descending=True, stable=True)
        fits = torch.zeros(len(lengths), dtype=torch.bool, device=self.device)
        fits[best] = lengths[best].cumsum(0) <= self.capacity
        steps = fits.repeat_interleave(lengths)
        self.lengths, self.returns = lengths[fits], returns[fits]
        order = torch.arange(self.capacity, device=self.device)
        self.slots, self._free = order[: int(steps.sum())], order[int(steps.sum()) :]
        for name, column in (("obs", self.obs), ("action", self.action), ("reward", self.reward)):
            column[self.slots] = state[name].to(self.device)[steps]
        self._count_down()
        self._forget_open()
