"""Rollouts as sequences, against loops that say the same row by row.

Dimension letters: T time steps, N environments.
"""

import pytest
import torch

from erlcli.core.sequences import Sequences, restarts
from erlcli.core.types import FinalObs, Rollout, Start

T, N = 12, 5


def make_rollout(seed, autoreset):
    source = torch.Generator().manual_seed(seed)
    ended = torch.rand(T, N, generator=source) < 0.25
    truncated = ended & (torch.rand(T, N, generator=source) < 0.5)
    valid = torch.ones(T, N, dtype=torch.bool)
    index = torch.zeros(0, 2, dtype=torch.int64)
    if autoreset == "next_step":
        valid[0, 0] = False  # an episode has ended with the rollout before
        for t in range(1, T):
            valid[t] = ~(ended[t - 1] & valid[t - 1])
        ended &= valid
        truncated &= valid
    else:
        index = ended.nonzero()
    start = Start(torch.randn(N, 3, generator=source), torch.rand(N, generator=source) < 0.5)
    zeros = torch.zeros(T + 1, N, 1)
    return Rollout(
        zeros, zeros[1:], zeros[1:, :, 0], ended & ~truncated, truncated, valid,
        FinalObs(index, torch.zeros(len(index), 1)), {}, 0, start=start,
    )  # fmt: skip


def slow_sequences(rollout, begins):
    """(n, [t, ...]) of each, environment by environment."""
    found = []
    for n in range(N):
        rows = []
        for t in range(T):
            if rows and (begins[t, n] or not rollout.valid[t, n]):
                found.append((n, rows))
                rows = []
            if rollout.valid[t, n]:
                rows.append(t)
        if rows:
            found.append((n, rows))
    return found


cases = pytest.mark.parametrize(
    ("seed", "autoreset"), [(s, kind) for s in range(6) for kind in ("same_step", "next_step")]
)


@cases
def test_a_memory_is_emptied_where_an_episode_begins(seed, autoreset):
    rollout = make_rollout(seed, autoreset)
    begins = restarts(rollout)
    assert torch.equal(begins[0], rollout.start.fresh)
    ended = rollout.terminated | rollout.truncated
    if autoreset == "same_step":
        assert torch.equal(begins[1:], ended)
    else:  # the row behind an end still shows that episode's last observation
        assert torch.equal(begins[1:], ~rollout.valid)
        assert not (begins[1:] & ended).any()


def test_an_episode_that_is_cut_with_the_rollout_goes_on():
    rollout = make_rollout(0, "next_step")
    rollout.truncated[-1] = rollout.valid[-1]
    assert torch.equal(restarts(rollout)[-1], ~rollout.valid[-1])


def test_a_rollout_without_a_memory_has_no_restarts():
    rollout = make_rollout(0, "same_step")
    with pytest.raises(TypeError, match="memory"):
        restarts(Rollout(**{**rollout.__dict__, "start": None}))


@cases
def test_sequences_are_stretches_of_one_episode(seed, autoreset):
    rollout = make_rollout(seed, autoreset)
    begins = restarts(rollout)[:-1]
    found = Sequences.of(rollout.valid, begins)
    expected = slow_sequences(rollout, begins)
    assert len(found.begin) == len(expected)
    for p, (n, rows) in enumerate(expected):
        begin, length = int(found.begin[p]), int(found.length[p])
        assert [int(r) for r in found.rows[begin : begin + length]] == [t * N + n for t in rows]
        assert int(found.env[p]) == n and int(found.step[p]) == rows[0]
        assert bool(found.goes_on[p]) == (not begins[rows[0], n])
    assert sorted(found.rows.tolist()) == rollout.valid.flatten().nonzero().flatten().tolist()


@cases
@pytest.mark.parametrize("longest", [1, 3, 100])
def test_long_sequences_are_cut_and_go_on(seed, autoreset, longest):
    rollout = make_rollout(seed, autoreset)
    begins = restarts(rollout)[:-1]
    found = Sequences.of(rollout.valid, begins, longest)
    expected = [
        (n, rows[i : i + longest], bool(i) or not bool(begins[rows[0], n]))
        for n, rows in slow_sequences(rollout, begins)
        for i in range(0, len(rows), longest)
    ]
    assert found.length.tolist() == [len(rows) for _, rows, _ in expected]
    assert found.rows.tolist() == [t * N + n for n, rows, _ in expected for t in rows]
    assert found.step.tolist() == [rows[0] for _, rows, _ in expected]
    assert found.goes_on.tolist() == [goes_on for _, _, goes_on in expected]


@cases
@pytest.mark.parametrize("count", [1, 3, 100])
def test_parts_hold_every_sequence_once_and_are_about_equal(seed, autoreset, count):
    rollout = make_rollout(seed, autoreset)
    found = Sequences.of(rollout.valid, restarts(rollout)[:-1])
    order = torch.randperm(len(found.begin), generator=torch.Generator().manual_seed(seed))
    parts = found.parts(count, order)
    assert torch.cat(parts).tolist() == order.tolist()
    assert 1 <= len(parts) <= count and all(len(part) for part in parts)
    rows = [int(found.length[part].sum()) for part in parts]
    assert max(rows) <= len(found.rows) / count + int(found.length.max())


@cases
def test_packing_takes_the_first_step_of_all_then_the_second(seed, autoreset):
    rollout = make_rollout(seed, autoreset)
    found = Sequences.of(rollout.valid, restarts(rollout)[:-1])
    chosen = torch.randperm(len(found.begin), generator=torch.Generator().manual_seed(seed))[:7]
    index, sizes, numbers = found.pack(chosen)
    assert sorted(numbers.tolist()) == sorted(chosen.tolist())
    lengths = found.length[numbers].tolist()
    assert lengths == sorted(lengths, reverse=True)
    expected = [
        int(found.begin[p]) + t for t in range(lengths[0]) for p in numbers.tolist() if int(found.length[p]) > t
    ]
    assert index.tolist() == expected
    assert sizes.tolist() == [sum(length > t for length in lengths) for t in range(lengths[0])]


@pytest.mark.parametrize("longest", [None, 2])
def test_a_rollout_of_resets_has_no_sequence(longest):
    found = Sequences.of(torch.zeros(3, 2, dtype=torch.bool), torch.ones(3, 2, dtype=torch.bool), longest)
    assert len(found.rows) == len(found.begin) == len(found.length) == 0
