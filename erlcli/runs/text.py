"""Numbers and paths for people, the same in commands, dashboard and messages."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

BARS = "▁▂▃▄▅▆▇█"


def seconds(value: float | None) -> str:
    """A duration as `42 s`, `3:05` or `1:02:03`."""
    if value is None:
        return "?"
    if round(value, 1) < 10:
        return f"{value:.1f} s"
    if round(value) < 60:
        return f"{value:.0f} s"
    whole = max(int(value), 60)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def count(value: float) -> str:
    """A number of steps as `950`, `12.3k`, `4.10M` or `1.00B`."""
    size = abs(value)  # the unit is that of the rounded number: 999,960 is 1.00M and not 1000.0k
    if round(size) < 1000:
        return f"{value:.0f}"
    if round(size / 1e3, 1) < 1000:
        return f"{value / 1e3:.1f}k"
    if round(size / 1e6, 2) < 1000:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e9:.2f}B"


def decimals(score: float) -> int:
    """How many decimals of a return tell something: two below 10, where the tasks are that pay 1 at most."""
    return 1 if abs(score) >= 10 else 2


def score(value: float) -> str:
    """A return as `301.4` or `0.96`."""
    return f"{value:.{decimals(value)}f}"


def interval(bounds: Sequence[float], mean: float) -> str:
    """Bounds of a return, with as many decimals as its mean has: `[298.0, 300.7]`."""
    low, high = bounds
    return f"[{low:.{decimals(mean)}f}, {high:.{decimals(mean)}f}]"


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a line of bars, averaged down to at most `width` of them."""
    if not values:
        return ""
    buckets = min(width, len(values))
    bounds = [len(values) * i // buckets for i in range(buckets + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[round((m - low) / span * (len(BARS) - 1))] for m in means)


def shorten(path: Path) -> str:
    """`path` as seen from here, where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def quoted(path: Path | str) -> str:
    """`path` as seen from here, for a command that is to be copied into a shell."""
    return shlex.quote(shorten(Path(path)))


def task(env: str) -> str:
    """An environment's id without its namespace; of one from a file, without the folder."""
    return env.rpartition("/")[2]


def plural(number: int, noun: str, many: str | None = None) -> str:
    """A number of things: `1 episode`, `1,000 episodes`; `many` where an s is not enough, `2 policies`."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
