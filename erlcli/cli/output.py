"""How commands speak: errors on stderr, results on stdout, colour only where a person reads."""

from __future__ import annotations

import json
import sys
from typing import Any

from erlcli.errors import ErlError
from erlcli.runs.text import count, quoted, seconds, shorten

__all__ = ["count", "fail", "print_json", "quoted", "seconds", "shorten"]


def fail(error: ErlError) -> None:
    """Print an error: what, expected, found, remedy."""
    head, *rest = str(error).split("\n")
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False)
        console.print(Text.assemble(("error: ", "bold red"), head), soft_wrap=True)
        for line in rest:
            console.print(Text(line, style="dim" if line.startswith("  expected") else ""), soft_wrap=True)
        return
    print("\n".join([f"error: {head}", *rest]), file=sys.stderr)


def print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """One JSON value on stdout, readable where a person reads."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, allow_nan=False), flush=True)
