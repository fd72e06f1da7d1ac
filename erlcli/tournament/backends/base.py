"""The interface between decisions and what carries them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from erlcli.runs.jsonl import Row
from erlcli.tournament import slots


@dataclass(frozen=True)
class Order:
    """What a slot is to do with a member.

    Attributes:
        member: its id.
        run: its directory.
        train: whether to train before it is evaluated.
        until_steps: steps at which a slice ends; None for one in seconds.
        seconds: that a slice may take; None for one in steps.
        checkpoint: name of the checkpoint to evaluate, where there is no training.
        episodes: of the evaluation.
        eval_seed: of its episodes.
        kind: of the evaluation, as the journal has it.
    """

    member: str
    run: str
    train: bool
    until_steps: int | None = None
    seconds: float | None = None
    checkpoint: str | None = None
    episodes: int = 20
    eval_seed: int = 1
    kind: Literal["slice", "confirm"] = "slice"


@dataclass(frozen=True)
class Report:
    """News from a slot.

    Attributes:
        slot: its name.
        member: id.
        event: `trained` (facts: steps, seconds, why, and setup_seconds before
            training began), after which the evaluation follows; or the last one of an order:
            `scored` (steps, mean, std, ci, episodes), `stopped` (steps and seconds of a slice that was broken off, and
            `user` where someone asked the member itself to stop), `failed` (error, and `oom` where a GPU had no
            memory left), or `lost` (reason: whatever happened to the slot, it was not the member's fault).
        facts: JSON values.
    """

    slot: str
    member: str
    event: Literal["trained", "scored", "stopped", "failed", "lost"]
    facts: Row = field(default_factory=dict)


class Backend(ABC):
    """Slots that train and evaluate, wherever they are."""

    @abstractmethod
    def resize(self, slots: Sequence[str]) -> None:
        """Have just these slots from now on. One that is gone has been stopped before, and is forgotten.

        Raises:
            RecipeError: a slot that there can't be.
        """

    @abstractmethod
    def capacity(self) -> list[str]:
        """Names of the slots that orders can be sent to: on a cluster, those that a node has room for."""

    def sharing(self, slot: str) -> list[str]:
        """Names of the slots that are on the same GPU, `slot` included; none where it has no GPU."""
        return slots.sharing(self.capacity(), slot)

    @abstractmethod
    def start(self, slot: str, order: Order) -> None:
        """Carry out an order at a slot that is free."""

    @abstractmethod
    def stop(self, slot: str, seconds: float) -> None:
        """Have the order at a slot end soon, a slice after a checkpoint; `stopped` follows if nothing else does.

        Args:
            slot: its name.
            seconds: that the checkpoint may take.
        """

    @abstractmethod
    def poll(self, seconds: float) -> list[Report]:
        """News, for which at most `seconds` are waited."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch, as the backend's clock has it."""

    @abstractmethod
    def close(self) -> None:
        """End everything at once."""
