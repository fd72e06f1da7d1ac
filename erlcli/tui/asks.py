"""Requests to a run that wait for its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from erlcli.runs import control
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout


@dataclass(frozen=True)
class Answer:
    """What the run said.

    Attributes:
        kind: of the request.
        message: in its words.
        refused: whether it didn't do what it was asked for.
    """

    kind: str
    message: str
    refused: bool


@dataclass
class Asks:
    """Writes requests and finds their answers among the run's events.

    Attributes:
        layout: the run.
        pending: what was asked, by the request's id, the oldest first.
    """

    layout: RunLayout
    pending: dict[str, str] = field(default_factory=dict)

    def ask(self, kind: control.Kind, words: str, **facts: Any) -> None:  # noqa: ANN401 - JSON values
        """Write a request.

        Args:
            kind: see `control.request`.
            words: what is asked, for `text`.
            facts: of the request.

        Raises:
            OSError: the run directory can't be written.
        """
        self.pending[control.request(self.layout, kind, **facts)] = words

    def answered(self, events: Iterable[Row]) -> list[Answer]:
        """Answers to pending requests among `events`; those are pending no longer."""
        if not self.pending:
            return []
        found = [row for row in events if row.get("event") == "request" and row.get("request") in self.pending]
        for row in found:
            del self.pending[row["request"]]
        return [
            Answer(str(row.get("do", "")), str(row.get("message", "")), row.get("level") != "info") for row in found
        ]

    @property
    def text(self) -> str:
        """What was asked and not answered yet, in a few words; empty where there is nothing."""
        if not self.pending:
            return ""
        last = list(self.pending.values())[-1]
        return f"asked to {last} …"
