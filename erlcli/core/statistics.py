"""Statistics of scores, on plain numpy arrays.

After "Deep reinforcement learning at the edge of the statistical precipice" (arXiv 2108.13264): interquartile means,
bootstraps within strata, and the probability of improvement. One deviation: strata may differ in size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def probability_of_improvement(x: NDArray[Any], y: NDArray[Any]) -> Any:  # noqa: ANN401 - scalar or array
    """How likely a score drawn from `x` is above one drawn from `y`, ties by half: P(X > Y) of arXiv 2108.13264.

    Args:
        x: (..., K) scores.
        y: (..., L) scores; the leading axes are those of `x`.

    Returns:
        (...) in [0, 1]. It is the Mann-Whitney statistic over K L.
    """
    mine, theirs = x[..., :, None], y[..., None, :]
    return ((mine > theirs) + 0.5 * (mine == theirs)).mean(axis=(-2, -1))


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
    return stratified_bootstrap_ci([values], lambda drawn: statistic(drawn, axis=-1), seed, confidence, samples)


def stratified_bootstrap_ci(
    strata: Sequence[NDArray[Any]],
    statistic: Callable[..., Any],
    seed: int,
    confidence: float = 0.95,
    samples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap in which every stratum keeps its size: of each, as many values are drawn as it has.

    Args:
        strata: (K_i,) each, at least one value; such as the runs of one algorithm in one environment.
        statistic: takes one array (..., K_i) a stratum and gives (...).
        seed: of the draws.
        confidence: share of the draws between the bounds.
        samples: draws.

    Returns:
        Lower and upper bound of the statistic.
    """
    random = np.random.default_rng(seed)
    rows = max(1, CHUNK // sum(len(values) for values in strata))
    drawn = np.concatenate(
        [
            statistic(*(values[random.integers(0, len(values), (count, len(values)))] for values in strata))
            for count in (min(rows, samples - first) for first in range(0, samples, rows))
        ]
    )
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)
