"""The replay against a slow transcription of what it promises, and by hand."""

import math
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch

from erlcli.core.prioritized import Priorities
from erlcli.core.replay import Replay
from erlcli.core.replay_storage import required_bytes
from erlcli.core.types import Box, FinalObs, Rollout
from erlcli.errors import DamagedError

GAMMA = 0.9


@dataclass
class Row:
    """One step of one environment, as the slow replay keeps it."""

    obs: float
    action: float
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    next_obs: float
    follows: bool  # begins where the row before it ended


class SlowReplay:
    """Lists of rows, and loops over them."""

    def __init__(self, num_envs, rows, n_step):
        self.columns = [[] for _ in range(num_envs)]
        self.rows, self.n_step = rows, n_step

    def add(self, rollout):
        finals = {(t, n): o for (t, n), o in zip(rollout.final_obs.index.tolist(), rollout.final_obs.obs, strict=True)}
        for n, column in enumerate(self.columns):
            for t in range(len(rollout.reward)):
                obs = ident(rollout.obs[t, n])
                column.append(
                    Row(
                        obs,
                        float(rollout.action[t, n].flatten()[0]),
                        float(rollout.reward[t, n]),
                        bool(rollout.terminated[t, n]),
                        bool(rollout.truncated[t, n]),
                        bool(rollout.valid[t, n]),
                        ident(finals.get((t, n), rollout.obs[t + 1, n])),
                        bool(column) and (t > 0 or column[-1].next_obs == obs),
                    )
                )
            del column[: -self.rows]

    def transitions(self):
        """What can be drawn: observation to (action, reward, next observation, discount)."""
        found = {}
        for column in self.columns:
            for i, row in enumerate(column):
                if row.valid:
                    found[row.obs] = (row.action, *self.n_step_return(column, i))
        return found

    def n_step_return(self, column, i):
        total, k = 0.0, 0
        while True:
            row = column[i + k]
            total += GAMMA**k * row.reward
            k += 1
            following = column[i + k] if i + k < len(column) else None
            over = row.terminated or row.truncated
            if over or k == self.n_step or following is None or not following.valid or not following.follows:
                return total, row.next_obs, 0.0 if row.terminated else GAMMA**k


def ident(obs):
    """Every observation of these tests holds its own number."""
    digits = obs.flatten().tolist()
    return float(sum(256**i * digit for i, digit in enumerate(digits)) if obs.dtype == torch.uint8 else digits[0])


class Envs:
    """Rollouts of environments whose observations are numbers that never come twice.

    Args:
        num_envs: N.
        mode: `same` resets within the last step of an episode, `next` in the step after it.
        shape: of an observation.
        dtype: of an observation.
    """

    def __init__(self, num_envs, mode, seed=0, shape=(2,), dtype=torch.float32):
        self.n, self.mode, self.shape, self.dtype = num_envs, mode, shape, dtype
        self.random = np.random.default_rng(seed)
        self.last = 0
        self.reset()

    def fresh(self):
        self.last += 1
        if self.dtype == torch.uint8:
            size = math.prod(self.shape)
            return torch.tensor([self.last >> 8 * i & 255 for i in range(size)], dtype=torch.uint8).view(self.shape)
        return torch.full(self.shape, float(self.last))

    def reset(self):
        self.obs = [self.fresh() for _ in range(self.n)]
        self.over = [False] * self.n

    def rollout(self, length, ends=0.15):
        shape = (length, self.n)
        obs = torch.zeros(length + 1, self.n, *self.shape, dtype=self.dtype)
        terminated, truncated = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        valid, finals = torch.ones(shape, dtype=torch.bool), []
        for n in range(self.n):
            for t in range(length):
                obs[t, n] = self.obs[n]
                if self.over[n]:  # a mere reset step
                    valid[t, n], self.over[n] = False, False
                    self.obs[n] = self.fresh()
                    continue
                self.obs[n] = self.fresh()
                if self.random.random() < ends:
                    (terminated if self.random.random() < 0.5 else truncated)[t, n] = True
                    if self.mode == "same":
                        finals.append(((t, n), self.obs[n]))
                        self.obs[n] = self.fresh()
                    else:
                        self.over[n] = True
            obs[length, n] = self.obs[n]
        reward = torch.as_tensor(self.random.normal(size=shape), dtype=torch.float32)
        action = torch.as_tensor(self.random.normal(size=(*shape, 3)), dtype=torch.float32)
        index = torch.tensor([at for at, _ in finals], dtype=torch.int64).view(-1, 2)
        last = torch.stack([o for _, o in finals]) if finals else obs.new_zeros(0, *self.shape)
        return Rollout(obs, action, reward, terminated, truncated, valid, FinalObs(index, last), {}, 0)


