"""Episodes against a slow transcription that goes through every environment step by step.

Every step's observation is a number of its own, so that it is known wherever it turns up.

Dimension letters: T time steps, N environments.
"""

import copy

import numpy as np
import pytest
import torch

from erlcli.core.trajectories import TrajectoryStore
from erlcli.core.types import Box, FinalObs, Rollout

INF = float("inf")
OBS = Box((2,), "float32", (-INF,) * 2, (INF,) * 2)
N = 3


def make(capacity=400, num_envs=N, obs=OBS):
    return TrajectoryStore(obs, (1,), torch.float32, num_envs=num_envs, capacity=capacity, device=torch.device("cpu"))


class Stream:
    """Rollouts that follow each other, with ends at random or where they are asked for.

    Args:
        autoreset: `same_step`, or `next_step` with rows that are only a reset.
        end_share: probability of an end at a step.
    """

    def __init__(self, seed=0, num_envs=N, autoreset="next_step", end_share=0.15):
        self.source = np.random.default_rng(seed)
        self.num_envs, self.autoreset, self.end_share = num_envs, autoreset, end_share
        self.count = 0
        self.over = np.zeros(num_envs, bool)
        self.obs = self.fresh()

    def fresh(self):
        numbers = np.arange(self.count, self.count + self.num_envs, dtype=np.float32)
        self.count += self.num_envs
        return np.stack([numbers, -numbers], 1)

    def reset(self):
        self.over[:] = False
        self.obs = self.fresh()

    def next(self, length, ends=None, reward=None):
        """A rollout; `ends` maps (t, n) to `terminated` or `truncated`."""
        obs, shape = [self.obs], (length, self.num_envs)
        terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
        for t in range(length):
            valid[t] = ~self.over
            if ends is None:
                luck = self.source.random(self.num_envs)
                terminated[t], truncated[t] = luck < self.end_share / 2, luck > 1 - self.end_share / 2
            for (when, n), kind in (ends or {}).items():
                if when == t:
                    (terminated if kind == "terminated" else truncated)[t, n] = True
            terminated[t] &= valid[t]
            truncated[t] &= valid[t]
            if self.autoreset == "next_step":
                self.over = terminated[t] | truncated[t]
            self.obs = self.fresh()
            obs.append(self.obs)
        rewards = self.source.normal(size=shape) if reward is None else np.full(shape, reward)
        stacked = torch.tensor(np.stack(obs))
        none = FinalObs(torch.zeros(0, 2, dtype=torch.int64), stacked[:0, 0])
        return Rollout(
            stacked, stacked[:-1, :, :1] * 10, torch.tensor(rewards, dtype=torch.float32), torch.tensor(terminated),
            torch.tensor(truncated), torch.tensor(valid), none, {}, 0,
        )  # fmt: skip


class SlowEpisodes:
    """Whole episodes of a stream, by loops; `episodes` holds lists of (obs, action, reward)."""

    def __init__(self, num_envs=N):
        self.open = [[] for _ in range(num_envs)]
        self.unsure = [None] * num_envs
        self.episodes = []

    def add(self, rollout):
        for n, waiting in enumerate(self.unsure):
            if waiting is not None:
                self.episodes.append(waiting)
            self.unsure[n] = None
        length = len(rollout.reward)
        for n in range(len(self.open)):
            for t in range(length):
                if not rollout.valid[t, n]:
                    continue
                step = (rollout.obs[t, n].tolist(), rollout.action[t, n].tolist(), rollout.reward[t, n].item())
                self.open[n].append(step)
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    if t == length - 1 and not rollout.terminated[t, n]:
                        self.unsure[n] = self.open[n]
                    else:
                        self.episodes.append(self.open[n])
                    self.open[n] = []

    def restart(self):
        self.open = [[] for _ in self.open]
        self.unsure = [None] * len(self.unsure)


def episodes(store):
    """What the store holds, as `SlowEpisodes` has it."""
    found, at = [], 0
    for length in store.lengths.tolist():
        slots = store.slots[at : at + length]
        columns = (store.obs[slots].tolist(), store.action[slots].tolist(), store.reward[slots].tolist())
        found.append(list(zip(*columns, strict=True)))
        at += length
    assert at == len(store)
    return found


def by_first_obs(found):
    return sorted(found, key=lambda episode: episode[0][0])


def assert_sound(store):
    """Every slot is used once, and the columns fit each other."""
    used = torch.cat([store.slots, store._open_slot, store._free])
    assert torch.equal(used.sort().values, torch.arange(store.capacity))
    assert int(store.lengths.sum()) == len(store.slots) == len(store.left)
    expected = [left for length in store.lengths.tolist() for left in range(length, 0, -1)]
    assert store.left.tolist() == expected
    sums = [sum(reward for *_, reward in episode) for episode in episodes(store)]
    assert store.returns.tolist() == pytest.approx(sums, abs=1e-4)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("length", [1, 4, 13])
