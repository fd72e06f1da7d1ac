"""How slots are asked to save what they have and to stop, and who asked for it."""

from __future__ import annotations

from collections.abc import Iterable

from erlcli.engine.stop_signals import StopSignals, patience
from erlcli.runs.layout import RunLayout
from erlcli.tournament.backends.base import Backend


class Stops:
    """Asks each slot once an order, and knows why.

    Args:
        layout: the tournament's directory, where `erl stop` leaves its request.
        backend: with the slots.

    Attributes:
        signals: that this process was sent.
        leaving: whether all is to be saved and left.
    """

    def __init__(self, layout: RunLayout, backend: Backend) -> None:
        self._layout, self._backend = layout, backend
        self.signals = StopSignals()
        self.leaving = False
        self._why: dict[str, str] = {}

    def requested(self) -> bool:
        """Whether a user asked for all to be saved and left, by a signal or by `erl stop`."""
        return self.signals.count > 0 or self._layout.stop_request.exists()

    def ask(self, slots: Iterable[str], why: str) -> None:
        """Have slots save a checkpoint and stop; those that were asked before go on doing so.

        Args:
            slots: names of busy ones.
            why: for the journal.
        """
        for slot in slots:
            if slot not in self._why:
                self._why[slot] = why
                self._backend.stop(slot, patience(self._layout))

    def reason(self, slot: str) -> str:
        """Why a slot was asked whose order is over; forgotten from then on."""
        return self._why.pop(slot, "stopped")