def cut(rollout):
    """What the loop does to the last rollout before a restart point."""
    rollout.truncated[-1] |= ~rollout.terminated[-1] & rollout.valid[-1]


def replay_of(num_envs, rows, n_step=1, shape=(2,), dtype="float32", **options):
    bounds = (-math.inf,) * math.prod(shape), (math.inf,) * math.prod(shape)
    return Replay(
        Box(shape, dtype, *bounds),
        (3,),
        torch.float32,
        num_envs=num_envs,
        capacity=rows * num_envs,
        gamma=GAMMA,
        n_step=n_step,
        **options,
    )


def assert_same_as(slow, replay, generator):
    """Every transition that can be drawn is drawn and right, and no other is."""
    expected = slow.transitions()
    assert len(replay) == len(expected)
    if not expected:
        return
    seen = set()
    for _ in range(20):
        batch = replay.sample(4 * len(expected), generator)
        for i, obs in enumerate(map(ident, batch.obs)):
            if obs in seen:
                continue
            seen.add(obs)
            action, reward, next_obs, discount = expected[obs]
            assert float(batch.action[i].flatten()[0]) == action
            assert float(batch.reward[i]) == pytest.approx(reward, rel=1e-5, abs=1e-6)
            assert ident(batch.next_obs[i]) == next_obs
            assert float(batch.discount[i]) == pytest.approx(discount, rel=1e-6)
        if len(seen) == len(expected):
            return
    raise AssertionError(f"{len(expected) - len(seen)} transitions were never drawn")


@pytest.mark.parametrize("priorities", [None, Priorities()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("mode", ["same", "next"])
@pytest.mark.parametrize("n_step", [1, 3, 20])
@pytest.mark.parametrize(("num_envs", "rows"), [(1, 1), (1, 23), (3, 17), (64, 9)])
def test_it_is_what_the_slow_replay_is_over_many_wraps(num_envs, rows, n_step, mode, priorities):
    envs = Envs(num_envs, mode, seed=rows)
    slow, replay = SlowReplay(num_envs, rows, n_step), replay_of(num_envs, rows, n_step, priorities=priorities)
    random, generator = np.random.default_rng(1), torch.Generator().manual_seed(0)
    added = 0
    for k in range(60 if num_envs < 64 else 25):
        rollout = envs.rollout(int(random.integers(1, rows + 1)), ends=random.choice([0.0, 0.15, 0.6]))
        restarts = random.random() < 0.2
        if restarts and random.random() < 0.5:
            cut(rollout)  # a planned restart point; without it, environments that failed and were made anew
        slow.add(rollout)
        assert replay.add(rollout) == int(rollout.valid.sum())
        added += len(rollout.reward)
        assert replay.end == added and replay.size == min(added, rows)
        if k % 3 == 0:
            assert_same_as(slow, replay, generator)
        if restarts:
            envs.reset()
    assert added > 5 * rows or num_envs == 64
    assert_same_as(slow, replay, generator)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 2, 1), "uint8"), ((), "float32")])
def test_observations_of_any_shape_and_dtype(shape, dtype):
    envs = Envs(3, "same", shape=shape, dtype=getattr(torch, dtype))
    slow, replay = SlowReplay(3, 11, 2), replay_of(3, 11, 2, shape=shape, dtype=dtype)
    for _ in range(12):
        rollout = envs.rollout(4)
        slow.add(rollout)
        replay.add(rollout)
    assert replay.sample(2, torch.Generator()).obs.dtype == getattr(torch, dtype)
    assert_same_as(slow, replay, torch.Generator().manual_seed(0))


# --- by hand ----------------------------------------------------------------------------------------------------------


