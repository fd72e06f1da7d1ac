"""Statistics of scores, on plain numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 20  # numbers that the bootstrap draws at once


def iqm(values: NDArray[Any], axis: int = -1) -> Any:  # noqa: ANN401 - scalar or array
    """Interquartile mean (arXiv 2108.13264): the mean of the middle half, a quarter of the values cut at each end."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    cut = int(0.25 * count)
    return ordered.take(range(cut, count - cut), axis=axis).mean(axis=axis)


def bootstrap_ci(
    values: NDArray[Any],
    statistic: Callable[..., Any],
    seed: int,
    confidence: float = 0.95,
    samples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap.

    Args:
        values: (K,) at least one.
        statistic: takes an array and `axis`, like `numpy.mean`.
        seed: of the draws.
        confidence: share of the draws between the bounds.
        samples: draws of K values with replacement.

    Returns:
        Lower and upper bound of the statistic.
    """
    random = np.random.default_rng(seed)
    rows = max(1, CHUNK // len(values))
    drawn = np.concatenate(
        [
            statistic(values[random.integers(0, len(values), (min(rows, samples - first), len(values)))], axis=-1)
            for first in range(0, samples, rows)
        ]
    )
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)
