"""Slots of a Ray cluster: an actor for each, wherever a node has room.

A slot is there once its actor is: more slots than the cluster has room for wait, which is what an autoscaler goes by.
A node that dies takes its slots with it. The slices that were under way there are lost, back to their last checkpoints,
and each slot waits for room again. Checkpoints and orders are paths, the same on every node.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

import erlcli
from erlcli.engine.stop_signals import LEAVE_SECONDS
from erlcli.errors import ErlError, RecipeError
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog
from erlcli.tournament.backends import cluster
from erlcli.tournament.backends.base import Backend, Order, Report
from erlcli.tournament.backends.place import Place
from erlcli.tournament.backends.settings import RaySettings
from erlcli.tournament.slots import more

POLL_SECONDS = 0.5  # that an actor waits for news; a request to stop waits for as long
GHOST_SECONDS = 15.0  # that a process whose actor was ended may take to leave, its GPU's memory with it
SILENT_SECONDS = 60.0  # without an answer after which a place counts as gone, whatever Ray thinks of its node
RETRY_SECONDS = 30.0  # until a slot is tried again that a node refused
ATTEMPTS, ATTEMPT_SECONDS = 5, 2.0  # at actors that are gone before they say anything
LOSSES = 4  # in a row, after which it counts as the member's own failure: it may be what ends the nodes
PROCESS = "ray"  # name of the log of events


@dataclass(eq=False)
class _Seat:
    """A slot as its driver sees it.

    Attributes:
        slot: its name.
        actor: on a node, or waiting for one; None until it is tried again.
        answer: that is waited for.
        since: when it was asked for.
        opened: whether the slot is there.
        host: of its node.
        gpu: which one it shares, if any.
        order: it is at.
        seen: news of that order.
        leaving: until when it may take to stop.
        retry: when to ask for an actor again.
        attempts: actors in a row that were gone before the slot was there.
    """

    slot: str
    actor: Any = None
    answer: Any = None
    since: float = 0.0
    opened: bool = False
    host: str = ""
    gpu: str | None = None
    order: Order | None = None
    seen: int = 0
    leaving: float | None = None
    retry: float = 0.0
    attempts: int = 0


class RayBackend(Backend):
    """See the module's docstring.

    Args:
        layout: the tournament's directory, which all nodes have to see.
        settings: which cluster, and what a slot takes of it.
        hang_seconds: after which a process that is in an environment counts as hung.
        slots: that there are to be at first; 0 for as many as there is room for.

    Raises:
        RecipeError: there is no such cluster, or its nodes can't train for this tournament.
        OwnedError: slots of the tournament's last owner are still at work.
    """

    def __init__(self, layout: RunLayout, settings: RaySettings, hang_seconds: float, slots: int) -> None:
        self._layout, self._settings, self._hang_seconds = layout, settings, hang_seconds
        self._seats: dict[str, _Seat] = {}
        self._ghosts: dict[str, tuple[str, float]] = {}  # by slot that was left: its GPU, and until when it may fill it
        self._losses: Counter[str] = Counter()  # in a row, by member
        self._events = EventLog(layout, PROCESS, 1)
        own = cluster.join(settings, slots)
        self._reaper = cluster.reaper(layout) if own else None
        try:
            cluster.supersede(layout.root)
            self._proof = cluster.prove(layout)
            cluster.check_nodes(layout.root, self._proof, settings)
        except BaseException:
            self.close()
            raise
        self._place = ray.remote(Place)

    def fill(self) -> list[str]:
        """Names for as many slots as the cluster has room for now.

        Raises:
            RecipeError: that is none.
        """
        count = cluster.room(self._settings)
        if count:
            return more([], count)
        gpus = f" and {self._settings.gpus:g} of a GPU" if self._settings.gpus else ""
        nodes = sum(node["Alive"] for node in ray.nodes())
        raise RecipeError(
            "--backend ray: no node has room for a slot",
            expected=f"a node with {self._settings.cpus} CPU{'s' * (self._settings.cpus > 1)}{gpus}",
            found=f"{nodes} node{'s' * (nodes != 1)} without",
            remedy="--slots N asks for N slots, and waits for nodes, which an autoscaler starts",
        )

    def resize(self, slots: Sequence[str]) -> None:
        """See `Backend.resize`."""
        for name in slots:
            if not name.startswith("ray:"):
                raise ErlError(f"slot {name}: not of a cluster", expected="ray:N", found=name,
                               remedy="erl scale TOURNAMENT --slots N")  # fmt: skip
        for name in [name for name in self._seats if name not in slots]:
            seat = self._seats.pop(name)
            if seat.gpu is not None:
                self._ghosts[name] = (seat.gpu, time.monotonic() + GHOST_SECONDS)
            self._vacate(seat)
        for name in slots:
            if name not in self._seats:
                self._seats[name] = _Seat(name)
                self._call(self._seats[name])

    def capacity(self) -> list[str]:
        """See `Backend.capacity`."""
        return [seat.slot for seat in self._seats.values() if seat.opened]

    def sharing(self, slot: str) -> list[str]:
        """See `Backend.sharing`; with the slots that were left a moment ago."""
        gpu = self._seats[slot].gpu
        now = time.monotonic()
        self._ghosts = {name: ghost for name, ghost in self._ghosts.items() if now < ghost[1]}
        gone = [name for name, (where, _) in self._ghosts.items() if where == gpu and name not in self._seats]
        return [seat.slot for seat in self._seats.values() if gpu is not None and seat.gpu == gpu] + gone

    def hosts(self) -> dict[str, str]:
        """Where each slot is that there is."""
        return {seat.slot: seat.host for seat in self._seats.values() if seat.opened}

    def start(self, slot: str, order: Order) -> None:
        """See `Backend.start`."""
        seat = self._seats[slot]
        seat.order, seat.seen, seat.leaving = order, 0, None
        seat.actor.work.remote(asdict(order))
        self._ask(seat)

    def stop(self, slot: str, seconds: float) -> None:
        """See `Backend.stop`."""
        seat = self._seats[slot]
        if seat.order is not None and seat.leaving is None:
            seat.leaving = time.monotonic() + seconds + LEAVE_SECONDS  # it keeps to its own limit unless it is gone
            seat.actor.stop.remote(seconds)

    def poll(self, seconds: float) -> list[Report]:
        """See `Backend.poll`."""
        waited = {seat.answer: seat for seat in self._seats.values() if seat.answer is not None}
        if not waited:
            time.sleep(seconds)
            ready: list[Any] = []
        else:
            ready, _ = ray.wait(list(waited), timeout=seconds)
            if ready and len(waited) > 1:
                ready, _ = ray.wait(list(waited), num_returns=len(waited), timeout=0)
        reports: list[Report] = []
        for answer in ready:
            reports += self._hear(waited[answer])
        now = time.monotonic()
        for seat in self._seats.values():
            if seat.actor is None and now >= seat.retry:
                self._call(seat)
            elif seat.order is not None:
                reports += self._watch(seat, now)
        return reports

    def now(self) -> float:
        """See `Backend.now`."""
        return time.time()

    def close(self) -> None:
        """See `Backend.close`. A cluster of our own ends, too."""
        for seat in self._seats.values():
            self._vacate(seat)
        self._seats.clear()
        self._events.close()
        if self._reaper is not None:
            self._reaper.end()
        ray.shutdown()

    # Actors

    def _call(self, seat: _Seat) -> None:
        """Ask for an actor, and for its slot."""
        settings = self._settings
        options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "max_restarts": 0, "max_task_retries": 0}
        seat.actor = self._place.options(**options).remote(
            str(self._layout.root), seat.slot, settings.cpus, settings.gpus > 0, self._hang_seconds
        )
        seat.answer = seat.actor.open.remote(self._proof, erlcli.__version__)

    def _vacate(self, seat: _Seat) -> None:
        """End a slot's actor, and with it its process."""
        if seat.actor is not None:
            with contextlib.suppress(RayError, RuntimeError):
                ray.kill(seat.actor, no_restart=True)
        seat.actor = seat.answer = seat.order = seat.leaving = seat.gpu = None
        seat.opened = False

    def _ask(self, seat: _Seat) -> None:
        seat.answer, seat.since = seat.actor.news.remote(seat.seen, POLL_SECONDS), time.monotonic()

    # News

    def _hear(self, seat: _Seat) -> list[Report]:
        """What an answer says."""
        answer, seat.answer = seat.answer, None
        try:
            said = ray.get(answer)
        except ActorUnavailableError:  # the network may be back at once, and nothing of what it told is lost
            if seat.opened:
                seat.answer = seat.actor.news.remote(seat.seen, POLL_SECONDS)
                return []
            return self._lose(seat, "its node does not answer")
        except RayError as error:
            return self._lose(seat, _why(error))
        if not seat.opened:
            self._open(seat, said)
            return []
        order, reports = seat.order, []
        for row in said:
            seat.seen += 1
            if order is not None:
                reports.append(Report(seat.slot, order.member, row["event"], row["facts"]))
                if row["event"] == "trained":
                    self._losses.pop(order.member, None)
                else:
                    seat.order = seat.leaving = None
        if seat.order is not None:
            self._ask(seat)
        return reports

    def _open(self, seat: _Seat, facts: Row) -> None:
        """The first answer of an actor: a slot, or why there is none. A node that comes later may be another."""
        host, problem = str(facts["host"]), facts["problem"]
        if problem is None:
            seat.opened, seat.host, seat.gpu, seat.attempts = True, host, facts["gpu"], 0
            self._events.write("slot", f"{seat.slot} is on {host}")
            return
        self._vacate(seat)
        seat.retry = time.monotonic() + RETRY_SECONDS
        self._events.write("slot", f"{seat.slot}: {host}: {problem}", level="warning")
        if not self.capacity():
            raise cluster.misfits(self._layout.root, [f"{host}: {problem}"])

    def _fail_to_open(self, seat: _Seat, why: str) -> None:
        """An actor that was gone before it said anything: with its node, or because the node can't even import erl."""
        self._vacate(seat)
        seat.attempts += 1
        seat.retry = time.monotonic() + ATTEMPT_SECONDS
        self._events.write("slot", f"{seat.slot} did not start: {why}", level="warning")
        if seat.attempts >= ATTEMPTS and not self.capacity():
            raise cluster.misfits(self._layout.root, [f"{seat.slot}, {seat.attempts} times in a row: {why}"])

    def _lose(self, seat: _Seat, why: str) -> list[Report]:
        """A slot that is gone; another one is asked for."""
        order, host, opened = seat.order, seat.host, seat.opened
        if not opened:
            self._fail_to_open(seat, why)
            return []
        self._vacate(seat)
        self._call(seat)
        self._events.write("slot", f"{seat.slot} on {host} is gone: {why}", level="warning")
        if order is None:
            return []
        reason = f"{seat.slot} on {host} is gone: {why}"
        self._losses[order.member] += 1
        if self._losses[order.member] < LOSSES:
            return [Report(seat.slot, order.member, "lost", {"reason": reason})]
        error = ErlError(
            f"{order.member}: its node was lost {self._losses[order.member]} times in a row",
            expected="a node that lives as long as a slice",
            found=reason,
            remedy="if it is what ends them: less memory for a member, or more for a node; ray logs",
        )
        return [Report(seat.slot, order.member, "failed", {"error": error.to_json(), "oom": False})]

    def _watch(self, seat: _Seat, now: float) -> list[Report]:
        """A place that neither answers nor is known to be gone."""
        if seat.leaving is not None and now >= seat.leaving:
            order = seat.order
            self._vacate(seat)
            self._call(seat)
            return [] if order is None else [Report(seat.slot, order.member, "stopped")]
        if seat.answer is not None and now - seat.since > SILENT_SECONDS:
            return self._lose(seat, f"no answer for {SILENT_SECONDS:g} s")
        return []


def _why(error: RayError) -> str:
    """The line of an error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "node" in line.lower() or "error" in line.lower()] or lines
    return told[-1][:300] if told else type(error).__name__
