"""Numbers for people, the same in commands, dashboard and messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


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
