"""Learners in processes of their own, over torch.distributed: NCCL between GPUs, gloo between CPUs.

What is small and decides what happens next (flags, counters, JSON) goes over gloo, whatever the learners compute on, so
that it never waits for a GPU. A member that is gone is an error at once for those that wait for it, over gloo; over
NCCL the operation may hang, and whoever started the processes has to end them.

Dimension letters: B samples, R members.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from erlcli.core.collective import Collective
from erlcli.core.normalize import pool
from erlcli.errors import PeerLostError

dist: Any = distributed  # its annotations leave out most of what is used here
TIMEOUT = timedelta(minutes=10)  # an operation that waits for longer fails; whoever supervises is faster, as a rule


class ProcessGroup(Collective):
    """A group of several learners, on the CPU until `use` says otherwise.

    Args:
        store: a `torch.distributed.Store` that all members can reach, fresh.
        rank: of this member.
        world_size: members in all.
        interface: network interface of gloo; empty leaves the choice to it.

    Raises:
        PeerLostError: the others don't come.
    """

    def __init__(self, store: Any, rank: int, world_size: int, interface: str = "") -> None:  # noqa: ANN401
        self.rank, self.world_size = rank, world_size
        self.device = torch.device("cpu")
        self._store = store
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = TIMEOUT
        options._devices = [gloo.create_device(interface=interface) if interface else gloo.create_default_device()]
        try:
            self._control = gloo(dist.PrefixStore("control", store), rank, world_size, options)
        except RuntimeError as error:
            raise lost(error) from None
        self._weights = self._control
        self._number = torch.zeros(1, dtype=torch.int64)
        self._sum, self._largest = dist.AllreduceOptions(), dist.AllreduceOptions()
        self._sum.reduceOp, self._largest.reduceOp = dist.ReduceOp.SUM, dist.ReduceOp.MAX

    def use(self, device: torch.device) -> None:
        """Compute on `device` from here on; of one kind in all members, and another GPU in each."""
        self.device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)
            store = dist.PrefixStore("weights", self._store)
            self._weights = dist.ProcessGroupNCCL(store, self.rank, self.world_size, TIMEOUT)

    def any(self, flag: bool) -> bool:
        """See `Collective.any`."""
        return bool(self._reduce(int(flag), self._largest))

    def sum(self, number: int) -> int:
        """See `Collective.sum`."""
        return self._reduce(number, self._sum)

    def _reduce(self, number: int, options: Any) -> int:  # noqa: ANN401
        self._number.fill_(number)
        wait(self._control.allreduce([self._number], options))
        return int(self._number)

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - JSON
        """See `Collective.gather`."""
        text = json.dumps(value).encode()
        size = self._reduce(len(text), self._largest)
        row = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)  # blanks at the end mean nothing
        rows = torch.empty(self.world_size, size, dtype=torch.uint8)
        wait(self._control.allgather([list(rows.unbind())], [row]))
        return [json.loads(row.numpy().tobytes()) for row in rows]

    def mean_(self, tensor: Tensor) -> Tensor:
        """See `Collective.mean_`: one operation, after which all members hold the same bits."""
        wait(self._weights.allreduce([tensor], self._sum))
        return tensor.div_(self.world_size)

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """See `Collective.broadcast_`."""
        group = self._weights if tensor.device.type == self.device.type else self._control
        options = dist.BroadcastOptions()
        options.rootRank = 0
        whole = tensor.contiguous()
        wait(group.broadcast([whole], options))
        return tensor if whole is tensor else tensor.copy_(whole)

    def moments(self, samples: Tensor, valid: Tensor | None = None) -> tuple[int | Tensor, Tensor, Tensor]:
        """See `Collective.moments`; exact but for rounding in the precision of the samples."""
        count, mean, variance = super().moments(samples, valid)
        size = mean.numel()
        rows = samples.new_zeros(self.world_size, 1 + 2 * size, dtype=torch.float64)
        rows[self.rank, 0] = count
        rows[self.rank, 1 : 1 + size], rows[self.rank, 1 + size :] = mean.flatten(), variance.flatten()
        wait(self._weights.allreduce([rows], self._sum))  # each row has one member's numbers, and zeros of the others
        means, variances = (part.reshape(-1, *mean.shape) for part in (rows[:, 1 : 1 + size], rows[:, 1 + size :]))
        total, mean_of_all, variance_of_all = pool(rows[:, 0], means, variances)
        return int(total), mean_of_all.to(samples.dtype), variance_of_all.to(samples.dtype)

    def std_mean(self, samples: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Collective.std_mean`."""
        _, mean, variance = self.moments(samples.to(torch.float64), valid)
        return variance.sqrt().to(samples.dtype), mean.to(samples.dtype)


def wait(work: Any) -> None:  # noqa: ANN401 - distributed.Work
    """Until it is done; over NCCL, until the GPU knows what it has to wait for.

    Raises:
        PeerLostError: another member is gone, or silent for too long.
    """
    try:
        work.wait()
    except RuntimeError as error:
        raise lost(error) from None


def lost(error: RuntimeError) -> PeerLostError:
    """What a failed operation means: nothing is wrong here, but with another member."""
    return PeerLostError(
        "another learner is gone",
        expected="learners that live as long as the run",
        found=str(error).splitlines()[0][:200] if str(error) else type(error).__name__,
        remedy="errors/ of the run says why the other one left",
    )
