import numpy as np
import pytest

from erlcli.tui.axes import clock_labels, clock_ticks, extent, labels, roomy, short, smooth, ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]),
        (-130, 310, 5, [-100, 0, 100, 200, 300]),
        (0.0003, 0.001, 4, [0.0004, 0.0006, 0.0008, 0.001]),
        (0, 1, 2, [0, 1]),
        (5, 5, 4, []),
        (0, float("inf"), 4, []),
        (0, 1, 0, []),
    ],
)
def test_ticks_are_round_numbers(low, high, most, expected):
    assert ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(50))
def test_ticks_lie_inside_and_are_few_but_not_too_few(seed):
    draws = np.random.default_rng(seed)
    low, span = draws.normal() * 10.0 ** draws.integers(-6, 9), 10.0 ** draws.uniform(-6, 9)
    for most in (2, 3, 5, 8, 12):
        values = ticks(low, low + span, most)
        assert len(values) <= most
        assert len(values) >= most // 3
        assert all(low - span * 1e-6 <= value <= low + span * (1 + 1e-6) for value in values)


def test_labels_tell_values_apart_with_as_few_digits_as_that_takes():
    assert labels([0, 0.5, 1.0]) == ["0", "0.5", "1.0"]
    assert labels([-100, 0, 100]) == ["-100", "0", "100"]
    assert labels([0, 500_000, 1_000_000]) == ["0", "0.5M", "1.0M"]
    assert labels([0, 20_000, 40_000]) == ["0", "20k", "40k"]
    assert labels([0.0004, 0.0006]) == ["0.0004", "0.0006"]
    assert labels([1e-6, 2e-6]) == ["1e-6", "2e-6"]
    assert labels([]) == []


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.908, 0.98, "0.95"),
        (1.2e6, 1.9e6, "1.5M"),
        (0.012, 0.019, "0.015"),
        (-1.9, -1.2, "-1.5"),
        (480, 520, "500"),
        (-1e-3, 1e-3, "0"),
    ],
)
def test_a_tick_alone_is_told_in_full(low, high, expected):
    assert labels(ticks(low, high, 1)) == [expected]


def test_a_tick_of_a_clock_alone_is_told_in_full():
    assert clock_labels([129_600.0]) == ["36:00h"]
    assert clock_labels([172_800.0]) == ["2d"]
    assert clock_labels([3630.0]) == ["1:00:30"]
    assert clock_labels([7200.0]) == ["2:00h"]
    assert clock_labels([90.0]) == ["1:30"]
    assert clock_labels([1.5]) == ["1.5s"]


def test_clock_ticks_are_those_of_a_clock():
    assert clock_ticks(0, 100, 4) == [0, 30, 60, 90]
    assert clock_labels([0, 30, 60, 90]) == ["0:00", "0:30", "1:00", "1:30"]
    assert clock_ticks(0, 10_000, 4) == [0, 3600, 7200]
    assert clock_labels([0, 3600, 7200]) == ["0:00h", "1:00h", "2:00h"]
    assert clock_labels([7200, 7230, 7260]) == ["2:00:00", "2:00:30", "2:01:00"]  # a zoom into a long run
    assert clock_labels(clock_ticks(0, 86400 * 9, 5)) == ["0d", "2d", "4d", "6d", "8d"]
    assert clock_labels(clock_ticks(0, 2, 3)) == ["0:00", "0:01", "0:02"]
    assert clock_labels(clock_ticks(0, 1, 3)) == ["0s", "0.5s", "1.0s"]
    assert clock_ticks(3, 3, 5) == [] and clock_labels([]) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (303.03, "303.0"),
        (-21.5, "-21.50"),
        (0.87306, "0.873"),
        (0.0109, "0.0109"),
        (0.00038, "3.8e-4"),
        (1e-3, "0.0010"),
        (1e-5, "1e-5"),
        (1_234_567, "1.23M"),
        (1e15, "1.0e15"),
        (float("nan"), "nan"),
    ],
)
def test_short_numbers(value, expected):
    assert short(value) == expected
    assert len(short(value)) <= 8


def test_extent_and_room():
    assert extent([np.array([1.0, np.nan]), np.array([-2.0, np.inf])]) == (-2.0, 1.0)
    assert extent([np.array([np.nan])]) is None
    assert extent([]) is None
    assert roomy(0, 100) == (-4, 104)
    assert roomy(5, 5) == (2.5, 7.5)
    assert roomy(0, 0)[0] < 0 < roomy(0, 0)[1]


def test_smoothing_is_the_plain_average_of_exponential_weights():
    x, y = np.array([0.0, 1.0, 3.0, 3.5]), np.array([1.0, 5.0, -2.0, 4.0])
    expected = []
    for i in range(len(x)):
        weights = np.exp(-(x[i] - x[: i + 1]) / 2.0)
        expected.append((weights * y[: i + 1]).sum() / weights.sum())
    assert smooth(x, y, 2.0) == pytest.approx(expected)


def test_smoothing_has_no_bias_at_its_start_and_keeps_constants():
    x = np.arange(50.0)
    assert smooth(x, np.full(50, 7.0), 10.0) == pytest.approx(np.full(50, 7.0))
    assert smooth(x, x, 0.0) is x


def test_a_constant_curve_stays_one_number_when_it_is_smoothed():
    x = np.cumsum(np.random.default_rng(0).uniform(0.1, 3.0, 500))
    assert set(smooth(x, np.full(500, 50.1), 10.0).tolist()) == {50.1}


def test_smoothing_passes_over_what_is_not_finite():
    x, y = np.arange(4.0), np.array([np.nan, 2.0, np.nan, 4.0])
    found = smooth(x, y, 1.0)
    assert np.isnan(found[0]) and found[1] == found[2] == 2.0 and 2 < found[3] < 4
