"""What the orchestrator knows: the readers' board, and beside it what decisions need. A pure fold of the journal.

Rows beyond those that readers know, and facts beside theirs:

| event | facts |
| --- | --- |
| spawn | unit, pods (of the unit), generation, founder, fused (whose weights were averaged), request |
| slice_start | until_steps or seconds |
| slice_end | why: budget, done (a lineage's whole budget), failed, stopped, lost; seconds; reason of a failure |
| evaluate | kind: slice, confirm or again; fresh {mean, std, episodes}: of those that no score was chosen by |
| generation | number, survivors: a new generation begins |
| pause, resume, stop, refuse | request, reason |
| finish | budget: steps, where a target was reached before they were used |
| open | an orchestrator takes over |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from erlcli.runs.journal import Board
from erlcli.runs.jsonl import Row
from erlcli.runs.members import Member
from erlcli.tournament.scores import Sample

COMPLETE = ("budget", "done")  # why a slice ended that was trained to its end


@dataclass(eq=False)
class Entry:
    """A member that is still in the race.

    Attributes:
        member: as readers see it.
        unit: those with whom it shares settings and parent; the id of the first of them.
        generation: in which it was born.
        founder: whether it started without a parent at the beginning.
        fused: whether its weights are an average; it has trained no slice then, and is scored as it is.
        slices: completed.
        begun: whether a slice is under way or broken off.
        until: steps at which that slice is complete; None for one in seconds.
        used_seconds: trained in it before it was broken off.
        running: whether it is under way.
        scored: steps at which it was evaluated last; -1 before.
        confirmed: steps at which it was evaluated with fresh seeds; -1 before.
        value: by which it is ranked; None before it is scored.
        sample: of all episodes that were played with the weights it was scored with; None before.
        upper: bound of the confidence interval of its mean.
        fresh: of those episodes that came after the first score; None while there are none.
        failures: slices in a row that failed.
        served: number of the row by which it got a slot last, or was spawned.
        parked: whether its slot was taken away.
        ended: whether its run had nothing left to train.
    """

    member: Member
    unit: str
    generation: int
    founder: bool
    fused: bool
    slices: int = 0
    begun: bool = False
    until: int | None = None
    used_seconds: float = 0.0
    running: bool = False
    scored: int = -1
    confirmed: int = -1
    value: float | None = None
    sample: Sample | None = None
    upper: float = math.inf
    fresh: Sample | None = None
    failures: int = 0
    served: int = 0
    parked: bool = False
    ended: bool = False

    @property
    def id(self) -> str:
        """Of the member."""
        return self.member.id

    @property
    def steps(self) -> int:
        """Env steps, its ancestors' included."""
        return self.member.steps

    @property
    def needs_score(self) -> bool:
        """Whether it stands at the end of a slice that nobody has evaluated."""
        return not self.begun and (self.slices > 0 or self.fused) and self.scored != self.steps


@dataclass
class Unit:
    """Members that share settings and parent, and differ in their seeds.

    Attributes:
        pods: how many there are to be.
        members: their ids, the one made of all of them not included.
        fused: id of that one.
        settled: whether it has one representative left.
    """

    pods: int
    members: list[str] = field(default_factory=list)
    fused: str | None = None
    settled: bool = False


@dataclass(frozen=True)
class Pending:
    """A selection that waits for its child."""

    parent: str
    second: str | None
    seq: int


@dataclass(frozen=True)
class Crown:
    """Who is champion, and with which weights.

    Attributes:
        member: its id.
        steps: of the checkpoint.
        value: by which it is ranked.
        mean: return of fresh episodes.
    """

    member: str
    steps: int
    value: float
    mean: float


