"""What a journal says of members: each of them, the champion, and the values that hyper-parameters got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Member:
    """One competitor.

    Attributes:
        id: its name, which is also its folder's under `members/`.
        parent: whom it has its first weights from.
        algorithm: as in its recipe.
        changes: of its recipe against its parent's.
        parameters: all changed keys that hold for it, its ancestors' included.
        seed: of its run.
        born: seconds since the epoch.
        born_steps: env steps that its first weights had seen.
        activity: `waiting`, `running`, `parked` or `retired`.
        rank: what it was promoted to last, if it still holds that.
        slot: where it trains right now.
        steps: env steps, its ancestors' included.
        score: mean return of the last evaluation.
        std: of the returns.
        ci: of the mean.
        episodes: of that evaluation.
        best: highest score so far.
        history: (steps, score), old ones thinned.
        reason: why it was retired.
        updated: time of the last row about it.
        children: in order of birth.
    """

    id: str
    parent: Member | None
    algorithm: str
    changes: Mapping[str, Any]
    parameters: Mapping[str, Any]
    seed: int | None
    born: float
    born_steps: int = 0
    activity: str = "waiting"
    rank: int | None = None
    slot: str | None = None
    steps: int = 0
    score: float | None = None
    std: float | None = None
    ci: tuple[float, float] | None = None
    episodes: int = 0
    best: float | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    reason: str = ""
    updated: float = 0.0
    children: list[Member] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`champion`, whatever it does, or else its activity."""
        return "champion" if self.rank == 1 else self.activity

    @property
    def lineage(self) -> list[Member]:
        """Its ancestors, the oldest first, and itself."""
        line: list[Member] = []
        member: Member | None = self
        while member is not None:
            line.append(member)
            member = member.parent
        return line[::-1]


@dataclass(frozen=True)
class Crown:
    """The champion as it was promoted, whatever its member has become since.

    Attributes:
        member: of whose weights it is.
        steps: at which it had them.
        mean: return of episodes that they were not chosen by.
        ci: of that mean.
    """

    member: Member
    steps: int
    mean: float
    ci: tuple[float, float] | None


@dataclass(frozen=True)
class Change:
    """A value that a hyper-parameter got.

    Attributes:
        time: seconds since the epoch.
        steps: env steps that the member's first weights had seen.
        member: its id.
        value: from the recipe.
    """

    time: float
    steps: int
    member: str
    value: Any
