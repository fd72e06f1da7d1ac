"""A cluster that is not there: a backend with simulated time, and members whose files are entries of a table.

Tests and benchmarks run the real orchestrator on it, with the real journal on a real disk. Simulated members learn by
a formula: each step adds to what they know, the more so the closer their step size is to a best one; a child inherits.
On top of that a slice throws them off their learning curve, up or down, which the next slices forget: a member that was
scored at a good moment looks better than its children will.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from erlcli.errors import DamagedError
from erlcli.runs.jsonl import Row
from erlcli.runs.members import Member
from erlcli.tournament.backends.base import Backend, Order, Report
from erlcli.tournament.draws import derive
from erlcli.tournament.ledger import Crown, Ledger
from erlcli.tournament.members import Store

RATE = "algorithm.learning_rate"
BEST_RATE = 1e-3
FULL = 10.0  # slices at the best rate after which most is learnt


@dataclass
class Simulated:
    """What would be in a member's directory.

    Attributes:
        steps: of the newest checkpoint.
        knowledge: in steps of the best rate.
        speed: share of a step that is learnt from.
        form: how far its newest weights are above their learning curve.
        levels: true mean return by steps of the checkpoints.
    """

    steps: int
    knowledge: float
    speed: float
    form: float = 0.0
    levels: dict[int, float] = field(default_factory=dict)


@dataclass
class MemoryStore(Store):
    """Members in a table, which outlives an orchestrator as a disk does.

    Attributes:
        members: by id.
        crowned: champions, in order.
        damaged: members whose checkpoints are.
        slice_steps: for the scale of what is learnt.
        wobble: standard deviation of what a slice does to a member's form, of which it forgets half.
    """

    slice_steps: int = 1000
    wobble: float = 0.0
    members: dict[str, Simulated] = field(default_factory=dict)
    crowned: list[Crown] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)

    def path(self, member: str) -> Path:
        """See `Store.path`."""
        return Path("members") / member

    def create(self, member: Member, row: Row) -> None:
        """See `Store.create`."""
        if member.id in self.members:
            return
        rate = float(member.parameters.get(RATE, BEST_RATE))
        speed = math.exp(-((math.log10(rate) - math.log10(BEST_RATE)) ** 2))
        sources = row.get("fused") or ([member.parent.id] if member.parent is not None else [])
        if missing := [name for name in sources if name not in self.members]:
            raise DamagedError(f"{missing[0]}: no checkpoint")
        knowledge = sum(self.members[name].knowledge for name in sources) / max(len(sources), 1)
        form = sum(self.members[name].form for name in sources) / max(len(sources), 1)
        self.members[member.id] = Simulated(int(row["steps"]), knowledge, speed, form)
        self._settle(self.members[member.id])

    def hold(self, member: str, steps: int) -> None:
        """Nothing here is ever removed."""

    def newest_steps(self, member: str, otherwise: int) -> int:
        """See `Store.newest_steps`."""
        return self.members[member].steps if member in self.members else otherwise

    def scored_checkpoint(self, member: str, steps: int) -> str:
        """See `Store.scored_checkpoint`."""
        return str(steps)

    def check(self, member: str, steps: int) -> None:
        """See `Store.check`."""
        if member in self.damaged:
            raise DamagedError(f"{member}: damaged")

    def crown(self, crown: Crown, row: Row) -> None:
        """See `Store.crown`."""
        if crown not in self.crowned:
            self.crowned.append(crown)

    def prune(self, ledger: Ledger) -> list[str]:
        """Nothing here is ever removed."""
        return []

    def train(self, member: str, to_steps: int) -> None:
        """A checkpoint further on."""
        files = self.members[member]
        trained = max(to_steps - files.steps, 0)
        share = min(trained / self.slice_steps, 1.0)
        files.knowledge += trained * files.speed
        files.steps = max(to_steps, files.steps)
        luck = _normal(member, files.steps, 0)
        files.form += share * (self.wobble * luck - files.form / 2)
        self._settle(files)

    def _settle(self, files: Simulated) -> None:
        learnt = 1.0 - math.exp(-files.knowledge / (FULL * self.slice_steps))
        files.levels[files.steps] = -100.0 + 400.0 * learnt + files.form

    def mean(self, member: str, steps: int, seed: int, error: float) -> float:
        """What an evaluation of the checkpoint at `steps` gives; `error` is its standard error."""
        files = self.members[member]
        return files.levels.get(steps, files.levels[files.steps]) + error * _normal(member, steps, seed)


def _normal(member: str, steps: int, seed: int) -> float:
    """A standard normal draw, always the same for the same arguments (Box and Muller)."""
    random = Random(derive(seed, member, steps))
    return math.sqrt(-2.0 * math.log(1.0 - random.random())) * math.cos(2.0 * math.pi * random.random())


@dataclass
class _Job:
    """An order at work."""

    order: Order
    number: int
    started: float
    from_steps: int
    trained: bool = False


class SimulatedBackend(Backend):
    """See the module's docstring.

    Args:
        store: of the members.
        slice_seconds: that a slice takes, by member and number of the order.
        evaluate_seconds: that an evaluation takes.
        noise: standard deviation of an episode's return.
        charge: whether the time that the orchestrator really takes passes for the slots, too.
        fails: an error for an order, as `ErlError.to_json` gives it with `oom` beside it; None for one that works.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        slice_seconds: Callable[[str, int], float] = lambda member, number: 1.0,
        evaluate_seconds: float = 0.1,
        noise: float = 5.0,
        charge: bool = False,
        fails: Callable[[Order, int, str], Row | None] = lambda order, number, slot: None,
    ) -> None:
        self.store = store
        self.clock = 1_000_000.0
        self.busy_seconds = 0.0
        self.orders: list[tuple[float, str, Order]] = []
        self.waits: list[float] = []  # of slots, between two orders
        self._slice_seconds, self._evaluate_seconds = slice_seconds, evaluate_seconds
        self._noise, self._charge, self._fails = noise, charge, fails
        self._jobs: dict[str, _Job] = {}
        self._events: list[tuple[float, int, str]] = []
        self._ready: list[Report] = []
        self._free_since: dict[str, float] = {}
        self._left = time.perf_counter()
        self._number = 0

    def resize(self, slots: Sequence[str]) -> None:
        """See `Backend.resize`."""
        for name in slots:
            self._free_since.setdefault(name, self.clock)
        for name in [name for name in self._free_since if name not in slots]:
            del self._free_since[name]
            self._jobs.pop(name, None)

    def capacity(self) -> list[str]:
        """See `Backend.capacity`."""
        return list(self._free_since)

    def start(self, slot: str, order: Order) -> None:
        """See `Backend.start`."""
        if slot in self._jobs or slot not in self._free_since:
            raise ValueError(f"{slot} is not free")
        self._pass_time()
        self._number += 1
        self.orders.append((self.clock, slot, order))
        self.waits.append(self.clock - self._free_since[slot])
        job = _Job(order, self._number, self.clock, self.store.newest_steps(order.member, 0))
        self._jobs[slot] = job
        first = self._slice_seconds(order.member, self._number) if order.train else self._evaluate_seconds
        heapq.heappush(self._events, (self.clock + first, self._number, slot))

    def stop(self, slot: str, seconds: float) -> None:
        """See `Backend.stop`: half of what is left of a slice was done."""
        job = self._jobs.pop(slot, None)
        if job is None:  # its report was given by the same poll as the one that led to this
            return
        facts: Row = {}
        if job.order.train and not job.trained:
            until = job.order.until_steps or job.from_steps
            self.store.train(job.order.member, (job.from_steps + until) // 2)
            facts = {"steps": self.store.members[job.order.member].steps, "seconds": self.clock - job.started}
        self._free(slot, job, self.clock)
        self._ready.append(Report(slot, job.order.member, "stopped", facts))

    def poll(self, seconds: float) -> list[Report]:
        """See `Backend.poll`: time goes on to the next event."""
        self._pass_time()
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        reports: list[Report] = []
        while self._events and (not reports or self._events[0][0] <= self.clock):
            due, number, slot = heapq.heappop(self._events)
            job = self._jobs.get(slot)
            if job is not None and job.number == number:
                self.clock = max(self.clock, due)
                reports.append(self._happen(slot, job, due))
        if not reports:
            self.clock += seconds
        self._left = time.perf_counter()
        return reports

    def now(self) -> float:
        """See `Backend.now`."""
        return self.clock

    def close(self) -> None:
        """See `Backend.close`."""
        self._jobs.clear()

    def _happen(self, slot: str, job: _Job, due: float) -> Report:
        """What a slot did at `due`, which may be a while ago: an orchestrator that is slow lets it stand idle."""
        order = job.order
        error = self._fails(order, job.number, slot)
        if error is not None:
            del self._jobs[slot]
            self._free(slot, job, due)
            facts = {"error": error, "oom": bool(error.get("oom"))}
            return Report(slot, order.member, "failed", facts)
        if order.train and not job.trained:
            job.trained = True
            until = order.until_steps if order.until_steps is not None else job.from_steps + self.store.slice_steps
            self.store.train(order.member, until)
            heapq.heappush(self._events, (due + self._evaluate_seconds, job.number, slot))
            facts = {"steps": self.store.members[order.member].steps, "seconds": due - job.started}
            return Report(slot, order.member, "trained", {**facts, "why": "budget"})
        del self._jobs[slot]
        self._free(slot, job, due)
        steps = int(order.checkpoint) if order.checkpoint is not None else self.store.members[order.member].steps
        spread = self._noise / math.sqrt(order.episodes)
        mean = self.store.mean(order.member, steps, order.eval_seed, spread)
        facts = {"steps": steps, "mean": mean, "std": self._noise, "ci": [mean - 1.96 * spread, mean + 1.96 * spread]}
        return Report(slot, order.member, "scored", {**facts, "episodes": order.episodes})

    def _free(self, slot: str, job: _Job, at: float) -> None:
        self.busy_seconds += at - job.started
        self._free_since[slot] = at

    def _pass_time(self) -> None:
        """What the orchestrator took passes for everybody."""
        now = time.perf_counter()
        if self._charge:
            self.clock += now - self._left
        self._left = now