class Ledger:
    """See the module's docstring.

    Args:
        lower_bound: whether members are ranked by the lower bound of their confidence interval, not by their mean.

    Attributes:
        board: what readers see.
        alive: entries by id, in order of birth.
        units: by id.
        spent_steps: env steps trained, those of retired members included.
        completed: slices.
        failed: slices in a row that failed, whoever's.
        last_failure: its reason.
        founded: units of founders.
        generation: the current one.
        survivors: of the last generation, while they are sorted out; empty at the start.
        pending: a selection without its child.
        crown: who is champion.
        passed: budget with which the target was reached; a larger one is there to go on in spite of it.
        paused: whether users want nothing to train.
        finished: why the tournament is over; empty while it isn't.
    """

    def __init__(self, *, lower_bound: bool = False) -> None:
        self.board = Board()
        self.alive: dict[str, Entry] = {}
        self.units: dict[str, Unit] = {}
        self.spent_steps = self.completed = self.failed = self.founded = self.generation = 0
        self.passed: int | None = None
        self.last_failure: Row = {}
        self.survivors: tuple[str, ...] = ()
        self.pending: Pending | None = None
        self.incomplete: str | None = None  # a unit that lacks pods
        self.crown: Crown | None = None
        self.paused = False
        self.finished = ""
        self._lower_bound = lower_bound
        self._ranking: list[Entry] | None = None  # until something about it changes

    def add(self, row: Row) -> bool:
        """Take in one row; whether it said anything."""
        entry = self.alive.get(str(row.get("member")))
        steps = entry.steps if entry is not None else 0
        if not self.board.add(row):
            return False
        if row["event"] in ("spawn", "evaluate", "retire"):
            self._ranking = None
        if row["event"] == "spawn":
            self._spawn(row)
        elif row["event"] in _OF_MEMBERS:
            if entry is not None:
                _OF_MEMBERS[row["event"]](self, entry, row, steps)
        elif row["event"] in _OTHERS:
            _OTHERS[row["event"]](self, row)
        return True

    @property
    def active_seconds(self) -> float:
        """During which an orchestrator was at work."""
        return self.board.seconds

    def name_next(self) -> str:
        """Id of the next member."""
        return f"m{len(self.board.members):03d}"

    def running(self) -> list[Entry]:
        """Members whose slice is under way."""
        return [entry for entry in self.alive.values() if entry.running]

    def is_settled(self, entry: Entry) -> bool:
        """Whether an entry stands for its whole unit."""
        return self.units[entry.unit].settled

    def ranked(self) -> list[Entry]:
        """Scored members that stand for their units, the best first; of equal ones the youngest: it trained longest."""
        if self._ranking is None:
            alive = reversed(self.alive.values())
            scored = [entry for entry in alive if entry.value is not None and self.is_settled(entry)]
            self._ranking = sorted(scored, key=lambda entry: -(entry.value or 0.0))
        return list(self._ranking)

    def _spawn(self, row: Row) -> None:
        member = self.board.members[row["member"]]
        unit = str(row.get("unit") or member.id)
        fused = row.get("fused") is not None
        entry = Entry(member, unit, int(row.get("generation", 0)), bool(row.get("founder")), fused, served=row["seq"])
        self.alive[member.id] = entry
        group = self.units.setdefault(unit, Unit(int(row.get("pods", 1))))
        if fused:
            group.fused = member.id
            return
        if not group.members and entry.founder:
            self.founded += 1
        group.members.append(member.id)
        group.settled = group.pods == 1
        self.incomplete = unit if len(group.members) < group.pods else None
        if self.pending is not None and row.get("request") is None:
            self.pending = None

    def _slice_start(self, entry: Entry, row: Row, before: int) -> None:
        entry.running = entry.begun = True
        entry.until, entry.served, entry.parked = row.get("until_steps"), row["seq"], False

    def _slice_end(self, entry: Entry, row: Row, before: int) -> None:
        why = row.get("why")
        entry.running = False
        self.spent_steps += max(entry.steps - before, 0)
        entry.used_seconds += float(row.get("seconds") or 0.0)
        if why in COMPLETE or (entry.until is not None and entry.steps >= entry.until):
            entry.begun, entry.until, entry.used_seconds = False, None, 0.0
            entry.slices += 1
            entry.failures = self.failed = 0
            entry.ended = why == "done"
            self.completed += 1
        elif why == "failed":
            entry.failures += 1
            self.failed += 1
            self.last_failure = dict(row)

    def _evaluate(self, entry: Entry, row: Row, before: int) -> None:
        entry.scored = int(row.get("steps", entry.steps))
        entry.value = float(row["ci"][0] if self._lower_bound else row["mean"])
        entry.upper = float(row["ci"][1])
        entry.sample = sample_of(row)
        entry.fresh = sample_of(row["fresh"]) if row.get("fresh") is not None else None
        if row.get("kind") == "confirm":
            entry.confirmed = entry.scored
        crown = self.crown
        if crown is not None and (crown.member, crown.steps) == (entry.id, entry.scored) and entry.fresh is not None:
            self.crown = Crown(crown.member, crown.steps, entry.value, entry.fresh.mean)

    def _promote(self, entry: Entry, row: Row, before: int) -> None:
        if row["rank"] == 1:
            mean = float(row.get("mean", entry.value or 0.0))
            self.crown = Crown(entry.id, int(row.get("steps", entry.steps)), float(row.get("value", mean)), mean)

    def _park(self, entry: Entry, row: Row, before: int) -> None:
        entry.parked = True

    def _revive(self, entry: Entry, row: Row, before: int) -> None:
        entry.parked = False

    def _retire(self, entry: Entry, row: Row, before: int) -> None:
        del self.alive[entry.id]
        group = self.units[entry.unit]
        if entry.id in group.members:
            group.members.remove(entry.id)
            group.pods -= 1
        if self.incomplete == entry.unit and len(group.members) >= group.pods:
            self.incomplete = None
        left = len(group.members) + (group.fused in self.alive)
        group.settled |= left == 1 and (group.fused is not None or group.pods == 1)

    def _select(self, row: Row) -> None:
        self.pending = Pending(str(row["chosen"]), row.get("second"), row["seq"])

    def _generation(self, row: Row) -> None:
        self.generation = int(row["number"])
        self.survivors = tuple(str(name) for name in row["survivors"])

    def _pause(self, row: Row) -> None:
        self.paused = True

    def _resume(self, row: Row) -> None:
        self.paused = False

    def _finish(self, row: Row) -> None:
        self.finished = str(row.get("reason") or "over")
        self.passed = row.get("budget", self.passed)

    def _open(self, row: Row) -> None:
        """Whoever opens it again wants it to go on, and has seen to what kept it from that."""
        self.finished, self.failed, self.last_failure = "", 0, {}
        for entry in self.alive.values():
            entry.failures, entry.ended = 0, False
        if not self.alive:
            self.founded = 0  # it begins anew


