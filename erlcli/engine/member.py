"""Who a learner is among all learners of its run, and how it finds the others. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

ROLE = "learner"


@dataclass(frozen=True)
class Member:
    """One learner.

    Attributes:
        rank: 0 for the one that writes down what the run does.
        world_size: learners of the run.
        number: of this one among those on its machine.
        rendezvous: where they meet, as torch.distributed has it: `file:///path` of a file that none has used yet, or
            `env://` where torchrun has started them; empty for a single learner.
    """

    rank: int = 0
    world_size: int = 1
    number: int = 0
    rendezvous: str = ""

    @property
    def name(self) -> str:
        """Of its process, in heartbeats, events and errors."""
        return name_of(self.rank)

    def to_argument(self) -> str:
        """For a command line; `from_argument` gives the same member back."""
        return f"{self.rank}/{self.world_size}/{self.number}@{self.rendezvous}"

    @staticmethod
    def from_argument(text: str) -> Member:
        """The inverse of `to_argument`."""
        numbers, _, rendezvous = text.partition("@")
        rank, world_size, number = map(int, numbers.split("/"))
        return Member(rank, world_size, number, rendezvous)


def name_of(rank: int) -> str:
    """Of a learner's process: `learner`, `learner-1`, `learner-2` ..."""
    return f"{ROLE}-{rank}" if rank else ROLE
