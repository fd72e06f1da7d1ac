"""Slots of this machine: a warm process each, pinned to its GPU and cores."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from erlcli.engine.child import Child
from erlcli.engine.failures import Watch, died, hung, tail_of
from erlcli.errors import EnvError, RecipeError
from erlcli.runs.jsonl import Row, decode, encode
from erlcli.runs.layout import RunLayout
from erlcli.tournament.backends.base import Backend, Order, Report
from erlcli.tournament.slots import Slot, cores, gpus, lay_out

OTHER_SLOTS = "--slots N or --gpus LIST, of erl resume, or of erl scale while it runs"
STACK_SECONDS = 0.2  # that a hung process gets to write down where it is
LOOK_SECONDS = 1.0  # between two looks for hung processes


@dataclass(eq=False)
class _Worker:
    """A process at a slot.

    Attributes:
        slot: it is pinned to.
        child: the process.
        requests: file descriptor to write orders to.
        replies: file descriptor to read from.
        rest: of the last line read.
        order: it is at.
        number: of that order.
        trained: whether the order's slice is over.
        deadline: until when it may take to stop.
        heard: when it last gave a sign of life.
    """

    slot: Slot
    child: Child
    requests: int
    replies: int
    rest: bytes = b""
    order: Order | None = None
    number: int = 0
    trained: bool = False
    deadline: float | None = None
    heard: float = 0.0


class LocalBackend(Backend):
    """See the module's docstring.

    Args:
        layout: the tournament's directory.
        lock_fd: of its lock, which the processes hold, too: nobody takes it over while one of them lives.
        hang_seconds: after which a process that is in an environment counts as hung.
        visible: CUDA_VISIBLE_DEVICES by index of the GPU; those that are found here where it is None.
    """

    def __init__(
        self, layout: RunLayout, lock_fd: int, hang_seconds: float, visible: Mapping[int, str] | None = None
    ) -> None:
        self._layout, self._lock_fd, self._hang = layout, lock_fd, Watch(hang_seconds)
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._orders = 0
        self._look = 0.0
        self._visible = {gpu.index: gpu.visible for gpu in gpus()} if visible is None else visible
        self._cores = cores()

    def resize(self, slots: Sequence[str]) -> None:
        """See `Backend.resize`. Processes that stay are pinned to their new share of the cores."""
        wanted = lay_out(slots, self._cores)
        for slot in wanted:
            if slot.name.startswith("ray:"):
                raise RecipeError(f"slot {slot.name}: of a cluster", expected="slots of this machine",
                                  found=slot.name, remedy=OTHER_SLOTS)  # fmt: skip
            if slot.gpu is not None and slot.gpu not in self._visible:
                raise RecipeError(
                    f"slot {slot.name}: there is no such GPU here",
                    expected=", ".join(f"cuda:{index}" for index in self._visible) or "cpu slots: no GPU is there",
                    found=slot.name,
                    remedy=OTHER_SLOTS,
                )
        self.provide(wanted)

    def provide(self, slots: Sequence[Slot]) -> None:
        """Have just these slots, as `resize` does, whatever they are called."""
        wanted = {slot.name: slot for slot in slots}
        for name in [name for name in self._workers if name not in wanted]:
            self._end(self._workers.pop(name))
        for name, slot in wanted.items():
            worker = self._workers.get(name)
            if worker is None:
                self._workers[name] = self._spawn(slot)
            elif worker.slot.cores != slot.cores:
                worker.slot = slot
                with contextlib.suppress(OSError, AttributeError):  # it may be gone already; its end is told by `poll`
                    os.sched_setaffinity(worker.child.pid, slot.cores)

    def capacity(self) -> list[str]:
        """See `Backend.capacity`."""
        return list(self._workers)

    def start(self, slot: str, order: Order) -> None:
        """See `Backend.start`."""
        worker = self._workers[slot]
        self._orders += 1
        worker.order, worker.number, worker.trained, worker.deadline = order, self._orders, False, None
        worker.heard = time.monotonic()
        self._send(worker, {"do": "work", "id": self._orders, **asdict(order)})

    def stop(self, slot: str, seconds: float) -> None:
        """See `Backend.stop`."""
        worker = self._workers[slot]
        if worker.order is not None and worker.deadline is None:
            worker.deadline = time.monotonic() + seconds
            self._send(worker, {"do": "stop", "id": worker.number})

    def poll(self, seconds: float) -> list[Report]:
        """See `Backend.poll`."""
        reports: list[Report] = []
        for key, _ in self._selector.select(seconds):
            worker: _Worker = key.data
            data = os.read(worker.replies, 1 << 16)
            *lines, worker.rest = (worker.rest + data).split(b"\n")
            for line in lines:
                for row in decode(line):
                    reports += self._understand(worker, row)
            if not data:
                reports += self._replace(worker, worker.child.wait(5.0))
        now = time.monotonic()
        if now >= self._look:
            self._look = now + LOOK_SECONDS
            for worker in list(self._workers.values()):
                reports += self._watch(worker, now)
        return reports

    def now(self) -> float:
        """See `Backend.now`."""
        return time.time()

    def close(self) -> None:
        """See `Backend.close`."""
        for worker in self._workers.values():
            self._end(worker)
        self._workers.clear()
        self._selector.close()

    def pids(self) -> dict[str, int]:
        """Process ids by slot."""
        return {name: worker.child.pid for name, worker in self._workers.items()}

    def _spawn(self, slot: Slot) -> _Worker:
        orders, requests = os.pipe()
        replies, told = os.pipe()
        visible = "" if slot.gpu is None else self._visible[slot.gpu]
        name = "slot-" + slot.name.replace(":", "").replace("/", ".")
        pinned = ",".join(map(str, slot.cores))
        arguments = [str(self._layout.root), slot.name, visible, pinned, str(orders), str(told), str(self._lock_fd)]
        try:
            child = Child.spawn(
                name,
                "erlcli.engine.slice",
                arguments,
                self._layout.output(name),
                threads=len(slot.cores) or None,
                inherit=(orders, told, self._lock_fd),
            )
        except BaseException:
            os.close(requests)
            os.close(replies)
            raise
        finally:
            os.close(orders)
            os.close(told)
        worker = _Worker(slot, child, requests, replies)
        self._selector.register(replies, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        self._selector.unregister(worker.replies)
        worker.child.end()
        os.close(worker.requests)
        os.close(worker.replies)

    def _send(self, worker: _Worker, row: Row) -> None:
        data = memoryview((encode(row) + "\n").encode())
        with contextlib.suppress(BrokenPipeError):  # it has died; `poll` tells
            while data:
                data = data[os.write(worker.requests, data) :]

    def _understand(self, worker: _Worker, row: Row) -> list[Report]:
        """A reply as a report."""
        order = worker.order
        if order is None or row.pop("id") != worker.number:
            return []
        event = row.pop("event")
        worker.heard = time.monotonic()
        if event == "alive":
            return []
        worker.trained |= event == "trained"
        if event != "trained":
            worker.order = worker.deadline = None
        if row.pop("leaves", False):  # now, or the next order would go to a process that is on its way out
            self._replace(worker, None)
        return [Report(worker.slot.name, order.member, event, row)]

    def _watch(self, worker: _Worker, now: float) -> list[Report]:
        """End a process that hangs in an environment, or doesn't stop in time."""
        order = worker.order
        if order is None:
            return []
        if worker.deadline is not None and now >= worker.deadline:
            worker.order = None
            self._replace(worker, None)
            return [Report(worker.slot.name, order.member, "stopped")]
        error = hung("learner", worker.child.pid, RunLayout(Path(order.run)), self._hang)
        # During an evaluation it speaks once a second, whatever the environment; at the start it may still import.
        if error is None and (worker.trained or not order.train) and self._hang.exceeds(now - worker.heard):
            error = self._silent(worker)
        if error is None:
            return []
        worker.order = None
        self._replace(worker, None)
        return [Report(worker.slot.name, order.member, "failed", {"error": error.to_json(), "oom": False})]

    def _silent(self, worker: _Worker) -> EnvError:
        """A process that says nothing during an evaluation; where it is, its log has from here on."""
        log = self._layout.output(worker.child.name)
        with contextlib.suppress(OSError):
            os.kill(worker.child.pid, signal.SIGUSR1)
            time.sleep(STACK_SECONDS)
        return EnvError(
            f"{worker.child.name}: no sign of life during an evaluation for more than {self._hang.limit_seconds:g} s",
            expected="an env that answers; engine.hang_seconds sets the limit",
            found=tail_of(log, 20) or "no Python stack: it hangs in native code",
            remedy="look at the stack above, or raise engine.hang_seconds for a slow env",
        )

    def _replace(self, worker: _Worker, code: int | None) -> list[Report]:
        """Put a new process in the place of one that is gone, or is to go."""
        order, name = worker.order, worker.slot.name
        self._end(worker)
        self._workers[name] = self._spawn(worker.slot)
        if order is None:
            return []
        if worker.deadline is not None:
            return [Report(name, order.member, "stopped")]
        error = died("learner", code, RunLayout(Path(order.run)), "its last checkpoint is kept")
        error.found = tail_of(self._layout.output(worker.child.name)) or error.found  # what it printed, is there
        return [Report(name, order.member, "failed", {"error": error.to_json(), "oom": False})]