def line(rewards, terminated=(), truncated=(), invalid=(), first=0.0, finals=None):
    """A rollout of one env whose observations count up from `first`."""
    length = len(rewards)

    def flags(where):
        return torch.tensor([[t in where] for t in range(length)])

    finals = finals or {}
    return Rollout(
        torch.arange(first, first + length + 1).view(-1, 1, 1),
        torch.zeros(length, 1, 3),
        torch.tensor(rewards).view(-1, 1),
        flags(terminated),
        flags(truncated),
        ~flags(invalid),
        FinalObs(
            torch.tensor([[t, 0] for t in finals], dtype=torch.int64).view(-1, 2),
            torch.tensor(list(finals.values())).view(-1, 1),
        ),
        {},
        0,
    )


def table(replay):
    """Observation to (reward, next observation, discount) of everything that can be drawn."""
    batch = replay.sample(200, torch.Generator().manual_seed(0))
    columns = (batch.obs, batch.reward, batch.next_obs, batch.discount)
    return {
        o: (round(r, 4), x, round(d, 4)) for o, r, x, d in zip(*(c.flatten().tolist() for c in columns), strict=True)
    }


def test_two_step_returns_by_hand():
    replay = replay_of(1, 10, n_step=2, shape=(1,))
    replay.add(line([1.0, 2.0, 4.0, 8.0, 16.0], terminated=[1], truncated=[3], finals={1: 100.0, 3: 200.0}))
    assert table(replay) == {
        0.0: (2.8, 100.0, 0.0),  # 1 + 0.9 * 2, and then it is over
        1.0: (2.0, 100.0, 0.0),
        2.0: (11.2, 200.0, 0.81),  # 4 + 0.9 * 8, cut by the time limit: bootstrapped from the true last observation
        3.0: (8.0, 200.0, 0.9),
        4.0: (16.0, 5.0, 0.9),  # the newest: one step is all there is
    }
    replay.add(line([32.0], first=5.0))
    assert table(replay)[4.0] == (44.8, 6.0, 0.81)  # 16 + 0.9 * 32


def test_reset_steps_are_never_drawn_nor_summed_by_hand():
    """Next-step autoreset: the row after the end holds the true last observation, its reward is not of any episode."""
    replay = replay_of(1, 10, n_step=3, shape=(1,))
    replay.add(line([1.0, 2.0, 999.0, 4.0], truncated=[1], invalid=[2]))
    assert table(replay) == {0.0: (2.8, 2.0, 0.81), 1.0: (2.0, 2.0, 0.9), 3.0: (4.0, 4.0, 0.9)}
    assert len(replay) == 3


def test_an_environment_that_was_reset_in_between_ends_its_episode():
    replay = replay_of(1, 10, n_step=3, shape=(1,))
    replay.add(line([1.0, 2.0]))
    replay.add(line([4.0], first=50.0))
    assert table(replay) == {0.0: (2.8, 2.0, 0.81), 1.0: (2.0, 2.0, 0.9), 50.0: (4.0, 51.0, 0.9)}


def test_a_terminated_episode_stays_terminated_at_a_restart():
    replay = replay_of(1, 10, shape=(1,))
    replay.add(line([1.0], terminated=[0]))
    replay.add(line([4.0], first=50.0))
    assert table(replay) == {0.0: (1.0, 1.0, 0.0), 50.0: (4.0, 51.0, 0.9)}


def test_the_oldest_rows_make_room_and_nothing_crosses_the_seam():
    replay = replay_of(1, 3, n_step=2, shape=(1,))
    for first in range(5):
        replay.add(line([float(2**first)], first=float(first)))
    assert table(replay) == {2.0: (11.2, 4.0, 0.81), 3.0: (22.4, 5.0, 0.81), 4.0: (16.0, 5.0, 0.9)}


def test_a_rollout_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="room for 3"):
        replay_of(1, 3, shape=(1,)).add(line([0.0] * 4))


def test_nothing_to_draw():
    replay = replay_of(1, 3, shape=(1,))
    with pytest.raises(ValueError, match="nothing to draw"):
        replay.sample(2, torch.Generator())


