import itertools

import pytest

from erlcli.runs.thin import evenly, thin


def identity(item):
    return item


def test_nothing_is_taken_out_within_the_limit():
    items = list(range(10))
    thin(items, 10, 4, identity)
    assert items == list(range(10))


def test_by_hand():
    # 8 old items at 0..7, room for (10 - 4) // 2 = 3 of them: intervals of 4 steps hold 2, those of 2 would hold 4
    items = list(range(12))
    thin(items, 10, 4, identity)
    assert items == [0, 4, 8, 9, 10, 11]


def test_what_stays_does_not_depend_on_how_often_it_was_done():
    once, often = list(range(1_000)), []
    for item in range(1_000):
        often.append(item)
        thin(often, 100, 20, identity)
    thin(once, 100, 20, identity)
    assert often[0] == 0 and often[-20:] == once[-20:]
    assert set(once[:-20]) <= set(often)
    assert max(b - a for a, b in itertools.pairwise(often)) <= 32  # 980 old ones over room for 40


@pytest.mark.parametrize(
    ("positions", "target", "expected"),
    [
        ([], 5, []),
        ([7], 5, [0]),
        ([7, 7, 7], 2, [0]),  # one place of a curve needs one row
        ([0, 1, 2, 3], 9, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 2, [0, 2]),
        ([0, 1, 2, 3, 1_000_000], 2, [0, 4]),
    ],
)
def test_evenly(positions, target, expected):
    assert evenly(positions, target) == expected
