"""What the orchestrator of a tournament asks of a slot's process; see `engine.slice`."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from erlcli.runs.jsonl import Row

if TYPE_CHECKING:
    from erlcli.engine.learner import StopFlag


class Inbox:
    """Requests from the orchestrator; a thread reads them, so that one to stop comes through during a slice.

    Args:
        fd: to read from.
    """

    def __init__(self, fd: int) -> None:
        self._orders: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        self._current: tuple[int, StopFlag] | None = None
        self._mutex = threading.Lock()
        threading.Thread(target=self._read, args=(fd,), name="inbox", daemon=True).start()

    def take(self) -> Row | None:
        """The next order; None once nobody can send one any more."""
        return self._orders.get()

    @contextlib.contextmanager
    def at_work(self, number: int, stop: StopFlag) -> Iterator[None]:
        """While the order `number` is carried out, a request to stop it sets `stop`."""
        with self._mutex:
            self._current = (number, stop)
            if number in self._stopped:
                stop.set()
        try:
            yield
        finally:
            with self._mutex:
                self._current = None

    def is_stopped(self, number: int) -> bool:
        """Whether the orchestrator wants an order to end."""
        return number in self._stopped

    def _read(self, fd: int) -> None:
        with open(fd, "rb") as file:
            for line in file:
                row = json.loads(line)
                if row["do"] != "stop":
                    self._orders.put(row)
                    continue
                with self._mutex:
                    self._stopped.add(row["id"])
                    if self._current is not None and self._current[0] == row["id"]:
                        self._current[1].set()
        self._orders.put(None)
