"""A tournament as its readers see it: the rows of its journal, folded into a board of members.

A row is `{"seq", "time", "event", "member", ...}`; `seq` counts up from 1 and a row that comes twice counts once.

| event | facts |
| --- | --- |
| spawn | parent (id or null), algorithm, changes {key: value} to the parent's recipe, seed, steps that came with the parent's weights, random_state |
| slice_start | slot, from_steps |
| slice_end | to_steps, why |
| evaluate | steps, mean, std, episodes, ci [low, high]; fresh, likewise, of episodes that nobody was chosen by |
| select | candidates, scores, chosen; no member |
| promote | rank, 1 for the champion; steps, mean and ci of its weights, of episodes that they were not chosen by |
| park, revive | |
| retire | reason |
| slots | slots: the names of those there are now; no member |
| capacity | missing: names of slots that wait for a node of a cluster; no member |
| generation | number, survivors; no member |
| open | ranked_by: `mean` or `lower_bound`, by which members are ranked from now on; no member |
| pause, resume, stop, refuse, finish | of the tournament as a whole; nothing that a board shows |

Rows that are malformed, of an unknown event or about a member that nobody spawned are passed over and counted, as are
numbers that are missing: the rest of the journal still tells what it can.
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from erlcli.runs.jsonl import Row, Tail
from erlcli.runs.members import Change, Crown, Member
from erlcli.runs.thin import thin

FILE = "journal.jsonl"
STATES = ("champion", "running", "waiting", "parked", "retired")
HISTORY, HISTORY_WHOLE = 512, 128  # scores of a member that are kept, and how many of the newest stay whole
CHANGES, CHANGES_WHOLE = 8192, 4096  # the same of a hyper-parameter
READ_BYTES = 1 << 20  # rows are folded a part at a time, so that a long journal is never in memory whole


class Board:
    """What a journal adds up to. `add` is the fold's step, and costs the same however long the journal is.

    Attributes:
        members: by id, in order of birth.
        slots: names of those there are now.
        changes: of each hyper-parameter, by key and in order of time.
        crown: the champion; None before there is one.
        lower_bound: whether members are ranked by the lower bound of their score's interval, not by their score.
        started: time of the first row.
        updated: time of the last row.
        seconds: during which an orchestrator was at work.
        seq: number of the last row.
        skipped: rows that say nothing that is understood, or that are missing, as those are whose lines are damaged.
        answers: to requests of users by their ids: why they were refused, or nothing.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.slots: list[str] = []
        self.changes: dict[str, list[Change]] = {}
        self.crown: Crown | None = None
        self.lower_bound = False
        self.started = self.updated = self.seconds = 0.0
        self.seq = self.skipped = 0
        self.answers: dict[str, str] = {}
        self._ranks: dict[int, Member] = {}
        self._passed = 0  # of those that were skipped, since row `seq`

    def add(self, row: Row) -> bool:
        """Take in one row; whether it said anything."""
        try:
            seq, time = _int(row["seq"]), _float(row["time"])
            if seq <= self.seq:
                return False  # it comes twice
            event = row["event"]
            if event in MEMBER_EVENTS:
                member = self.members[row["member"]]
                MEMBER_EVENTS[event](self, member, row)
                member.updated = time
            else:
                EVENTS[event](self, row)
        except (KeyError, TypeError, ValueError):
            self.skipped += 1
            self._passed += 1
            return False
        self.skipped += max(seq - self.seq - 1 - self._passed, 0)
        self._passed = 0
        if event != "open" and self.started:  # before one, nobody was at work
            self.seconds += max(time - self.updated, 0.0)
        self.seq, self.updated = seq, time
        self.started = self.started or time
        if isinstance(request := row.get("request"), str):
            self.answers[request] = str(row.get("reason") or "refused") if row["event"] == "refuse" else ""
        return True

    @property
    def champion(self) -> Member | None:
        """Who was promoted to the first rank last."""
        return self._ranks.get(1)

    @property
    def busy(self) -> int:
        """Slots at which a member trains."""
        return sum(member.slot is not None for member in self.members.values())

    def counts(self) -> Counter[str]:
        """Members by state."""
        return Counter(member.state for member in self.members.values())

    def ranking(self) -> list[Member]:
        """All members: those in the race and the champion, then the retired ones; each best first, unscored last."""

        def order(member: Member) -> tuple[bool, float]:
            value = self.value(member)
            return member.state == "retired", math.inf if value is None else -value

        return sorted(self.members.values(), key=order)

    def value(self, member: Member) -> float | None:
        """What a member is ranked by; None before its first evaluation."""
        return member.ci[0] if self.lower_bound and member.ci is not None else member.score

    def lineage(self) -> list[tuple[int, Member]]:
        """The family tree from top to bottom: each member with its depth, before its children."""
        rows: list[tuple[int, Member]] = []
        waiting = [(0, member) for member in reversed(self.members.values()) if member.parent is None]
        while waiting:
            depth, member = waiting.pop()
            rows.append((depth, member))
            waiting += [(depth + 1, child) for child in reversed(member.children)]
        return rows

    def _spawn(self, row: Row) -> None:
        name, parent_id, changes = _text(row["member"]), row.get("parent"), row.get("changes") or {}
        if name in self.members or not isinstance(changes, dict):
            raise ValueError("spawned before, or changes of no shape")
        parent = self.members[parent_id] if parent_id is not None else None
        seed, time = row.get("seed"), _float(row["time"])
        algorithm = _text(row.get("algorithm") or (parent.algorithm if parent else None))
        steps = _int(row.get("steps", parent.steps if parent else 0))
        parameters = {**(parent.parameters if parent else {}), **changes}
        member = Member(name, parent, algorithm, changes, parameters, None if seed is None else _int(seed), time, steps)
        member.steps, member.updated = steps, time
        self.members[name] = member
        if parent is not None:
            parent.children.append(member)
        for key, value in changes.items():
            history = self.changes.setdefault(key, [])
            history.append(Change(time, steps, name, value))
            if len(history) > CHANGES:
                thin(history, CHANGES, CHANGES_WHOLE, lambda change: int(change.time))

    def _slots(self, row: Row) -> None:
        slots = row["slots"]
        if not isinstance(slots, list):
            raise TypeError("not a list")
        self.slots = [_text(slot) for slot in slots]

    def _open(self, row: Row) -> None:
        self.lower_bound = row.get("ranked_by") == "lower_bound"

    def _select(self, row: Row) -> None:
        """Why a parent was chosen; the spawn that follows says who."""

    def _pass(self, row: Row) -> None:
        """What matters to the orchestrator alone."""

    def _slice_start(self, member: Member, row: Row) -> None:
        slot, steps = _text(row["slot"]), _int(row["from_steps"])
        member.activity, member.slot, member.steps = "running", slot, steps

    def _slice_end(self, member: Member, row: Row) -> None:
        member.steps, member.slot = _int(row["to_steps"]), None
        if member.activity == "running":
            member.activity = "waiting"

    def _evaluate(self, member: Member, row: Row) -> None:
        score, std, episodes = _float(row["mean"]), _float(row["std"]), _int(row["episodes"])
        low, high = row["ci"]
        ci, steps = (_float(low), _float(high)), _int(row.get("steps", member.steps))
        if self.crown is not None and (self.crown.member, self.crown.steps) == (member, steps) and "fresh" in row:
            self.crown = _crown(member, row["fresh"] | {"steps": steps})  # it was played again
        member.score, member.std, member.ci, member.episodes = score, std, ci, episodes
        member.steps = max(steps, member.steps)
        member.best = score if member.best is None else max(score, member.best)
        member.history.append((steps, score))
        thin(member.history, HISTORY, HISTORY_WHOLE, lambda point: point[0])

    def _promote(self, member: Member, row: Row) -> None:
        rank = _int(row["rank"])
        if rank < 1:
            raise ValueError("ranks begin at 1")
        if rank == 1:
            self.crown = _crown(member, row)
        if (before := self._ranks.get(rank)) is not None:
            before.rank = None
        if member.rank is not None:
            self._ranks.pop(member.rank, None)
        member.rank = rank
        self._ranks[rank] = member

    def _park(self, member: Member, row: Row) -> None:
        member.activity, member.slot = "parked", None

    def _revive(self, member: Member, row: Row) -> None:
        member.activity, member.reason = "waiting", ""

    def _retire(self, member: Member, row: Row) -> None:
        member.reason = _text(row.get("reason") or "")
        member.activity, member.slot = "retired", None


