"""Probability of improvement, and bootstraps within strata."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from erlcli.core import statistics
from erlcli.core.statistics import bootstrap_ci, iqm, probability_of_improvement, stratified_bootstrap_ci


def test_probability_of_improvement_by_hand() -> None:
    x, y = np.asarray([3.0, 1.0]), np.asarray([1.0, 2.0, 5.0])
    # 3 beats 1 and 2 and loses to 5; 1 ties with 1 and loses twice: (2 + 0.5) / 6
    assert probability_of_improvement(x, y) == pytest.approx(2.5 / 6)
    assert probability_of_improvement(y, x) == pytest.approx(3.5 / 6)
    assert probability_of_improvement(x, x) == 0.5
    assert probability_of_improvement(np.asarray([9.0]), y) == 1.0


def test_probability_of_improvement_of_normal_scores_is_that_of_the_closed_form() -> None:
    """P(X > Y) = Phi(d / sqrt 2) for unit normals a distance d apart."""
    random = np.random.default_rng(0)
    found = probability_of_improvement(random.normal(1.0, 1.0, 2000), random.normal(0.0, 1.0, 2000))
    assert found == pytest.approx(0.7602, abs=0.02)


def test_probability_of_improvement_goes_row_by_row() -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 4, 3))
    rows = [probability_of_improvement(a, b) for a, b in zip(x, y, strict=True)]
    assert probability_of_improvement(x, y).tolist() == rows


def test_one_stratum_is_the_plain_bootstrap() -> None:
    values = np.random.default_rng(2).normal(size=17)
    assert stratified_bootstrap_ci([values], iqm, seed=5) == bootstrap_ci(values, iqm, seed=5)


def test_strata_keep_their_sizes_and_are_not_mixed() -> None:
    """A pooled bootstrap of {0, 0, 0} and {10} would have other means than 2.5."""

    def mean(*strata: np.ndarray) -> np.ndarray:
        return np.concatenate(strata, axis=-1).mean(axis=-1)

    assert stratified_bootstrap_ci([np.zeros(3), np.full(1, 10.0)], mean, seed=0) == (2.5, 2.5)


def test_the_interval_of_an_improvement_is_that_of_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs against two have 16 equally likely resamples, which can be counted."""
    x, y = np.asarray([2.0, 4.0]), np.asarray([1.0, 3.0])
    every = [
        probability_of_improvement(np.asarray(a), np.asarray(b))
        for a, b in itertools.product(itertools.product(x, repeat=2), itertools.product(y, repeat=2))
    ]
    wanted = np.percentile(every, [10, 90])
    monkeypatch.setattr(statistics, "CHUNK", 64)  # several rounds of draws
    found = stratified_bootstrap_ci([x, y], probability_of_improvement, seed=0, confidence=0.8, samples=4000)
    assert found == pytest.approx(wanted)
