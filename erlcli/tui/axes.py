"""Numbers on axes: round tick values, their labels, ranges that hold all data, and smoothing.

Shapes: P points of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from erlcli.runs.text import count

Axis = Literal["steps", "seconds"]
Floats = npt.NDArray[np.float64]
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers (1, 2 or 5 times a power of ten) from `low` to `high`, evenly spaced."""
    span = high - low
    if most < 1 or not math.isfinite(span) or span <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(span / most))
    factor = next((factor for factor in (1, 2, 5, 10, 20) if _number_of(low, high, factor * step) <= most), 50)
    return _multiples(low, high, factor * step)


def clock_ticks(low: float, high: float, most: int) -> list[float]:
    """The same for seconds: multiples of what a clock face has, or of whole days."""
    span = high - low
    if most < 1 or not math.isfinite(span) or span <= 0:
        return []
    if span < most:
        return ticks(low, high, most)
    days = (86400.0 * factor * 10**power for power in range(9) for factor in (1, 2, 5))
    for step in (*map(float, _CLOCK_STEPS), *days):
        if _number_of(low, high, step) <= most:
            return _multiples(low, high, step)
    return []


def _number_of(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step + 0.0 for i in range(_number_of(low, high, step))]  # + 0.0: no minus zero


def labels(values: list[float]) -> list[str]:
    """Tick values as text, all with as many digits as tell them apart: `0.0005`, `-100`, `1.5M`; one alone in full."""
    if not values:
        return []
    largest = max(map(abs, values))
    step = min((b - a for a, b in pairwise(values)), default=largest or 1.0)
    unit, suffix = next(((unit, suffix) for unit, suffix in _UNITS if largest >= max(unit, 1e4)), (1.0, ""))
    if step <= 0 or largest < 1e-4:
        return [short(value) for value in values]
    if len(values) == 1:
        digits = next((d for d in range(9) if math.isclose(round(largest / unit, d), largest / unit)), 9)
    else:
        digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return [f"{value / unit:.{digits}f}{suffix}" if value else "0" for value in values]


def clock_labels(values: list[float]) -> list[str]:
    """Seconds as `0:30` (minutes and seconds) below an hour, as `1:05` with an `h` behind it above, then as days.

    Above an hour seconds are shown where labels a minute apart would be the same.
    """
    if not values:
        return []
    largest = max(map(abs, values))
    alone = next((unit for unit in (86400.0, 60.0, 1.0) if largest % unit == 0), 0.0)  # what tells a single tick
    step = min((b - a for a, b in pairwise(values)), default=alone)
    if step >= 86400:
        return [f"{value / 86400:.0f}d" for value in values]
    if largest >= 3600 and step < 60:
        return [f"{int(v) // 3600}:{int(v) % 3600 // 60:02d}:{int(v) % 60:02d}" for v in values]
    if largest >= 3600:
        return [f"{int(value) // 3600}:{int(value) % 3600 // 60:02d}h" for value in values]
    if step < 1:
        return [f"{text}s" for text in labels(values)]
    return [f"{int(value) // 60}:{int(value) % 60:02d}" for value in values]


def short(value: float) -> str:
    """A number in at most eight characters with about four significant digits."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1e12:
        return f"{value:.1e}".replace("e+", "e")
    if size >= 1e5:
        return count(value)
    if size >= 100 or value == 0:
        return f"{value:.1f}" if value else "0"
    if size >= 10:
        return f"{value:.2f}"
    if size >= 1e-3:
        return f"{value:.3f}" if size >= 0.1 else f"{value:.4f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def extent(arrays: Iterable[npt.NDArray[np.float64]]) -> tuple[float, float] | None:
    """The smallest and the largest finite number in all arrays; None where there is none."""
    low, high = math.inf, -math.inf
    for array in arrays:
        finite = array[np.isfinite(array)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else None


def roomy(low: float, high: float, margin: float = 0.04) -> tuple[float, float]:
    """The range with some room at both ends; never empty."""
    span = high - low
    if span <= max(abs(low), abs(high)) * 1e-12:
        span = 2 * (abs(high) or 1.0)
        return low - span / 4, high + span / 4
    return low - span * margin, high + span * margin


def smooth(x: Floats, y: Floats, scale: float) -> Floats:
    """An exponential moving average without the bias of its start.

    A point's weight falls by e over `scale` on the x axis, however densely points lie, since old rows are thinned out.

    Args:
        x: (P,) ascending, finite.
        y: (P,); points that are not finite keep the average of those before them.
        scale: in units of x; the raw values come back where it isn't positive.

    Returns:
        (P,) averages.
    """
    if scale <= 0 or len(x) < 2:
        return y
    average, weight = math.nan, 0.0
    keep = np.exp(-np.diff(x, prepend=x[0]) / scale).tolist()
    averages: list[float] = []
    for factor, value in zip(keep, y.tolist(), strict=True):
        weight *= factor
        if math.isfinite(value):
            weight += 1.0
            average = average + (value - average) / weight if weight > 1.0 else value  # equal values stay what they are
        averages.append(average)
    return np.array(averages)
