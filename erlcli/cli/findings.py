"""How checks speak: a line for each finding as soon as it is known, and what is being looked at meanwhile."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erlcli.envs.finding import Finding

INDENT = 21
COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def finding_lines(finding: Finding, width: int = 80) -> list[str]:
    """A finding as lines of at most `width` columns, save for words that are longer: status, name, message, remedy."""
    head = f"{finding.status:<6}{finding.name:<{INDENT - 6}}"
    lines = _wrap(finding.message, head, width)
    if finding.remedy is not None:
        lines += _wrap(finding.remedy, " " * (INDENT - 3) + "-> ", width)
    return lines


def _wrap(text: str, head: str, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        max(width, INDENT + 20),
        initial_indent=head,
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def tally(findings: Iterable[Finding]) -> str:
    """`12 ok, 1 warn, 0 fail`."""
    statuses = [finding.status for finding in findings]
    return ", ".join(f"{statuses.count(status)} {status}" for status in ("ok", "warn", "fail"))


class FindingPrinter:
    """Prints findings on stdout, and what is being looked at on a terminal's stderr.

    Args:
        quiet: leave stdout to `--json`.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        dumb = os.environ.get("TERM") == "dumb"
        self._live = sys.stderr.isatty() and not dumb
        self._colour = sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")
        self._width = min(80, shutil.get_terminal_size().columns)

    def looking_at(self, name: str) -> None:
        """Say what is under way; it goes again with the next call."""
        if self._live:
            print(f"\r\x1b[2Klooking at {name} ...", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Take that line away."""
        if self._live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def __call__(self, finding: Finding) -> None:
        """Print a finding."""
        self.done()
        if self.quiet:
            return
        first, *rest = finding_lines(finding, self._width)
        if self._colour:
            first = f"\x1b[{COLOURS[finding.status]}m{finding.status}\x1b[0m{first[len(finding.status) :]}"
        print("\n".join([first, *rest]), flush=True)
