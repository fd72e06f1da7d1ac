import numpy as np
import pytest

from erlcli.tournament.scores import Sample


def sample_of(values):
    return Sample(float(np.mean(values)), float(np.std(values)), len(values))


def test_two_samples_together_are_all_their_episodes():
    one, two = np.asarray([1.0, 5.0, 9.0]), np.asarray([-3.0, 100.0])
    both = sample_of(one) + sample_of(two)
    whole = sample_of(np.concatenate([one, two]))
    assert (both.mean, both.std, both.episodes) == pytest.approx((whole.mean, whole.std, whole.episodes))


def test_the_interval_by_hand():
    assert Sample(10.0, 4.0, 16).ci == pytest.approx((10 - 1.959964, 10 + 1.959964))


def test_more_episodes_narrow_it():
    once = Sample(10.0, 4.0, 20)
    twice = once + once
    assert twice.mean == 10.0
    assert twice.ci[1] - twice.ci[0] == pytest.approx((once.ci[1] - once.ci[0]) / 2**0.5)
