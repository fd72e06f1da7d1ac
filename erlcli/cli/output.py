"""How commands speak: errors on stderr, results on stdout, colour only where a person reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from erlcli.errors import ErlError


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


def seconds(value: float | None) -> str:
    """A duration as `42 s`, `3:05` or `1:02:03`."""
    if value is None:
        return "?"
    whole = int(value)
    if whole < 60:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def count(value: float) -> str:
    """A number of steps as `950`, `12.3k`, `4.10M` or `1.00B`."""
    if abs(value) < 1000:
        return f"{value:.0f}"
    if abs(value) < 1e6:
        return f"{value / 1e3:.1f}k"
    if abs(value) < 1e9:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e9:.2f}B"


def shorten(path: Path) -> str:
    """`path` as seen from here, where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
