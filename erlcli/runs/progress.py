"""How a tournament went, over the env steps of all its members and over time: another fold of its journal."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erlcli.runs.journal import FILE, Board
from erlcli.runs.jsonl import Row, read
from erlcli.runs.members import Member


@dataclass(frozen=True)
class Moment:
    """Something that was known from then on.

    Attributes:
        steps: env steps that all members together had trained.
        seconds: during which an orchestrator had been at work.
        member: its id.
        mean: a mean return.
    """

    steps: int
    seconds: float
    member: str
    mean: float


@dataclass(frozen=True)
class Crowd:
    """The members in the race that had a score, at one moment.

    Attributes:
        steps: as of a `Moment`.
        seconds: as of a `Moment`.
        low: lower quartile of their scores.
        median: of their scores.
        high: upper quartile of their scores.
    """

    steps: int
    seconds: float
    low: float
    median: float
    high: float


class Progress:
    """See the module's docstring.

    Attributes:
        board: what readers see.
        scores: every evaluation.
        best: the champions, each with the mean of episodes that it was not chosen by; of the one that was there
            already a new mean, where it was played again.
        crowds: one for each number of steps at which somebody was evaluated or retired.
        births: by member, the steps of a `Moment` at which it was spawned.
        steps: env steps trained so far.
        slices: completed.
    """

    def __init__(self) -> None:
        self.board = Board()
        self.scores: list[Moment] = []
        self.best: list[Moment] = []
        self.crowds: list[Crowd] = []
        self.births: dict[str, int] = {}
        self.steps = self.slices = 0
        self._crown: tuple[str, Any] | None = None  # the champion, and the steps of its weights
        self._racing: dict[str, float] = {}  # scores of those that are not retired
        self._sorted: list[float] = []

    @property
    def seconds(self) -> float:
        """At work so far."""
        return self.board.seconds

    def add(self, row: Row) -> bool:
        """Take in one row; whether it said anything."""
        member = self.board.members.get(str(row.get("member")))
        trained = member.steps if member is not None else 0
        if not self.board.add(row):
            return False
        if row["event"] == "spawn":
            self.births[row["member"]] = self.steps
        elif member is not None:
            self._of_member(row, member, trained)
        return True

    def _of_member(self, row: Row, member: Member, trained: int) -> None:
        if row["event"] == "slice_end":
            self.steps += max(member.steps - trained, 0)
            self.slices += row.get("why") in ("budget", "done")
        elif row["event"] == "evaluate":
            self.scores.append(Moment(self.steps, self.seconds, member.id, float(row["mean"])))
            self._race(member.id, float(row["mean"]))
            fresh = row.get("fresh")
            if isinstance(fresh, dict) and self._crown == (member.id, row.get("steps")):
                self.best.append(Moment(self.steps, self.seconds, member.id, float(fresh["mean"])))
        elif row["event"] == "promote" and row.get("rank") == 1:
            mean = float(row.get("mean", member.score or 0.0))
            self.best.append(Moment(self.steps, self.seconds, member.id, mean))
            self._crown = (member.id, row.get("steps"))
        elif row["event"] == "retire":
            self._race(member.id, None)

    def _race(self, member: str, score: float | None) -> None:
        if (old := self._racing.pop(member, None)) is not None:
            self._sorted.pop(bisect.bisect_left(self._sorted, old))
        if score is not None:
            self._racing[member] = score
            bisect.insort(self._sorted, score)
        if self._sorted:
            low, median, high = (quantile(self._sorted, share) for share in (0.25, 0.5, 0.75))
            if self.crowds and self.crowds[-1].steps == self.steps:
                self.crowds.pop()  # what lasts no step is not seen: a score, and who leaves because of it
            self.crowds.append(Crowd(self.steps, self.seconds, low, median, high))

    def best_so_far(self) -> list[Moment]:
        """The best champion yet, at each moment at which there was a better one."""
        found: list[Moment] = []
        for moment in self.best:
            if not found or moment.mean > found[-1].mean:
                found.append(moment)
        return found

    def reached(self, target: float) -> Moment | None:
        """The first champion with at least that mean."""
        return next((moment for moment in self.best if moment.mean >= target), None)

    def top(self, count: int) -> list[Member]:
        """The best members in the race, the best first."""
        racing = [m for m in self.board.ranking() if m.activity != "retired" and m.score is not None]
        return racing[:count]


def quantile(ordered: list[float], share: float) -> float:
    """Of sorted values, at least one, by linear interpolation."""
    place = share * (len(ordered) - 1)
    first = int(place)
    after = min(first + 1, len(ordered) - 1)
    return ordered[first] + (place - first) * (ordered[after] - ordered[first])


def fold(rows: Iterable[Row]) -> Progress:
    """What these rows add up to."""
    progress = Progress()
    for row in rows:
        progress.add(row)
    return progress


def of(path: Path) -> Progress:
    """The progress of the tournament in a directory."""
    return fold(read(path / FILE))
