"""Returns and lengths of training episodes, from the rollouts alone: the same for every sampler, and for one learner
with all environments as for several that share them.

Rollouts may be on a GPU, which is never waited for: which episodes ended is not looked up but masked.

Dimension letters: T time steps, N environments, W `WINDOW`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from erlcli.core.collective import ALONE, Collective
from erlcli.core.types import Rollout

WINDOW = 100  # episodes that the training return is averaged over, the field's habit


@dataclass(frozen=True)
class Episodes:
    """What is known of them on the host.

    Attributes:
        episodes: ended so far.
        returns: of the last `WINDOW` episodes, in order of time.
        lengths: of the same.
    """

    episodes: int
    returns: list[float]
    lengths: list[int]

    @staticmethod
    def of(numbers: Tensor) -> Episodes:
        """What `EpisodeTracker.numbers` has given, on the CPU."""
        count = int(numbers[0])
        rings = numbers[1:].view(2, WINDOW)
        ordered = rings[:, :count] if count <= WINDOW else rings.roll(-(count % WINDOW), dims=1)
        return Episodes(count, ordered[0].tolist(), ordered[1].to(torch.int64).tolist())

    def metrics(self) -> dict[str, float]:
        """Means over the window; nothing before the first episode ends."""
        if not self.returns:
            return {}
        return {
            "episode/return": sum(self.returns) / len(self.returns),
            "episode/length": sum(self.lengths) / len(self.lengths),
        }


class EpisodeTracker:
    """Follows N environments over rollouts, on the device where these are.

    Args:
        num_envs: N, of this learner.
        collective: the group of learners, whose episodes all count.
    """

    def __init__(self, num_envs: int, collective: Collective = ALONE) -> None:
        self._collective = collective
        self._return = torch.zeros(num_envs, dtype=torch.float64)  # of open episodes
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        self._next_obs: Tensor | None = None  # (N, *obs) that the next rollout begins with, unless envs are made anew
        self._count = torch.zeros((), dtype=torch.int64)
        # Episode k is at k % W; what is of no episode is written behind.
        self._returns = torch.zeros(WINDOW + 1, dtype=torch.float64)
        self._lengths = torch.zeros(WINDOW + 1, dtype=torch.int64)

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout; its rows that are not valid count for nothing.

        Where it is trained on other rewards or ends than the game's own, the game's count.
        """
        self._move(rollout.reward.device)
        self._forget_what_was_reset(rollout)
        game, valid = rollout.game, rollout.valid
        ended = rollout.terminated | rollout.truncated if game is None else game.over & valid
        reward = rollout.reward if game is None else game.reward
        time = torch.arange(len(reward), device=reward.device).unsqueeze(1)
        last = torch.where(ended, time, -1).cummax(0).values  # (T, N) the last end up to and with each step
        totals = reward.masked_fill(~valid, 0.0).to(torch.float64).cumsum(0)
        returns = _sums(self._return, totals, last)
        lengths = _sums(self._length, valid.to(torch.int64).cumsum(0), last)
        if self._collective.world_size > 1:
            ended, returns, lengths = self._of_all(ended, returns, lengths)
        self._take_in(ended, returns, lengths)

    def _forget_what_was_reset(self, rollout: Rollout) -> None:
        """Open episodes of environments that are not where the last rollout left them never count."""
        first = rollout.obs[0]
        if self._next_obs is not None:
            elsewhere = (self._next_obs != first).flatten(1).any(1) if first.ndim > 1 else self._next_obs != first
            self._return.masked_fill_(elsewhere, 0.0)
            self._length.masked_fill_(elsewhere, 0)
        self._next_obs = rollout.obs[-1].clone()

    def _of_all(self, ended: Tensor, returns: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `_take_in` is to be given of all learners' episodes; they wait for each other, and so for the device."""
        places = ended.nonzero(as_tuple=True)
        mine = list(zip(places[0].tolist(), returns[places].tolist(), lengths[places].tolist(), strict=True))
        told = self._collective.gather([len(mine), mine[-WINDOW:]])
        newest = sorted((row for _, rows in told for row in rows), key=lambda row: row[0])
        self._count += sum(count for count, _ in told) - len(newest)  # none of the others would stay in the window
        device, numbers = ended.device, list(zip(*newest, strict=True)) or [(), (), ()]
        return (
            torch.ones(len(newest), dtype=torch.bool, device=device),
            torch.tensor(numbers[1], dtype=torch.float64, device=device),
            torch.tensor(numbers[2], dtype=torch.int64, device=device),
        )

    def _take_in(self, ended: Tensor, returns: Tensor, lengths: Tensor) -> None:
        """Add the episodes that ended in a rollout, all of one shape, to the window in order of time."""
        ended = ended.flatten()
        if not len(ended):
            return
        rank = ended.cumsum(0)
        kept = ended & (rank > rank[-1] - WINDOW)
        slot = torch.where(kept, (self._count + rank - 1) % WINDOW, WINDOW)
        self._returns.scatter_(0, slot, returns.flatten())
        self._lengths.scatter_(0, slot, lengths.flatten())
        self._count += rank[-1]

    def restart(self) -> None:
        """Every environment was reset: open episodes never count."""
        self._return.zero_()
        self._length.zero_()
        self._next_obs = None

    def numbers(self) -> Tensor:
        """(1 + 2 W) float64 for `Episodes.of`, which can be read back without a sync."""
        return torch.cat([self._count.view(1).to(torch.float64), self._returns[:-1], self._lengths[:-1]])

    def now(self) -> Episodes:
        """What is known; waits for the device."""
        return Episodes.of(self.numbers().cpu())

    def state_dict(self) -> dict[str, Any]:
        """JSON values; open episodes are left out, since a restart point resets them."""
        now = self.now()
        return {"episodes": now.episodes, "returns": now.returns, "lengths": now.lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        count, returns = int(state["episodes"]), state["returns"]
        places = [(count - len(returns) + i) % WINDOW for i in range(len(returns))]
        self._count.fill_(count)
        self._returns[places] = torch.tensor(returns, dtype=torch.float64, device=self._returns.device)
        self._lengths[places] = torch.tensor(state["lengths"], dtype=torch.int64, device=self._lengths.device)

    def _move(self, device: torch.device) -> None:
        if self._return.device != device:
            for name, value in list(vars(self).items()):
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(device))


def _sums(carry: Tensor, totals: Tensor, last: Tensor) -> Tensor:
    """Sums of episodes up to and with each step.

    Args:
        carry: (N,) sums of the episodes that were open before the rollout; becomes those of the ones open after it.
        totals: (T, N) sums since the start of the rollout.
        last: (T, N) the last end up to and with each step, -1 where there is none.

    Returns:
        (T, N).
    """
    before = torch.cat([torch.full_like(last[:1], -1), last[:-1]])  # where the episode before ended
    first = before < 0
    taken = totals.gather(0, before.clamp(min=0)).masked_fill(first, 0)
    sums = torch.where(first, carry, 0) + totals - taken
    none = last[-1] < 0
    taken = totals.gather(0, last[-1:].clamp(min=0)).squeeze(0).masked_fill(none, 0)
    carry.copy_(torch.where(none, carry, 0) + (totals[-1] - taken))
    return sums
