"""A slot on a node of a cluster: an actor there, which looks after the slot's warm process.

The actor itself trains nothing. An env that crashes, hangs or leaves takes the process, and the actor tells what it
was, as it would on one machine; the end of the actor means that the node, or its Ray, is gone. News are numbered and
kept until the order is over: an answer that was lost on the way is asked for again. Free of Ray.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import erlcli
from erlcli.engine.child import limit_cpus
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.tournament.backends.base import Order
from erlcli.tournament.backends.local import LocalBackend
from erlcli.tournament.slots import Slot

OWNERS = "slots.lock"  # shared by all slots; a new owner of the tournament takes it once those of the old one are gone
PROOF = "slots.proof"  # what the driver wrote, and every node has to see
LOOK_SECONDS = 0.5


class Place:
    """See the module's docstring.

    Args:
        root: the tournament's directory, at the same path on every node.
        slot: its name.
        cpus: of the node that it may use.
        gpu: whether Ray gave it one.
        hang_seconds: as `LocalBackend` takes it.
    """

    def __init__(self, root: str, slot: str, cpus: int, gpu: bool, hang_seconds: float) -> None:
        self._layout, self._gpu, self._hang_seconds = RunLayout(Path(root)), gpu, hang_seconds
        self._slot = Slot(slot, 0 if gpu else None, ())
        limit_cpus(cpus)  # for the process to come: containers of one machine see all of its cores
        self._backend: LocalBackend | None = None
        self._news: list[Row] = []

    def open(self, proof: str, version: str) -> Row:
        """Start the slot's process, if this node can have one.

        Args:
            proof: what the driver has written into the tournament's directory.
            version: of erl, at the driver.

        Returns:
            `host`, `pid`, `gpu` (which one it is, as text that is the same for all who share it), and `problem`, which
            says why there can't be a slot here; None where there can.
        """
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if self._gpu else ""
        host = socket.gethostname()
        facts: Row = {"host": host, "pid": os.getpid(), "gpu": f"{host}:{visible}" if self._gpu else None}
        problem = misfit(self._layout.root, proof, version)
        if problem is None:
            try:
                lock = os.open(self._layout.root / OWNERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._backend = LocalBackend(self._layout, lock, self._hang_seconds, {0: visible})
                self._backend.provide([self._slot])
            except OSError as error:
                problem = f"{error.strerror}: {error.filename or self._layout.root / OWNERS}"
        return facts | {"problem": problem}

    def work(self, order: Row) -> None:
        """Carry out an order; news are counted from 0 again."""
        self._news = []
        self._at_work.start(self._slot.name, Order(**order))

    def stop(self, seconds: float) -> None:
        """Have the order end soon; see `Backend.stop`."""
        self._at_work.stop(self._slot.name, seconds)

    def news(self, seen: int, seconds: float) -> list[Row]:
        """What the order has brought beyond the first `seen` reports, for which at most `seconds` are waited."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            for report in self._at_work.poll(max(min(left, LOOK_SECONDS), 0.0)):
                self._news.append({"event": report.event, "facts": report.facts})
            if left <= 0 or len(self._news) > seen:
                return self._news[seen:]

    @property
    def _at_work(self) -> LocalBackend:
        if self._backend is None:
            raise RuntimeError("this node can't have a slot")
        return self._backend


def misfit(root: Path, proof: str, version: str) -> str | None:
    """Why this node can't train for a tournament; None where it can.

    Args:
        root: the tournament's directory.
        proof: what its owner has written there.
        version: of erl, at its owner.
    """
    if erlcli.__version__ != version:
        return f"erl {erlcli.__version__} is installed there, and {version} here"
    try:
        found = (root / PROOF).read_text()
    except OSError as error:
        return f"can't read {root / PROOF}: {error.strerror}"
    if found != proof:
        return f"{root} is another directory there"
    if not os.access(root, os.W_OK):
        return f"{root} can't be written there"
    return None
