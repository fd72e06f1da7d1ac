"""Errors that a user can act on, each with its exit code.

Every message names the thing that is wrong (a recipe key, a file, a process), what was expected, what was found and
what to do. Anything that is not an `ErlError` is a defect of the tool itself and leaves with exit code 1.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
FREE_SPACE = "free space, then the same command again"


class ErlError(Exception):
    """A failure with a message for the user.

    Args:
        message: what is wrong, naming the key or file.
        expected: what would have been right.
        found: what was there instead.
        remedy: what the user can do about it.
        details: JSON-able facts for `errors/<process>.json` (traceback of the env, its seed and step ...).
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        """The whole message, one fact a line."""
        lines = [self.message]
        for label in ("expected", "found", "remedy"):
            value = getattr(self, label)
            if value is not None:
                lines.append(f"  {label + ':':<10}{value}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """What crosses a process boundary; `from_json` gives the same error back."""
        return {
            "kind": type(self).__name__,
            "exit_code": self.exit_code,
            "message": self.message,
            "expected": self.expected,
            "found": self.found,
            "remedy": self.remedy,
            "details": self.details,
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> ErlError:
        """The error that `to_json` wrote, as an instance of its own class."""
        kind = _KINDS.get(str(row.get("kind")), ErlError)
        return kind(
            str(row.get("message", "unknown error")),
            expected=row.get("expected"),
            found=row.get("found"),
            remedy=row.get("remedy"),
            details=row.get("details") or {},
        )


def one_line(error: Exception) -> str:
    """An error as an event tells it."""
    if not isinstance(error, ErlError):
        return str(error)
    labels = {"expected": error.expected, "found": error.found, "remedy": error.remedy}
    facts = (f"{label}: {' '.join(text.split())}" for label, text in labels.items() if text is not None)
    return "; ".join((error.message, *facts))


class RecipeError(ErlError):
    """A recipe, an option or a path that can't be used."""

    exit_code = 2


class EnvError(ErlError):
    """The environment raised, hung, left, or returned something that is no transition."""

    exit_code = 3


class DivergedError(ErlError):
    """A loss, gradient or weight became NaN or infinite."""

    exit_code = 4


class OwnedError(ErlError):
    """The run belongs to a live process."""

    exit_code = 5


class DamagedError(ErlError):
    """A checkpoint that does not match its manifest, or can't be read."""

    exit_code = 6


class PeerLostError(ErlError):
    """Another learner of the group is gone: the one that learns of it leaves, and has nothing to say about the cause.

    Its exit code is seen by whoever started the processes, never by a user.
    """

    exit_code = 75


_KINDS: dict[str, type[ErlError]] = {
    kind.__name__: kind
    for kind in (ErlError, RecipeError, EnvError, DivergedError, OwnedError, DamagedError, PeerLostError)
}


def is_full(error: OSError) -> bool:
    """Whether a disk, or what a user may have of it, is used up."""
    return error.errno in FULL


def unwritable(what: Path | str, error: OSError, *, expected: str, remedy: str) -> ErlError:
    """A file or folder that can't be written, in the user's words.

    Args:
        what: the path, perhaps behind the option that gave it.
        error: why.
        expected: which path would have done.
        remedy: for any other failure than a full disk, which no other name helps against.
    """
    message, found = f"{what}: can't be written", (error.strerror or str(error)).lower()
    if is_full(error):
        return ErlError(message, expected="free space", found=found, remedy=FREE_SPACE)
    return RecipeError(message, expected=expected, found=found, remedy=remedy)
