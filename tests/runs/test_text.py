"""Numbers for people."""

import pytest

from erlcli.runs.text import interval, score


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.956, "0.96"),
        (-0.2, "-0.20"),
        (0.0, "0.00"),
        (9.994, "9.99"),
        (10.0, "10.0"),
        (301.44, "301.4"),
        (-78.3, "-78.3"),
    ],
)
def test_returns_have_decimals_that_tell(value: float, text: str) -> None:
    assert score(value) == text


def test_an_interval_has_those_of_its_mean() -> None:
    assert interval([0.9412, 0.9688], 0.956) == "[0.94, 0.97]"
    assert interval((9.6, 10.84), 10.2) == "[9.6, 10.8]"
    assert interval([298.04, 300.71], 299.8) == "[298.0, 300.7]"
