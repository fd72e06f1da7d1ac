"""Numbers for people."""

from pathlib import Path

import pytest

from erlcli.runs.text import count, interval, plural, quoted, score, seconds


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.4, "999"), (999.6, "1.0k"), (999_940, "999.9k"), (999_960, "1.00M"), (-999_960, "-1.00M"),
        (999_994_000, "999.99M"), (999_996_000, "1.00B"), (4_100_000, "4.10M"),
    ],
)  # fmt: skip
def test_counts_take_the_unit_of_the_rounded_number(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.97, "10 s"), (10.4, "10 s"), (59.4, "59 s"), (59.8, "1:00"),
        (60.0, "1:00"), (185.9, "3:05"), (3599.9, "59:59"), (3723.0, "1:02:03"),
    ],
)  # fmt: skip
def test_durations_take_the_unit_of_the_rounded_number(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_an_interval_has_those_of_its_mean() -> None:
    assert interval([0.9412, 0.9688], 0.956) == "[0.94, 0.97]"
    assert interval((9.6, 10.84), 10.2) == "[9.6, 10.8]"
    assert interval([298.04, 300.71], 299.8) == "[298.0, 300.7]"


def test_paths_in_commands_are_quoted_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert quoted(tmp_path / "runs" / "a") == "runs/a"
    assert quoted("my run") == "'my run'"
    assert quoted(Path("/elsewhere/it's")) == "'/elsewhere/it'\"'\"'s'"


def test_one_thing_is_told_as_one() -> None:
    assert [plural(n, "row") for n in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]