def test_episodes_are_those_of_a_slow_transcription(autoreset, length):
    store, slow, stream = make(2000), SlowEpisodes(), Stream(autoreset=autoreset)
    for k in range(60 // length + 2):
        rollout = stream.next(length)
        store.add(rollout)
        slow.add(rollout)
        assert by_first_obs(episodes(store)) == by_first_obs(slow.episodes)
        assert_sound(store)
        if k == 3:  # a restart point: what is open is forgotten, and what is only cut there too
            store.restart()
            slow.restart()
            stream.reset()
    assert len(slow.episodes) > 10


def test_an_episode_goes_on_over_the_borders_of_rollouts():
    store, stream = make(), Stream(num_envs=N)
    rollouts = [stream.next(4, {}), stream.next(4, {}), stream.next(4, {(1, 2): "terminated"})]
    for rollout in rollouts:
        store.add(rollout)
    [episode] = episodes(store)
    assert len(episode) == 10
    seen = [r.obs[t, 2].tolist() for r in rollouts for t in range(4)][:10]
    assert [obs for obs, *_ in episode] == seen


def test_rows_that_were_only_a_reset_are_left_out():
    store, stream = make(), Stream(autoreset="next_step")
    rollout = stream.next(6, {(1, 0): "terminated", (4, 0): "truncated"})
    assert not rollout.valid[2, 0]
    store.add(rollout)
    assert [len(e) for e in episodes(store)] == [2, 2]
    assert rollout.obs[2, 0].tolist() not in [obs for e in episodes(store) for obs, *_ in e]


def test_a_truncation_in_the_last_row_counts_once_the_run_went_on():
    def started():
        store, stream = make(), Stream(autoreset="next_step")
        store.add(stream.next(4, {(3, 0): "truncated", (3, 1): "terminated"}))
        assert [len(e) for e in episodes(store)] == [4]  # the terminated one is over in any case
        return store, stream

    store, stream = started()
    store.add(stream.next(4, {}))
    assert [len(e) for e in episodes(store)] == [4, 4]
    store, stream = started()
    store.restart()
    stream.reset()
    store.add(stream.next(4, {}))
    assert [len(e) for e in episodes(store)] == [4]
    assert_sound(store)


def test_what_was_open_when_an_environment_was_reset_without_a_word_is_dropped():
    store, stream = make(), Stream()
    store.add(stream.next(4, {}))
    stream.obs[1] = [77.0, 78.0]  # a worker had to be restarted
    store.add(stream.next(4, {(1, n): "terminated" for n in range(N)}))
    assert sorted(len(e) for e in episodes(store)) == [2, 6, 6]
    assert_sound(store)


def test_the_episodes_of_the_lowest_returns_make_room():
    store, stream = make(capacity=48), Stream(autoreset="same_step")
    for k, reward in enumerate((5.0, 1.0, 3.0, 2.0, 4.0, 0.5)):
        store.add(stream.next(4, {(3, n): "terminated" for n in range(N)}, reward))
        assert_sound(store)
        if k == 3:
            assert sorted(store.returns.tolist()) == [4.0] * 3 + [8.0] * 3 + [12.0] * 3 + [20.0] * 3
    assert sorted(store.returns.tolist()) == [2.0] * 3 + [12.0] * 3 + [16.0] * 3 + [20.0] * 3


def test_a_share_of_the_lowest_returns_is_dropped():
    store, stream = make(), Stream(autoreset="same_step")
    for reward in (5.0, 1.0, 3.0):
        store.add(stream.next(2, {(1, n): "terminated" for n in range(N)}, reward))
    store.drop(0.1)  # less than one of nine
    assert len(store.returns) == 9
    store.drop(0.5)
    assert sorted(store.returns.tolist()) == [6.0] * 2 + [10.0] * 3
    assert_sound(store)


def test_endless_episodes_are_kept_in_pieces_and_the_memory_is_bounded():
    store, stream = make(capacity=60), Stream()
    for _ in range(40):
        store.add(stream.next(4, {}))
        assert_sound(store)
        assert int(torch.bincount(store._open_env, minlength=1).max()) < 10 or not len(store._open_env)
    assert set(store.lengths.tolist()) == {12}  # the first multiple of 4 from 60 / (2 * 3) on
    assert len(store.obs) == 60


def test_random_streams_never_overflow():
    for seed in range(5):
        store, stream = make(capacity=42), Stream(seed, end_share=0.1)
        for _ in range(30):
            store.add(stream.next(7))
            assert_sound(store)


def test_a_rollout_that_can_not_fit_is_refused():
    with pytest.raises(ValueError, match="24 steps, the store has 40 slots"):
        make(capacity=40).add(Stream(autoreset="same_step").next(8))


def test_state_goes_over_to_another_store_and_what_follows_is_the_same():
    first, stream = make(), Stream()
    for _ in range(6):
        first.add(stream.next(5))
    first.drop(0.3)
    state = copy.deepcopy(first.state_dict())
    second = make()
    second.add(Stream(9).next(5))  # has a past of its own, which must not show
    second.load_state_dict(state)
    first.restart()
    stream.reset()
    assert_sound(second)
    for _ in range(4):
        rollout = stream.next(5)
        for store in (first, second):
            store.add(rollout)
        assert episodes(first) == episodes(second)
        assert torch.equal(first.returns, second.returns) and torch.equal(first.left, second.left)


def test_a_smaller_store_takes_over_the_best():
    first, stream = make(), Stream(autoreset="same_step")
    for reward in (5.0, 1.0, 3.0):
        first.add(stream.next(2, {(1, n): "terminated" for n in range(N)}, reward))
    second = make(capacity=13)
    second.load_state_dict(first.state_dict())
    assert sorted(second.returns.tolist()) == [6.0] * 3 + [10.0] * 3
    assert_sound(second)


def test_images_stay_bytes():
    image = Box((3, 2, 2), "uint8", (0.0,) * 12, (255.0,) * 12)
    store = make(num_envs=1, obs=image, capacity=20)
    obs = torch.arange(5 * 12, dtype=torch.uint8).view(5, 1, 3, 2, 2)
    ended = torch.tensor([[False], [True], [False], [False]])
    rollout = Rollout(
        obs, torch.zeros(4, 1, 1), torch.zeros(4, 1), ended, ~ended & False, ended | True,
        FinalObs(torch.zeros(0, 2, dtype=torch.int64), obs[:0, 0]), {}, 0,
    )  # fmt: skip
    store.add(rollout)
    assert store.obs.dtype == torch.uint8
    assert torch.equal(store.obs[store.slots], obs[:2, 0])
