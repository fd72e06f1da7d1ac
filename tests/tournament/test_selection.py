"""Selection against numbers worked out by hand."""

import math
from random import Random

import pytest

from erlcli.recipe.tournament import SelectionSection
from erlcli.tournament.selection import draw, probabilities, softmax, z_scores


def test_z_scores_by_hand():
    assert z_scores([1.0, 2.0, 3.0]) == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    assert z_scores([5.0, 5.0]) == [0.0, 0.0]
    assert z_scores([-7.0]) == [0.0]


def test_softmax_by_hand():
    """z = -1, 1 at temperature 0.5: odds of e^4 to 1."""
    low, high = softmax([0.0, 10.0], 0.5)
    assert high / low == pytest.approx(math.e**4)
    assert low + high == pytest.approx(1.0)
    assert softmax([3.0, 3.0, 3.0], 0.1) == pytest.approx([1 / 3] * 3)
    assert softmax([0.0, 1e308, 1.0], 1e-6)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("scores", "section", "expected"),
    [
        # two draws of three: the best in 5 of 9, the second in 3 of 9, the last in 1 of 9
        ([3.0, 1.0, 2.0], {"kind": "tournament", "size": 2}, [5 / 9, 1 / 9, 3 / 9]),
        ([1.0, 1.0, 2.0], {"kind": "tournament", "size": 2}, [2 / 9, 2 / 9, 5 / 9]),
        ([1.0, 2.0], {"kind": "tournament", "size": 1}, [0.5, 0.5]),
        ([4.0, 1.0, 3.0, 2.0], {"kind": "truncation", "share": 0.5}, [0.5, 0.0, 0.5, 0.0]),
        ([4.0, 1.0, 3.0, 2.0], {"kind": "truncation", "share": 0.25}, [1.0, 0.0, 0.0, 0.0]),
        ([4.0, 3.0, 3.0, 2.0], {"kind": "truncation", "share": 0.5}, [0.5, 0.25, 0.25, 0.0]),
        ([1.0], {"kind": "truncation", "share": 0.1}, [1.0]),
    ],
)
def test_probabilities_by_hand(scores, section, expected):
    assert probabilities(scores, SelectionSection(**section)) == pytest.approx(expected)


def test_draws_have_these_probabilities():
    random, weights = Random(1), [0.5, 0.0, 0.3, 0.2]
    counts = [0] * 4
    for _ in range(20_000):
        counts[draw(weights, random)] += 1
    assert [count / 20_000 for count in counts] == pytest.approx(weights, abs=0.015)
    assert counts[1] == 0


def test_rounding_at_the_end_gives_somebody_who_may_be_drawn():
    class Last:
        def random(self):
            return 1.0

    assert draw([0.3, 0.7, 0.0], Last()) == 1