def test_what_was_added_is_a_copy():
    """Samplers write the next rollout where this one was."""
    replay = replay_of(1, 10, shape=(1,))
    rollout = line([1.0, 2.0], truncated=[0], finals={0: 100.0})
    replay.add(rollout)
    before = table(replay)
    for tensor in (rollout.obs, rollout.reward, rollout.final_obs.obs):
        tensor.fill_(-7.0)
    rollout.valid.zero_()
    assert table(replay) == before


def test_uniform_draws_are_uniform():
    replay = replay_of(3, 20)
    envs = Envs(3, "next")
    for _ in range(10):
        replay.add(envs.rollout(7))
    drawn = torch.cat([replay.sample(1000, torch.Generator().manual_seed(i)).index for i in range(50)])
    counts = torch.bincount(drawn)
    counts = counts[counts > 0]
    expected = 50_000 / len(replay)
    assert len(counts) == len(replay)
    assert ((counts - expected) ** 2 / expected).sum() < 1.6 * len(replay)  # chi squared


# --- priorities -------------------------------------------------------------------------------------------------------


def test_weights_and_frequencies_by_hand():
    replay = replay_of(1, 10, shape=(1,), priorities=Priorities(alpha=0.5, floor=0.0))
    replay.add(line([0.0] * 4))
    everything = replay.sample(4, torch.Generator().manual_seed(0))
    assert sorted(everything.index.tolist()) == [0, 1, 2, 3]  # new rows are alike, and shares are equal
    replay.update_priorities(torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, -4.0, 9.0, 0.0]))
    replay.beta = 0.5
    batch = replay.sample(6, torch.Generator().manual_seed(0))
    # Priorities 1, 2, 3, 0 of sum 6: (4 * p / 6)^-0.5, over the largest, which is that of row 0.
    assert batch.index.tolist() == [0, 1, 1, 2, 2, 2]
    expected = [1.0, *[math.sqrt(1 / 2)] * 2, *[math.sqrt(1 / 3)] * 3]
    torch.testing.assert_close(batch.weight, torch.tensor(expected))


def test_new_rows_have_the_largest_priority_so_far():
    replay = replay_of(1, 10, shape=(1,), priorities=Priorities(alpha=1.0, floor=0.5))
    replay.add(line([0.0] * 2))
    assert replay.state_dict()["priority"].tolist() == [1.0, 1.0]
    replay.update_priorities(torch.tensor([0, 1]), torch.tensor([7.0, 0.0]))
    replay.add(line([0.0], first=2.0))
    assert replay.state_dict()["priority"].tolist() == [7.5, 0.5, 7.5]


def test_rows_that_made_room_lose_their_priority():
    replay = replay_of(2, 3, priorities=Priorities())
    envs = Envs(2, "next")
    for _ in range(9):
        replay.add(envs.rollout(2, ends=0.4))
        index = replay.sample(16, torch.Generator().manual_seed(0)).index
        replay.update_priorities(index, torch.randn(16) * 100)
        held = replay.state_dict()["priority"]
        assert float(replay._tree.total) == pytest.approx(float(held.sum()))
        assert int((held > 0).sum()) == len(replay)


def test_a_td_error_of_1e8_and_one_that_is_no_number_leave_it_in_order():
    replay = replay_of(1, 8, shape=(1,), priorities=Priorities(alpha=0.6))
    replay.add(line([0.0] * 8))
    replay.update_priorities(torch.arange(8), torch.full((8,), 0.1))
    replay.update_priorities(torch.tensor([3]), torch.tensor([1e8]))
    batch = replay.sample(64, torch.Generator().manual_seed(0))
    assert (batch.index == 3).all() and torch.isfinite(batch.weight).all()
    replay.update_priorities(torch.tensor([3, 4]), torch.tensor([math.nan, math.inf]))
    batch = replay.sample(64, torch.Generator().manual_seed(0))
    assert (batch.index == 4).all() and torch.isfinite(batch.weight).all()
    replay.update_priorities(torch.tensor([3, 4]), torch.tensor([0.1, 0.1]))
    assert len(set(replay.sample(64, torch.Generator().manual_seed(0)).index.tolist())) == 8


