"""Members that fail: who is tried again, who is retired, and what is told where nobody is left to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erlcli.errors import DamagedError, DivergedError, ErlError, RecipeError
from erlcli.runs.text import plural, quoted

if TYPE_CHECKING:
    from erlcli.tournament.ledger import Entry
    from erlcli.tournament.orchestrator import Orchestrator

FATAL = (RecipeError, DivergedError, DamagedError)  # it would fail of them again


class Failures:
    """Decides what becomes of members that failed.

    Args:
        orchestrator: whose they are.
    """

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._o = orchestrator

    def take(self, member: str, error: ErlError, *, training: bool) -> None:
        """A member failed: again, elsewhere, or never again.

        Args:
            member: in the race.
            error: of which.
            training: whether within a slice, rather than when it was made or evaluated.
        """
        entry = self._o.ledger.alive[member]
        self._o.end_slice(
            member,
            None if training else entry.steps,
            "failed",
            reason=error.message,
            found=error.found,
            kind=type(error).__name__,
            exit_code=error.exit_code,
        )
        if isinstance(error, DamagedError):
            self._blame_parent(entry)
        if isinstance(error, FATAL):
            self._o.retire(member, error.message)
        elif entry.failures >= self._o.recipe.section.max_failures:
            self._o.retire(member, f"failed {plural(entry.failures, 'time')} in a row: {error.message}")

    def _blame_parent(self, entry: Entry) -> None:
        """Retire the parent of a child that was born with a damaged checkpoint: the next child would get it, too."""
        parent, born = entry.member.parent, entry.member.born_steps
        if parent is None or entry.fused or entry.steps != born:
            return
        if parent.id not in self._o.ledger.alive or parent.id in self._o.killed:
            return  # it has left already, or is about to
        try:
            self._o.store.check(parent.id, born)
        except DamagedError as error:
            self._o.places.remove({"event": "retire", "member": parent.id, "reason": error.message})

    def told(self) -> ErlError:
        """What a user is told where all fail: the last of the reasons."""
        last, root = self._o.ledger.last_failure, self._o.layout.root
        run = quoted(root / "members" / str(last.get("member")) / "recipe.toml")
        remedy = f"erl train {run} shows the failure alone"
        if last.get("kind") == DamagedError.__name__:
            remedy = f"restore {quoted(root / 'members')} from a backup, then erl resume {quoted(root)}"
        return ErlError.from_json({
            "kind": last.get("kind"),
            "message": f"{root}: {plural(self._o.ledger.failed, 'slice')} in a row failed",
            "expected": "members that train",
            "found": f"{last.get('member')}: {last.get('reason')}",
            "remedy": remedy,
        })  # fmt: skip
