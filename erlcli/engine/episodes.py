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
from erlcli.core.seams import Seam
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
        self._open = torch.zeros(2, num_envs, dtype=torch.float64)  # returns and lengths of open episodes
        self._seam = Seam()
        self._count = torch.zeros((), dtype=torch.int64)
        # Episode k is at k % W; what is of no episode is written behind.
        self._rings = torch.zeros(2, WINDOW + 1, dtype=torch.float64)  # returns and lengths

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout; its rows that are not valid count for nothing.

        Where it is trained on other rewards or ends than the game's own, the game's count.
        """
        self._move(rollout.reward.device)
        reset = self._seam.reset_before(rollout.obs)
        if reset is not None:
            self._open.masked_fill_(reset, 0.0)  # such an episode never counts
        game, valid = rollout.game, rollout.valid
        ended = rollout.terminated | rollout.truncated if game is None else game.over & valid
        reward = rollout.reward if game is None else game.reward
        steps = torch.stack([reward.masked_fill(~valid, 0.0).to(torch.float64), valid.to(torch.float64)])  # (2, T, N)
        # Rollouts of environments on the host may be looked at.
        if rollout.unsure is not None and self._collective.world_size == 1 and not bool(ended.any()):
            self._open += steps.sum(1)
            return
        time = torch.arange(len(reward), device=reward.device).unsqueeze(1)
        last = torch.where(ended, time, -1).cummax(0).values  # (T, N) the last end up to and with each step
        sums = _sums(self._open, steps.cumsum(1), last)
        if self._collective.world_size > 1:
            ended, sums = self._of_all(ended, sums)
        self._take_in(ended.flatten(), sums.flatten(1))

    def _of_all(self, ended: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """What `_take_in` is to be given of all learners' episodes; they wait for each other, and so for the device."""
        time, env = ended.nonzero(as_tuple=True)
        returns, lengths = sums[:, time, env].tolist()
        mine = list(zip(time.tolist(), returns, lengths, strict=True))
        told = self._collective.gather([len(mine), mine[-WINDOW:]])
        newest = sorted((row for _, rows in told for row in rows), key=lambda row: row[0])
        self._count += sum(count for count, _ in told) - len(newest)  # none of the others would stay in the window
        device, numbers = ended.device, list(zip(*newest, strict=True)) or [(), (), ()]
        return (
            torch.ones(len(newest), dtype=torch.bool, device=device),
            torch.tensor(numbers[1:], dtype=torch.float64, device=device),
        )

    def _take_in(self, ended: Tensor, sums: Tensor) -> None:
        """Add the episodes that ended in a rollout, among (T N) and (2, T N), to the window in order of time."""
        if not len(ended):
            return
        rank = ended.cumsum(0)
        kept = ended & (rank > rank[-1] - WINDOW)
        slot = torch.where(kept, (self._count + rank - 1) % WINDOW, WINDOW)
        self._rings.scatter_(1, slot.expand(2, -1), sums)
        self._count += rank[-1]

    def restart(self) -> None:
        """Every environment was reset: open episodes never count."""
        self._open.zero_()
        self._seam.forget()

    def numbers(self) -> Tensor:
        """(1 + 2 W) float64 for `Episodes.of`, which can be read back without a sync."""
        return torch.cat([self._count.view(1).to(torch.float64), self._rings[:, :-1].flatten()])

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
        rows = [returns, state["lengths"]]
        self._rings[:, places] = torch.tensor(rows, dtype=torch.float64, device=self._rings.device)

    def _move(self, device: torch.device) -> None:
        if self._open.device != device:
            for name, value in list(vars(self).items()):
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(device))


def _sums(carry: Tensor, totals: Tensor, last: Tensor) -> Tensor:
    """Sums of episodes up to and with each step.

    Args:
        carry: (2, N) sums of the episodes that were open before the rollout; becomes those of the ones open after it.
        totals: (2, T, N) sums since the start of the rollout.
        last: (T, N) the last end up to and with each step, -1 where there is none.

    Returns:
        (2, T, N).
    """
    before = torch.cat([torch.full_like(last[:1], -1), last])  # (T + 1, N) where the episode before ended
    first = before < 0
    taken = totals.gather(1, before.clamp(min=0).expand(2, -1, -1)).masked_fill(first, 0.0)
    begun = torch.where(first, carry.unsqueeze(1), 0.0) - taken  # (2, T + 1, N) to be added to what is summed so far
    carry.copy_(begun[:, -1] + totals[:, -1])
    return begun[:, :-1] + totals
