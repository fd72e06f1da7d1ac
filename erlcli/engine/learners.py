"""The learner processes of a run, which live and die together: with one of them gone the others can't take a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from erlcli.core.cpus import usable_cpus
from erlcli.engine.child import Child
from erlcli.engine.failures import reported
from erlcli.engine.member import Member, name_of
from erlcli.errors import PeerLostError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout

BLAME_SECONDS = 3.0  # for the one that is to blame to be found, once others have lost it


@dataclass(frozen=True)
class Departure:
    """How the learners have ended.

    Attributes:
        name: of the one that decided it.
        code: its exit code.
        done: whether all have done what they were to do, rather than been ended by os._exit(0) in an env.
    """

    name: str
    code: int
    done: bool = False


class Learners:
    """Starts, watches and ends them.

    Args:
        layout: of the run.
        members: those that run on this machine, or that are this process's to start.
        lock_fd: of the run's lock, which they inherit.
    """

    def __init__(self, layout: RunLayout, members: Sequence[Member], lock_fd: int) -> None:
        self._layout, self._members, self._lock_fd = layout, members, lock_fd
        self._children: list[Child] = []
        self._lost_at: float | None = None  # when the first one left while others went on

    @staticmethod
    def of(layout: RunLayout, recipe: AnyRecipe, lock_fd: int) -> Learners:
        """All learners that a recipe asks for, on this machine."""
        count = recipe.engine.learners
        if count == 1:
            return Learners(layout, [Member()], lock_fd)
        meet = f"file://{layout.rendezvous}"
        return Learners(layout, [Member(rank, count, rank, meet) for rank in range(count)], lock_fd)

    @property
    def running(self) -> list[Child]:
        """Those that are alive."""
        return [child for child in self._children if child.poll() is None]

    @property
    def together(self) -> bool:
        """Whether there are several."""
        return self._members[0].world_size > 1

    def start(self, attempt: int, until: int | None = None) -> None:
        """Start all of them.

        Args:
            attempt: number of this start.
            until: version to end at; None for the budget's end.
        """
        self._lost_at = None
        self._layout.rendezvous.unlink(missing_ok=True)
        for rank in range(self._members[0].world_size):
            self._layout.error(name_of(rank)).unlink(missing_ok=True)  # of an earlier start
        arguments = [str(self._layout.root), str(attempt), str(self._lock_fd)]
        end = [] if until is None else [str(until)]
        self._children = []
        for member in self._members:
            self._layout.position(member.name).unlink(missing_ok=True)
            child = Child.spawn(
                member.name,
                "erlcli.engine.learner",
                [*arguments, member.to_argument(), *end],
                self._layout.output(member.name),
                threads=max(1, usable_cpus() // len(self._members)),
                inherit=(self._lock_fd,),
            )
            self._children.append(child)

    def wait(self, seconds: float) -> Departure | None:
        """How they have ended, or None while they go on; after at most `seconds`.

        Where one has failed, and others have left because of that or go on still, the one that failed decides.
        """
        (self.running or self._children)[0].wait(seconds)
        left = [(child, code) for child in self._children if (code := child.poll()) is not None]
        if not left:
            return None
        self._lost_at = self._lost_at or time.monotonic()
        failed = [(c, code) for c, code in left if code != PeerLostError.exit_code and not self._is_done(c, code)]
        if failed:
            child, code = max(failed, key=lambda pair: reported(pair[0].name, self._layout) is not None)
            return Departure(child.name, code)
        for rank in range(self._members[0].world_size):  # on other machines too
            if (error := reported(name_of(rank), self._layout)) is not None:
                return Departure(name_of(rank), error.exit_code)
        late = time.monotonic() - self._lost_at > BLAME_SECONDS
        lost = [(child, code) for child, code in left if code]
        if lost and late:
            return Departure(lost[0][0].name, lost[0][1])
        if not lost and (len(left) == len(self._children) or late):
            return Departure(self._children[0].name, 0, done=True)
        return None

    def _is_done(self, child: Child, code: int) -> bool:
        row = read_json(self._layout.process(child.name)) or {}
        return code == 0 and row.get("pid") == child.pid and row.get("phase") in ("done", "stopped")

    def leave(self, seconds: float) -> None:
        """Wait for those that were asked to leave, for at most `seconds` in all."""
        deadline = time.monotonic() + seconds
        for child in self._children:
            child.wait(max(0.0, deadline - time.monotonic()))

    def end(self, grace_seconds: float = 0.0) -> None:
        """See to it that they are gone; see `Child.end`."""
        if grace_seconds:
            for child in self.running:
                child.terminate()
            self.leave(grace_seconds)
        for child in self._children:
            child.end()
