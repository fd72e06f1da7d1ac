"""A tournament at one moment, in values that nobody changes any more: what its screens show, whichever thread reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erlcli.runs.journal import Journal
from erlcli.runs.jsonl import JsonFile
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned
from erlcli.runs.members import Change, Member
from erlcli.runs.view import LIVE, state_of


@dataclass(frozen=True)
class Entry:
    """A member.

    Attributes:
        id: its name.
        place: as the tournament ranks it, from 1; None before its first evaluation.
        parent: id of whom it has its first weights from.
        lineage: ids of its ancestors, the oldest first, and its own.
        algorithm: as in its recipe.
        changes: of its recipe against its parent's, each with the parent's value (None where that is not known).
        parameters: all changed keys that hold for it.
        seed: of its run.
        born: seconds since the epoch.
        born_steps: env steps that its first weights had seen.
        updated: seconds since the epoch of the last row about it.
        activity: waiting, running, parked or retired.
        state: the same, or champion, whatever that does.
        slot: where it trains right now.
        steps: env steps, its ancestors' included.
        score: mean return of the last evaluation.
        std: of the returns.
        ci: of the mean.
        episodes: of that evaluation.
        history: (steps, score) of its evaluations.
        reason: why it was retired.
    """

    id: str
    place: int | None
    parent: str | None
    lineage: tuple[str, ...]
    algorithm: str
    changes: tuple[tuple[str, Any, Any], ...]
    parameters: Mapping[str, Any]
    seed: int | None
    born: float
    born_steps: int
    updated: float
    activity: str
    state: str
    slot: str | None
    steps: int
    score: float | None
    std: float | None
    ci: tuple[float, float] | None
    episodes: int
    history: tuple[tuple[int, float], ...]
    reason: str

    @property
    def margin(self) -> float | None:
        """Half the width of the score's confidence interval."""
        return None if self.ci is None else (self.ci[1] - self.ci[0]) / 2


@dataclass(frozen=True)
class Standings:
    """A tournament.

    Attributes:
        name: of the tournament.
        env: the task.
        state: what the orchestrator said last; `dead` where it was killed before it could say more.
        live: whether an orchestrator is there to answer requests.
        entries: members, the best first.
        tree: the family tree from top to bottom: depth and id of each member.
        changes: of each hyper-parameter, in order of time.
        champion: id of the best.
        score: mean return of the champion's weights, whatever its member has become since.
        ci: of that mean.
        busy: slots at which a member trains.
        slots: that there are.
        started: seconds since the epoch of the first row.
        worked: seconds during which an orchestrator was at work, until the last row.
        updated: seconds since the epoch of the last row.
        skipped: rows of the journal that say nothing that is understood.
        answers: to requests by their ids: why they were refused, or nothing.
    """

    name: str = ""
    env: str = "?"
    state: str = "starting"
    live: bool = False
    entries: tuple[Entry, ...] = ()
    tree: tuple[tuple[int, str], ...] = ()
    changes: Mapping[str, tuple[Change, ...]] | None = None
    champion: str | None = None
    score: float | None = None
    ci: tuple[float, float] | None = None
    busy: int = 0
    slots: int = 0
    started: float = 0.0
    worked: float = 0.0
    updated: float = 0.0
    skipped: int = 0
    answers: Mapping[str, str] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Members by what they do."""
        return Counter(entry.activity for entry in self.entries)

    def entry(self, member: str | None) -> Entry | None:
        """A member by its id."""
        return next((entry for entry in self.entries if entry.id == member), None)

    def seconds(self, now: float) -> float | None:
        """How long it was worked on so far; None before it began."""
        if not self.updated:
            return None
        return self.worked + (max(now - self.updated, 0.0) if self.live else 0.0)


class StandingsReader:
    """Reads a tournament's directory and makes `Standings` of it, anew only for members that have changed.

    Args:
        path: the tournament's directory.

    Attributes:
        latest: what was read last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.latest = Standings(name=path.absolute().name)
        self._layout = RunLayout(path)
        self._journal = Journal(path)
        self._status = JsonFile(self._layout.status)
        self._entries: dict[str, tuple[object, Entry]] = {}
        self._seen: str | None = None
        self._grown: object = None
        self._tree: tuple[tuple[int, str], ...] = ()
        self._changes: dict[str, tuple[Change, ...]] = {}

    def refresh(self) -> bool:
        """Read on; whether anything differs."""
        changed = self._journal.refresh()
        self._status.refresh()  # its time alone, once a second, is no news
        state = state_of(self._status.row, is_owned(self._layout.lock))
        if not changed and state == self._seen:
            return False
        self._seen = state
        self.latest = self._standings(state)
        return True

    def _standings(self, state: str) -> Standings:
        board = self._journal.board
        if self._grown != (grown := (id(board), len(board.members))):  # only a spawn grows tree and changes
            self._grown = grown
            self._tree = tuple((depth, member.id) for depth, member in board.lineage())
            self._changes = {key: tuple(history) for key, history in board.changes.items()}
        live, crown = state in LIVE, board.crown
        return Standings(
            name=self.latest.name,
            env=str(self._status.row.get("env") or "?"),
            state=state,
            live=live,
            entries=tuple(self._entry(place, member, live=live) for place, member in enumerate(board.ranking(), 1)),
            tree=self._tree,
            changes=self._changes,
            champion=crown.member.id if crown else None,
            score=crown.mean if crown else None,
            ci=crown.ci if crown else None,
            busy=board.busy if live else 0,
            slots=len(board.slots),
            started=board.started,
            worked=board.seconds,
            updated=board.updated,
            skipped=board.skipped,
            answers=dict(board.answers),
        )

    def _entry(self, place: int, member: Member, *, live: bool) -> Entry:
        """The member as it is now; the same object as before where nothing about it has changed."""
        facts = (member.updated, member.state, member.slot, member.steps, len(member.history))
        stamp = (id(member), *facts, place, live)
        known = self._entries.get(member.id)
        if known is None or known[0] != stamp:
            self._entries[member.id] = known = (stamp, entry_of(place, member, live=live))
        return known[1]


def entry_of(place: int, member: Member, *, live: bool = True) -> Entry:
    """A member's facts; nobody runs where no orchestrator is `live`, as after one that was killed."""
    before = member.parent.parameters if member.parent else {}
    idle = member.activity == "running" and not live
    activity = "waiting" if idle else member.activity
    return Entry(
        id=member.id,
        place=None if member.score is None else place,
        parent=member.parent.id if member.parent else None,
        lineage=tuple(ancestor.id for ancestor in member.lineage),
        algorithm=member.algorithm,
        changes=tuple((key, before.get(key), value) for key, value in member.changes.items()),
        parameters=member.parameters,
        seed=member.seed,
        born=member.born,
        born_steps=member.born_steps,
        updated=member.updated,
        activity=activity,
        state=activity if member.state == member.activity else member.state,
        slot=None if idle else member.slot,
        steps=member.steps,
        score=member.score,
        std=member.std,
        ci=member.ci,
        episodes=member.episodes,
        history=tuple(member.history),
        reason=member.reason,
    )
