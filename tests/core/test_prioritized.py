"""The sum tree against plain sums and searches."""

import numpy as np
import pytest
import torch

from erlcli.core.prioritized import FANOUT, SumTree, level_rows

CPU = torch.device("cpu")


def tree_of(priorities):
    tree = SumTree(len(priorities), CPU)
    tree.set(torch.arange(len(priorities)), torch.as_tensor(priorities))
    return tree


def assert_sums(tree):
    for lower, upper in zip(tree.levels, tree.levels[1:], strict=False):
        assert torch.equal(upper.view(-1)[: len(lower)], lower.sum(1))


def test_shapes():
    assert level_rows(1) == [1] and level_rows(FANOUT) == [1]
    assert level_rows(FANOUT + 1) == [2, 1]
    assert level_rows(1_000_000) == [7813, 62, 1]


@pytest.mark.parametrize("size", [1, 5, FANOUT, FANOUT + 1, 3 * FANOUT**2 + 7])
def test_every_node_is_the_sum_of_its_children_after_random_updates(size):
    random = np.random.default_rng(size)
    tree, plain = SumTree(size, CPU), np.zeros(size)
    for _ in range(20):
        index = random.choice(size, min(size, 50), replace=False)
        priority = random.random(len(index)) * 10 ** random.uniform(-6, 8)
        tree.set(torch.as_tensor(index), torch.as_tensor(priority))
        plain[index] = priority
        assert_sums(tree)
        assert np.array_equal(tree[torch.arange(size)].numpy(), plain)
        assert float(tree.total) == pytest.approx(plain.sum(), rel=1e-12)


def test_sums_depend_on_the_leaves_alone():
    """So a tree that is built anew from a checkpoint draws the same."""
    random = torch.Generator().manual_seed(0)
    tree = SumTree(1000, CPU)
    for _ in range(100):
        index = torch.randint(1000, (64,), generator=random)
        tree.set(index, torch.rand(64, generator=random) * 1e8)
    fresh = tree_of(tree[torch.arange(1000)])
    assert all(torch.equal(a, b) for a, b in zip(tree.levels, fresh.levels, strict=True))


def test_of_an_index_that_comes_twice_the_larger_priority_stays_in_any_order():
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        tree = tree_of([9.0, 9.0])
        tree.set(torch.tensor([1, 1, 1]), torch.tensor([1.0, 3.0, 2.0])[order])
        assert tree[torch.tensor([0, 1])].tolist() == [9.0, 3.0]
        assert float(tree.total) == 12.0


@pytest.mark.parametrize("size", [7, 400, 20_000])
def test_draws_are_those_of_a_search_in_the_cumulative_sum(size):
    """One draw from each of B equal shares: a transcription of the paper's appendix B.2.1."""
    random = np.random.default_rng(size)
    # Sixteenths sum without rounding, so both searches meet the very same numbers.
    plain = random.integers(0, 64, size) / 16.0
    tree = tree_of(plain)
    for seed in range(5):
        drawn = tree.sample(64, torch.Generator().manual_seed(seed))
        u = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        mass = (np.arange(64) + u) * (plain.sum() / 64)
        expected = np.searchsorted(np.cumsum(plain), mass, side="right")
        assert np.array_equal(drawn.numpy(), expected)


def test_frequencies_are_proportional_to_priorities():
    plain = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0]).repeat(50)
    tree, generator = tree_of(plain), torch.Generator().manual_seed(1)
    counts = torch.zeros(len(plain))
    for _ in range(1000):
        counts += torch.bincount(tree.sample(80, generator), minlength=len(plain))
    assert (counts[plain == 0] == 0).all()
    expected = plain / plain.sum() * 80_000
    assert ((counts - expected).abs() <= 5 * expected.sqrt()).all()


def test_priorities_of_very_different_size_keep_the_sums_exact_and_zeros_undrawn():
    """A TD error of 1e8 among thousandths, come and gone."""
    size = 3000
    plain = torch.full((size,), 1e-3, dtype=torch.float64)
    plain[::2] = 0.0
    tree, before = tree_of(plain), tree_of(plain).total
    tree.set(torch.tensor([1234]), torch.tensor([1e8]))
    generator = torch.Generator().manual_seed(0)
    assert (tree.sample(256, generator) == 1234).all()
    tree.set(torch.tensor([1234]), torch.tensor([0.0]))
    assert torch.equal(tree.total, before), "a difference was kept instead of a sum"
    drawn = torch.cat([tree.sample(256, generator) for _ in range(50)])
    assert (drawn % 2 == 1).all()


@pytest.mark.parametrize("place", [0, FANOUT - 1, FANOUT, 999])
def test_the_only_positive_priority_is_always_drawn(place):
    """Whatever rounding does: `rest` may be the whole sum."""
    tree = SumTree(1000, CPU)
    for value in (5e-324, 1e-300, 0.1, 1 / 3, 1e300):
        tree.set(torch.tensor([place]), torch.tensor([value], dtype=torch.float64))
        assert (tree.sample(64, torch.Generator().manual_seed(0)) == place).all(), value
