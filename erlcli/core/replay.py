"""Experience replay: one ring of rows for all environments.

A row is one step of all N environments, as in a `Rollout`, so that the observation that follows a transition is found
in the same column of the next row and is not stored twice. There are three exceptions, and each is taken care of when
rows are added:

* The newest rows are followed by nothing yet. The ring has one row more than its capacity, which holds their next
  observations; the next rollout begins with these very observations and takes this row over.
* Where an environment reset within its last step, the next row is of another episode: the true last observation is
  kept beside the ring, for as long as its row lives.
* Where a rollout does not begin with what its predecessor ended with, since environments were reset in between (at a
  restart point, or after a failure), the open episodes are ended as truncated, with that observation as their last.

Rows of an environment that were only a reset (`valid` is False) are kept for their observations, which environments
with next-step autoreset put there, but are neither drawn nor summed over.

Dimension letters: R rows of the ring, T rows of a rollout, N environments, B batch, K ended episodes, S steps of an
n-step sum. A flat index is row * N + environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from erlcli.core.pages import zeros
from erlcli.core.prioritized import Priorities, SumTree
from erlcli.core.replay_storage import FinalsRing, layout
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, FinalObs, Rollout
from erlcli.errors import DamagedError

TERMINATED, TRUNCATED, VALID = 1, 2, 4  # bits of a row's flags


class Replay:
    """The ring; see the module's docstring.

    Args:
        obs: the observation space.
        action_shape: of one action in the policy's units.
        action_dtype: of actions.
        num_envs: N.
        capacity: transitions kept; rounded down to whole rows of N, at least one.
        gamma: discount.
        n_step: rewards summed before bootstrapping.
        device: where batches are wanted.
        storage: where rows are kept; `device` or the CPU.
        priorities: None draws uniformly.

    Attributes:
        rows: capacity in rows.
        end: rows that were ever added.
        size: rows that are there, the newest ones; those from `end - size` on.
        beta: exponent of the importance weights of the draws to come.
    """

    def __init__(
        self,
        obs: Box,
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
        *,
        num_envs: int,
        capacity: int,
        gamma: float,
        n_step: int = 1,
        device: torch.device | None = None,
        storage: torch.device | None = None,
        priorities: Priorities | None = None,
    ) -> None:
        self.num_envs, self.priorities, self.beta = num_envs, priorities, 1.0
        self.device = device or torch.device("cpu")
        self.storage = storage or self.device
        self.rows = max(1, capacity // num_envs)
        self._ring = self.rows + 1
        self._total = self._ring * num_envs
        shapes = layout(obs, action_shape, action_dtype, num_envs, capacity)
        made = {k: zeros(shape, dtype, self.storage) for k, (shape, dtype) in shapes.items()}
        self._obs, self._action, self._reward = made["obs"], made["action"], made["reward"]  # (R, N, ...) each
        self._flags = made["flags"]  # (R, N) bits
        self._slot = made["slot"].fill_(-1)  # (R, N) where in `_finals` the last observation is; -1 for nowhere
        self._order = made["order"]  # (R * N,) a ring of the flat indices that can be drawn, the oldest first
        self._finals = FinalsRing(obs, self.storage)
        self._drawable = np.zeros(self._ring, dtype=np.int64)  # transitions of each row that can be drawn
        self._ended = np.zeros(self._ring, dtype=np.int64)  # entries in `_finals` of each row
        self._first = self._count = 0  # of `_order`
        self.end = self.size = 0
        self._powers = torch.tensor([gamma**k for k in range(n_step + 1)], device=self.storage)  # (S + 1,)
        self._ahead = torch.arange(n_step, device=self.storage) * num_envs  # (S,)
        self._ones = torch.ones(0, device=self.device)
        self._tree = SumTree(self._total, self.storage) if priorities else None
        self._largest = torch.ones((), dtype=torch.float64, device=self.storage)

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._count

    @property
    def row_bytes(self) -> int:
        """Memory of one row of the N environments."""
        tensors = (self._obs, self._action, self._reward, self._flags)
        return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)

    @property
    def drawn_bytes(self) -> int:
        """Memory of one drawn transition."""
        obs, action = (x[0, 0].numel() * x.element_size() for x in (self._obs, self._action))
        return 2 * obs + action + 20  # reward, discount, weight: 4 each; index: 8

    def add(self, rollout: Rollout) -> int:
        """Take in a rollout; the oldest rows make room.

        Returns:
            How many of its transitions can be drawn, which are those that are valid.
        """
        length = len(rollout.reward)
        if length > self.rows:
            raise ValueError(f"rollout: {length} rows, the replay has room for {self.rows}")
        rollout = rollout.to(self.storage)
        if self.size:
            self._end_what_was_reset(rollout.obs[0])
        self._evict(self.size + length - self.rows)
        flags = rollout.terminated * TERMINATED + rollout.truncated * TRUNCATED + rollout.valid * VALID
        for source, target in self._spans(self.end, length):
            self._obs[target] = rollout.obs[source]
            self._action[target] = rollout.action[source]
            self._reward[target] = rollout.reward[source]
            self._flags[target] = flags[source]
            self._slot[target] = -1
        head = self.end % self._ring
        tail = (self.end + length) % self._ring
        self._obs[tail] = rollout.obs[-1]
        self._flags[tail] = 0
        valid = rollout.valid.flatten().nonzero().squeeze(1).add_(head * self.num_envs).remainder_(self._total)
        self._append(valid)
        for t, drawable in enumerate(rollout.valid.sum(1).tolist()):
            self._drawable[(head + t) % self._ring] = drawable
        self._keep_finals(rollout.finals(), head)
        self.end += length
        self.size = min(self.size + length, self.rows)
        if self._tree is not None:
            touched = torch.arange((length + 1) * self.num_envs, device=self.storage)
            touched.add_(head * self.num_envs).remainder_(self._total)
            fresh = (self._flags.view(-1)[touched] & VALID > 0) * self._largest
            self._tree.set(touched, fresh)
        return len(valid)

    def _spans(self, first: int, length: int) -> list[tuple[slice, slice]]:
        """Slices of a rollout, and of the ring where its rows go; two where they run over the edge."""
        head = first % self._ring
        before = min(length, self._ring - head)
        spans = [(slice(0, before), slice(head, head + before))]
        if before < length:
            spans.append((slice(before, length), slice(0, length - before)))
        return spans

    def _end_what_was_reset(self, first_obs: Tensor) -> None:
        """Truncate the open episodes of environments that are not where the newest rows left them."""
        tail, last = self._obs[self.end % self._ring], (self.end - 1) % self._ring
        elsewhere = (tail != first_obs).view(self.num_envs, -1).any(1)
        flags = self._flags[last]
        lost = (elsewhere & (flags & VALID > 0) & (self._slot[last] < 0)).nonzero().squeeze(1)  # (K,)
        if not len(lost):
            return
        flags[lost] |= (flags[lost] & TERMINATED == 0) * TRUNCATED
        where = torch.stack([torch.full_like(lost, 0), lost], dim=1)
        self._keep_finals(FinalObs(where, tail[lost]), last)

    def _evict(self, rows: int) -> None:
        """Forget the oldest rows."""
        if rows <= 0:
            return
        gone = np.arange(self.end - self.size, self.end - self.size + rows) % self._ring
        drawable = int(self._drawable[gone].sum())
        self._first = (self._first + drawable) % self._total
        self._count -= drawable
        self._finals.drop(int(self._ended[gone].sum()))
        self._ended[gone] = 0

    def _drop(self, rows: int) -> None:
        """Have the oldest rows no more, as if newer ones had taken their places."""
        if self._tree is not None:
            gone = self._flat(self.size)[: rows * self.num_envs]
            self._tree.set(gone, torch.zeros(len(gone), dtype=torch.float64, device=self.storage))
        self._evict(rows)
        self.size -= rows

    def _append(self, flat: Tensor) -> None:
        """Make the transitions at the flat indices ones that can be drawn."""
        start = (self._first + self._count) % self._total
        before = min(len(flat), self._total - start)
        self._order[start : start + before] = flat[:before]
        self._order[: len(flat) - before] = flat[before:]
        self._count += len(flat)

    def _keep_finals(self, final: FinalObs, head: int) -> None:
        """Store last observations of rows counted from row `head` of the ring."""
        if not len(final.index):
            return
        order = final.index[:, 0].argsort(stable=True)  # rows are forgotten in their order
        index, obs = final.index[order], final.obs[order]
        if len(index) > self._finals.free:
            moved = self._finals.grow(len(index))
            kept = self._slot >= 0
            self._slot[kept] = moved[self._slot[kept].long()]
        row = (index[:, 0] + head) % self._ring
        self._slot[row, index[:, 1]] = self._finals.put(obs)
        np.add.at(self._ended, row.cpu().numpy(), 1)

    def sample(self, batch_size: int, generator: torch.Generator) -> Transitions:
        """Draw transitions with replacement, uniformly or by priority.

        Args:
            batch_size: B.
            generator: on `storage`.
        """
        if not self._count:
            raise ValueError("replay: there is nothing to draw from")
        if self._tree is None:
            drawn = torch.randint(self._count, (batch_size,), generator=generator, device=self.storage)
            index = self._order.index_select(0, drawn.add_(self._first).remainder_(self._total)).long()
        else:
            index = self._tree.sample(batch_size, generator)
        columns = [*self._gather(index), self._weights(index), index]
        if self.storage != self.device:
            columns = [column.pin_memory().to(self.device, non_blocking=True) for column in columns]
        return Transitions(*columns)

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Observation, action, reward, next observation and discount of the rows at (B,) flat indices."""
        obs = self._obs.flatten(0, 1)
        reward, steps, last = self._sum_rewards(index)
        flags = self._flags.view(-1).index_select(0, last)
        discount = self._powers[steps] if isinstance(steps, int) else self._powers.index_select(0, steps)
        discount = discount * (flags & TERMINATED == 0)
        next_obs = obs.index_select(0, (last + self.num_envs).remainder_(self._total))
        if len(self._finals):
            slot = self._slot.view(-1).index_select(0, last)
            final = self._finals.obs.index_select(0, slot.clamp(min=0))
            next_obs = torch.where((slot >= 0).view(-1, *[1] * (obs.ndim - 1)), final, next_obs)
        action = self._action.flatten(0, 1).index_select(0, index)
        return obs.index_select(0, index), action, reward, next_obs, discount

    def _sum_rewards(self, index: Tensor) -> tuple[Tensor, Tensor | int, Tensor]:
        """Discounted sums (B,) of the rewards ahead, of how many steps (B,) each, and the flat index of the last step.

        A sum goes on to the next row where this one ends no episode and the next one is a transition. The row after the
        newest is none, so that sums end there too.
        """
        rewards = self._reward.view(-1)
        if len(self._ahead) == 1:
            return rewards.index_select(0, index), 1, index
        steps = (index.unsqueeze(1) + self._ahead).remainder_(self._total)  # (B, S)
        shape, flat = steps.shape, steps.view(-1)
        flags = self._flags.view(-1).index_select(0, flat).view(shape)
        goes_on = (flags[:, :-1] & (TERMINATED | TRUNCATED) == 0) & (flags[:, 1:] & VALID > 0)
        within = torch.ones(shape, dtype=torch.bool, device=index.device)
        within[:, 1:] = goes_on.cumprod(1) > 0
        reward = rewards.index_select(0, flat).view(shape).masked_fill_(~within, 0.0) @ self._powers[:-1]
        count = within.sum(1)
        return reward, count, steps.gather(1, count.unsqueeze(1) - 1).squeeze(1)

    def _weights(self, index: Tensor) -> Tensor:
        """(count * P(i))^-beta over the largest of the batch; ones for uniform draws."""
        if self._tree is None:
            if len(self._ones) != len(index):
                self._ones = torch.ones(len(index), device=self.storage)
            return self._ones
        weight = (self._tree[index] * (self._count / self._tree.total)).pow_(-self.beta)
        return (weight / weight.max()).to(torch.float32)

    def update_priorities(self, index: Tensor, td_error: Tensor) -> None:
        """Set the priorities of rows by their newest TD errors; does nothing where draws are uniform.

        Args:
            index: (B,) of `Transitions`.
            td_error: (B,), of either sign.
        """
        if self._tree is None or self.priorities is None:
            return
        # What is not finite is reported as divergence by the optimisers; here it would only break the sums.
        size = td_error.detach().to(self.storage, torch.float64).abs().nan_to_num_(nan=0.0, posinf=1e30)
        priority = size.add_(self.priorities.floor).pow_(self.priorities.alpha)
        torch.maximum(self._largest, priority.max(), out=self._largest)
        self._tree.set(index.to(self.storage), priority)

    def rollout(self, first: int, last: int) -> Rollout:
        """Rows `first ... last - 1`, counted like `end`, as a rollout that `add` takes in again, on the CPU."""
        if not self.end - self.size <= first < last <= self.end:
            raise ValueError(f"rows {first} to {last}: there are {self.end - self.size} to {self.end}")
        ring = [target for _, target in self._spans(first, last - first)]

        def rows(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[span] for span in ring]).cpu()

        flags, slot = rows(self._flags), rows(self._slot)
        index = (slot >= 0).nonzero()
        kept = self._finals.obs[slot[slot >= 0].long().to(self.storage)].cpu()
        return Rollout(
            torch.cat([rows(self._obs), self._obs[last % self._ring].unsqueeze(0).cpu()]),
            rows(self._action),
            rows(self._reward),
            flags & TERMINATED > 0,
            flags & TRUNCATED > 0,
            flags & VALID > 0,
            FinalObs(index, kept),
            {},
            0,
        )

    def begin(self, first: int) -> None:
        """Count rows from `first` on, before any is added: rows come back to the places in the ring they had."""
        if self.end:
            raise ValueError("begin: the replay holds rows already")
        self.end = first

    def state_dict(self) -> dict[str, Any]:
        """Where the ring is, and priorities; the rows themselves are saved in parts, see `rollout`."""
        state: dict[str, Any] = {"end": self.end, "size": self.size}
        if self._tree is not None:
            state["largest"] = self._largest.clone()
            state["priority"] = self._tree[self._flat(self.size)].cpu()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`, once the rows are back.

        Raises:
            DamagedError: these are not the rows that were there.
        """
        wanted = int(state["end"]), min(int(state["size"]), self.rows)
        if self.size > wanted[1]:  # there was less room, and the oldest part holds more than fitted then
            self._drop(self.size - wanted[1])
        if (self.end, self.size) != wanted:
            raise DamagedError(
                "the checkpoint's replay is not whole",
                expected=f"{wanted[1]:,} rows, the last of them row {wanted[0]:,}",
                found=f"{self.size:,} rows, the last of them row {self.end:,}",
            )
        if self._tree is not None and "priority" in state:
            self._largest.copy_(state["largest"])
            self._tree.set(self._flat(self.size), state["priority"].to(self.storage)[-self.size * self.num_envs :])

    def _flat(self, rows: int) -> Tensor:
        """Flat indices of the newest `rows` rows, the oldest first."""
        first = (self.end - rows) * self.num_envs
        return (torch.arange(rows * self.num_envs, device=self.storage) + first).remainder_(self._total)
