"""SIGINT, SIGTERM and SIGHUP as a number that a loop looks at: one asks to stop, two ask to leave at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout

LEAVE_SECONDS = 20.0  # that a last checkpoint may take, where nobody says; batch systems wait 30


def patience(layout: RunLayout) -> float:
    """Seconds that a last checkpoint may take: what `erl stop --timeout` left in a run directory, if that is more."""
    return max(LEAVE_SECONDS, float((read_json(layout.stop_request) or {}).get("seconds", 0.0)))


class StopSignals:
    """Counts the signals while it is entered; outside of the main thread, which alone gets any, it counts none.

    Attributes:
        count: signals so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