def test_uniform_replay_takes_td_errors_and_ignores_them():
    replay = replay_of(1, 8, shape=(1,))
    replay.add(line([0.0] * 4))
    batch = replay.sample(8, torch.Generator().manual_seed(0))
    replay.update_priorities(batch.index, torch.randn(8))
    again = replay.sample(8, torch.Generator().manual_seed(0))
    assert torch.equal(batch.index, again.index) and again.weight.tolist() == [1.0] * 8


# --- to the disk and back ---------------------------------------------------------------------------------------------


def restored(replay, parts, make):
    """A replay from rows and state, as a checkpoint has them."""
    again = make()
    again.begin(parts[0][0])
    for first, last in parts:
        again.add(replay.rollout(first, last))
    again.load_state_dict(replay.state_dict())
    return again


@pytest.mark.parametrize("mode", ["same", "next"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_replay_goes_on_bit_for_bit(mode, prioritized):
    def make():
        return replay_of(3, 19, n_step=3, priorities=Priorities() if prioritized else None)

    envs, replay = Envs(3, mode), make()
    generator = torch.Generator().manual_seed(5)
    random = np.random.default_rng(0)
    for k in range(40):
        rollout = envs.rollout(int(random.integers(1, 8)))
        restarts = k % 4 == 3
        if restarts:
            cut(rollout)
        replay.add(rollout)
        replay.update_priorities(replay.sample(16, generator).index, torch.randn(16, generator=generator))
        if restarts:  # environments are reset after the checkpoint: the replay learns of it later
            bounds = sorted({replay.end - replay.size, *random.integers(replay.end - replay.size, replay.end, 3)})
            parts = list(zip(bounds, [*bounds[1:], replay.end], strict=True))
            again = restored(replay, parts, make)
            envs.reset()
        else:
            continue
        extra = envs.rollout(5)
        replay.add(extra)
        again.add(extra)
        assert (again.end, again.size, len(again)) == (replay.end, replay.size, len(replay))
        state = generator.get_state()
        one = replay.sample(256, generator)
        generator.set_state(state)
        other = again.sample(256, generator)
        for f in fields(one):
            assert torch.equal(getattr(one, f.name), getattr(other, f.name)), f.name


def test_rows_that_are_missing_are_found():
    replay = replay_of(1, 10, shape=(1,))
    replay.add(line([0.0] * 6))
    state = replay.state_dict()
    for first, last in ((0, 5), (1, 6)):
        again = replay_of(1, 10, shape=(1,))
        again.begin(first)
        again.add(replay.rollout(first, last))
        with pytest.raises(DamagedError, match="not whole"):
            again.load_state_dict(state)
    with pytest.raises(ValueError, match="rows 2 to 7"):
        replay.rollout(2, 7)


def test_a_smaller_replay_takes_the_newest_rows():
    replay = replay_of(1, 10, shape=(1,), priorities=Priorities())
    replay.add(line([0.0] * 8))
    replay.update_priorities(torch.arange(8), torch.arange(8.0))
    smaller = replay_of(1, 4, shape=(1,), priorities=Priorities())
    for first in range(0, 8, 2):
        smaller.add(replay.rollout(first, first + 2))
    smaller.load_state_dict(replay.state_dict())
    assert set(table(smaller)) == {4.0, 5.0, 6.0, 7.0}
    assert torch.equal(smaller.state_dict()["priority"], replay.state_dict()["priority"][-4:])


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prioritized", [False, True])
def test_the_bytes_that_are_announced_are_those_that_are_taken(prioritized):
    box = Box((4,), "uint8", (0.0,) * 4, (255.0,) * 4)
    options = {"num_envs": 4, "capacity": 10_001}
    replay = Replay(box, (), torch.int64, gamma=0.9, priorities=Priorities() if prioritized else None, **options)
    tensors = [v for v in vars(replay).values() if isinstance(v, torch.Tensor)]
    tensors += replay._tree.levels if prioritized else []
    taken = sum(t.numel() * t.element_size() for t in tensors)
    announced = required_bytes(box, (), torch.int64, prioritized=prioritized, **options)
    assert announced <= taken < announced + 100
    assert replay.rows == 2500


def test_last_observations_take_memory_only_while_their_rows_live():
    replay, envs = replay_of(2, 10), Envs(2, "same")
    for _ in range(200):
        replay.add(envs.rollout(5, ends=0.9))
    assert len(replay._finals.obs) <= 4 * 20
