"""What users and GPUs ask of a tournament while it runs: other slots, a member less or more, a pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erlcli.errors import ErlError
from erlcli.runs.jsonl import Row
from erlcli.tournament import births, slots

SETTLE_SECONDS = 3.0  # a node that comes or goes brings or takes several slots

if TYPE_CHECKING:
    from erlcli.tournament.evolve import Task
    from erlcli.tournament.orchestrator import Orchestrator


MOST = 4096  # slots


class Places:
    """Answers requests, and changes the slots.

    Args:
        orchestrator: whose they are.
    """

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._o = orchestrator
        self._crowded: dict[str, Task] = {}  # orders that were at work when their GPU lost a slot for want of memory
        self._shared: dict[str, Task] = {}  # orders that began when their GPU had several slots, leaving ones included
        self._missing: list[str] = []  # as the journal has it
        self._changed = 0.0  # when the slots that are missing became others; 0 while they are those of the journal

    def there(self) -> list[str]:
        """The slots that orders can be sent to."""
        capacity = set(self._o.backend.capacity())
        return [name for name in self._o.ledger.board.slots if name in capacity]

    def watch(self) -> None:
        """Write down which slots wait for a node, once that has settled."""
        there = self.there()
        missing = [name for name in self._o.ledger.board.slots if name not in there]
        now = self._o.backend.now()
        if missing == self._missing:
            self._changed = 0.0
        elif not self._changed:
            self._changed = now
        elif now - self._changed >= SETTLE_SECONDS:
            self._missing, self._changed = missing, 0.0
            self._o.record({"event": "capacity", "missing": missing})

    def answer(self, row: Row) -> None:
        """Do what a user asks for; the row that says so carries the request's id."""
        kind, request, member = row["do"], str(row.get("id", "")), str(row.get("member"))
        if kind in ("kill", "clone") and member not in (
            self._o.ledger.alive if kind == "kill" else self._o.ledger.board.members
        ):
            known = "nobody of that name is in the race"
            self._o.record({"event": "refuse", "do": kind, "reason": f"{member}: {known}", "request": request})
        elif kind == "kill":
            self.remove({"event": "retire", "member": member, "reason": "killed by a user", "request": request})
        elif kind == "clone":
            spawn = births.clone(self._o.ledger, self._o.recipe, member) | {"request": request}
            for written in self._o.record(spawn):
                self._o.create(written)
        elif kind == "slots":
            self._scale(row, request)
        else:
            if kind == "stop":
                self._o.stops.leaving = True
            self._o.record({"event": kind, "request": request})
            if kind != "resume":
                self._o.stops.ask(self._o.busy, "paused" if kind == "pause" else "stopped")

    def remove(self, row: Row) -> None:
        """Write down that a member is retired, as `row` says, once it has left its slot."""
        member = row["member"]
        slot = next((slot for slot, task in self._o.busy.items() if task.member == member), None)
        if slot is None:
            self._o.record(row)
            self._o.store.prune(self._o.ledger)
        else:
            self._o.killed[member] = row
            self._o.stops.ask([slot], "killed")

    def _scale(self, row: Row, request: str) -> None:
        """Other slots: members at those that go are checkpointed and parked."""
        names = [str(name) for name in row["slots"]] if isinstance(row.get("slots"), list) else []
        board = self._o.ledger.board
        try:
            if isinstance(row.get("count"), int):
                order = {member.id: place for place, member in enumerate(board.ranking(), start=1)}
                ranks = {slot: order[task.member] for slot, task in self._o.busy.items()}
                names = slots.resized(board.slots, ranks, min(max(row["count"], 0), MOST))
            slots.lay_out(names, (0,))
            self._o.backend.resize([*names, *(slot for slot in self._o.busy if slot not in names)])
        except ErlError as error:
            self._o.record({"event": "refuse", "do": "slots", "reason": error.message, "request": request})
            return
        self._o.record({"event": "slots", "slots": names, "request": request})
        self._leave()

    def _leave(self) -> None:
        self._o.stops.ask([slot for slot in self._o.busy if slot not in self._o.ledger.board.slots], "slot removed")
        self.fit()

    def fit(self) -> None:
        """Have the backend provide the slots there are, and those that are still to be left."""
        names = self._o.ledger.board.slots
        self._o.backend.resize([*names, *(slot for slot in self._o.busy if slot not in names)])

    def began(self, slot: str, task: Task) -> None:
        """An order was given to a slot."""
        if len(self._o.backend.sharing(slot)) > 1:
            self._shared[slot] = task

    def pack_less(self, slot: str, task: Task) -> bool:
        """After a GPU ran out of memory: one slot less on it, if it has another.

        Args:
            slot: whose order failed of it.
            task: that order.

        Returns:
            Whether others had a share of the memory, so that the member is not to blame.
        """
        shared = self._shared.pop(slot, None) is task
        if self._crowded.pop(slot, None) is task:
            return True
        names = self._o.ledger.board.slots
        shares = [name for name in self._o.backend.sharing(slot) if name in names]
        if len(shares) < 2:
            return shared
        # Those at work beside it may have run out of the same memory, and their news come later.
        self._crowded |= {name: self._o.busy[name] for name in shares if name in self._o.busy}
        fewer = [name for name in names if name != shares[-1]]
        self._o.record({"event": "slots", "slots": fewer, "why": f"out of memory at {slot}: a GPU has {len(shares)}"})
        self._leave()
        return True
