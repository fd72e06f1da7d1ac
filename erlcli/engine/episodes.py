"""Returns and lengths of training episodes, from the rollouts alone: the same for every sampler, and for one learner
with all environments as for several that share them.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from erlcli.core.collective import ALONE, Collective
from erlcli.core.types import Rollout

WINDOW = 100  # episodes that the training return is averaged over, the field's habit


class EpisodeTracker:
    """Follows N environments over rollouts.

    Args:
        num_envs: N, of this learner.
        collective: the group of learners.

    Attributes:
        episodes: ended so far, of all learners, as are the others.
        returns: of the last `WINDOW` episodes.
        lengths: of the same.
    """

    def __init__(self, num_envs: int, collective: Collective = ALONE) -> None:
        self._collective = collective
        self.episodes = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self._return = torch.zeros(num_envs, dtype=torch.float64)
        self._length = torch.zeros(num_envs, dtype=torch.int64)

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout; its rows that are not valid count for nothing.

        Where it is trained on other rewards or ends than the game's own, the game's count.
        """
        game = rollout.game
        ended = (rollout.terminated | rollout.truncated if game is None else game.over & rollout.valid).cpu()
        reward = rollout.reward if game is None else game.reward
        totals = reward.masked_fill(~rollout.valid, 0.0).cpu().to(torch.float64).cumsum(0)  # (T, N)
        counts = rollout.valid.cpu().to(torch.int64).cumsum(0)
        ends = ended.nonzero().tolist()  # in order of time, as the window wants it
        taken_return, taken_count = torch.zeros_like(self._return), torch.zeros_like(self._length)
        rows: list[tuple[int, float, int]] = []  # time of the end, return, length
        for t, n in ends:
            total = float(self._return[n] + totals[t, n] - taken_return[n])
            rows.append((t, total, int(self._length[n] + counts[t, n] - taken_count[n])))
            self._return[n] = 0.0
            self._length[n] = 0
            taken_return[n], taken_count[n] = totals[t, n], counts[t, n]
        self._return += totals[-1] - taken_return
        self._length += counts[-1] - taken_count
        self._take_in(rows)

    def _take_in(self, rows: list[tuple[int, float, int]]) -> None:
        """Add the episodes that ended in a rollout, in order of time, to the window; with the other learners' ones."""
        told = self._collective.gather([len(rows), rows[-WINDOW:]])
        self.episodes += sum(count for count, _ in told)
        ended = sorted((row for _, newest in told for row in newest), key=lambda row: row[0])
        self.returns = [*self.returns, *(row[1] for row in ended)][-WINDOW:]
        self.lengths = [*self.lengths, *(row[2] for row in ended)][-WINDOW:]

    def restart(self) -> None:
        """Every environment was reset: open episodes never count."""
        self._return.zero_()
        self._length.zero_()

    def metrics(self) -> dict[str, float | Tensor]:
        """Means over the window; nothing before the first episode ends."""
        if not self.returns:
            return {}
        return {
            "episode/return": sum(self.returns) / len(self.returns),
            "episode/length": sum(self.lengths) / len(self.lengths),
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON values; open episodes are left out, since a restart point resets them."""
        return {"episodes": self.episodes, "returns": self.returns, "lengths": self.lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.episodes = int(state["episodes"])
        self.returns = [float(x) for x in state["returns"]]
        self.lengths = [int(x) for x in state["lengths"]]