EVENTS: Mapping[str, Callable[[Board, Row], None]] = {
    "spawn": Board._spawn,
    "slots": Board._slots,
    "select": Board._select,
    "open": Board._open,
    **dict.fromkeys(("generation", "capacity", "pause", "resume", "stop", "refuse", "finish"), Board._pass),
}
MEMBER_EVENTS: Mapping[str, Callable[[Board, Member, Row], None]] = {
    "slice_start": Board._slice_start,
    "slice_end": Board._slice_end,
    "evaluate": Board._evaluate,
    "promote": Board._promote,
    "park": Board._park,
    "revive": Board._revive,
    "retire": Board._retire,
}


def fold(rows: Iterable[Row]) -> Board:
    """The board that these rows add up to."""
    board = Board()
    for row in rows:
        board.add(row)
    return board


class Journal:
    """The board of a tournament, kept up to date by `refresh`.

    Args:
        root: the tournament's directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.board = Board()
        self._tail = Tail(root / FILE)
        self._restarts = 0

    def refresh(self) -> bool:
        """Fold what is new; whether there was anything."""
        changed = False
        while rows := self._tail.read(READ_BYTES):
            changed |= self._restarted()
            for row in rows:
                self.board.add(row)
            changed = True
        return self._restarted() or changed

    def _restarted(self) -> bool:
        """Whether the file is another one now, in which case the board begins anew."""
        if self._tail.restarts == self._restarts:
            return False
        self._restarts = self._tail.restarts
        self.board = Board()
        return True


def _crown(member: Member, row: Row) -> Crown:
    """Of a row with steps, mean and ci, or else of the member's last evaluation."""
    ci = row.get("ci", member.ci)
    mean = _float(row.get("mean", 0.0 if member.score is None else member.score))
    bounds = None if ci is None else (_float(ci[0]), _float(ci[1]))
    return Crown(member, _int(row.get("steps", member.steps)), mean, bounds)


def _int(value: Any) -> int:  # noqa: ANN401 - any JSON value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def _float(value: Any) -> float:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError("not a number")  # a NaN is text in a row
    return float(value)


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
