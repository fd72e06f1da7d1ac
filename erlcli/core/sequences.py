"""A rollout as sequences: stretches of one environment within one episode, which a memory runs through, or their parts.

Dimension letters: T time steps, N environments, R valid rows, P sequences, L longest sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from erlcli.core.types import Rollout


def restarts(rollout: Rollout) -> Tensor:
    """Where a memory is emptied before it sees `Rollout.obs`, (T + 1, N) bool.

    That is where an episode begins: at once after its last step where the env reset within the step (there is a final
    observation then, or there are all next observations), and one row later where the reset took a step of its own,
    which is not valid. An episode that is merely cut at the end of a rollout goes on with obs[T] as its last
    observation.

    Args:
        rollout: with a `start`.
    """
    if rollout.start is None:
        raise TypeError("the rollout is of a policy without a memory")
    if rollout.next_obs is not None:
        return torch.cat([rollout.start.fresh.unsqueeze(0), rollout.terminated | rollout.truncated])
    begins = torch.cat([rollout.start.fresh.unsqueeze(0), ~rollout.valid])
    index = rollout.final_obs.index
    begins[index[:, 0] + 1, index[:, 1]] = True
    return begins


@dataclass(frozen=True)
class Sequences:
    """The valid rows of a rollout, cut into sequences. No sequence goes over a restart or a row that is not valid.

    Where they are to be no longer than so many rows, the parts of a stretch go on from each other's states.

    Attributes:
        rows: (R,) int64, t * N + n of each valid row; environment by environment, each in the order of time.
        begin: (P,) int64, where each sequence begins within `rows`.
        length: (P,) int64, rows of each.
        env: (P,) int64, n of each.
        step: (P,) int64, t of each one's first row.
        goes_on: (P,) bool, whether it begins from the state that is there before that row, and not from an empty one.
    """

    rows: Tensor
    begin: Tensor
    length: Tensor
    env: Tensor
    step: Tensor
    goes_on: Tensor

    @staticmethod
    def of(valid: Tensor, begins: Tensor, longest: int | None = None) -> Sequences:
        """Cut a rollout.

        Args:
            valid: (T, N) bool.
            begins: (T, N) bool, see `restarts`.
            longest: rows of a sequence at most; None for no bound.
        """
        steps, envs = valid.shape
        place = valid.t().flatten().nonzero().squeeze(-1)  # (R,) n * T + t
        time, env = place % steps, place // steps
        begun = begins[time, env]
        head = (time == 0) | begun
        if longest is not None:
            row = torch.arange(len(place), device=place.device)
            since = row - torch.where(head, row, 0).cummax(0).values if len(place) else row
            head = since % longest == 0
        begin = head.nonzero().squeeze(-1)
        length = torch.diff(begin, append=begin.new_tensor([len(place)]))
        return Sequences(time * envs + env, begin, length, env[begin], time[begin], ~begun[begin])

    def parts(self, count: int, order: Tensor) -> list[Tensor]:
        """Whole sequences in about `count` parts of about equally many rows; none is empty.

        Args:
            count: of parts, at least 1.
            order: (P,) a permutation of the sequences.

        Returns:
            Numbers of sequences, each in one part.
        """
        middle = self.length[order].cumsum(0) - self.length[order] // 2 - 1  # row in the middle of each
        part = middle * count // max(len(self.rows), 1)
        sizes = torch.bincount(part, minlength=count).tolist()
        return [numbers for numbers in torch.split(order, sizes) if len(numbers)]

    def pack(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Some sequences in the order in which a memory takes them.

        Args:
            numbers: (P',) of the sequences.

        Returns:
            Places within `rows` of their rows, as `Memory.over_sequences` wants them; how many sequences have a first,
            second ... row, on the CPU; and the numbers by falling length.
        """
        numbers = numbers[self.length[numbers].argsort(descending=True, stable=True)]
        begin, length = self.begin[numbers], self.length[numbers]
        steps = torch.arange(int(length[0]), device=length.device).unsqueeze(-1)  # (L, 1)
        alive = steps < length  # (L, P')
        return (begin + steps)[alive], alive.sum(-1).cpu(), numbers
