"""What a check has found. Light, since commands import it for their own checks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: what was looked at.
        status: `warn` is something to know or to improve; `fail` has to be mended.
        message: what was found.
        remedy: what to do about it.
        details: JSON-able facts: figures, a traceback.
    """

    name: str
    status: Status
    message: str
    remedy: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All fields, for `--json`."""
        return dataclasses.asdict(self)