_OF_MEMBERS: Mapping[str, Callable[[Ledger, Entry, Row, int], None]] = {
    "slice_start": Ledger._slice_start,
    "slice_end": Ledger._slice_end,
    "evaluate": Ledger._evaluate,
    "promote": Ledger._promote,
    "park": Ledger._park,
    "revive": Ledger._revive,
    "retire": Ledger._retire,
}
_OTHERS: Mapping[str, Callable[[Ledger, Row], None]] = {
    "select": Ledger._select,
    "generation": Ledger._generation,
    "pause": Ledger._pause,
    "resume": Ledger._resume,
    "finish": Ledger._finish,
    "open": Ledger._open,
}


def sample_of(row: Mapping[str, Any]) -> Sample:
    """What an evaluation's row, or its `fresh`, says."""
    return Sample(float(row["mean"]), float(row["std"]), int(row["episodes"]))


def fold(rows: Iterable[Row], *, lower_bound: bool = False) -> Ledger:
    """The ledger that these rows add up to."""
    ledger = Ledger(lower_bound=lower_bound)
    for row in rows:
        ledger.add(row)
    return ledger


def facts_of(board: Board) -> dict[str, Any]:
    """A board as comparable values, for checks that two folds agree."""
    return {
        "slots": board.slots,
        "seq": board.seq,
        "champion": None if board.champion is None else board.champion.id,
        "members": [
            (m.id, None if m.parent is None else m.parent.id, m.state, m.steps, m.score, dict(m.parameters), m.reason)
            for m in board.ranking()
        ],
    }
