"""Training episodes against a slow loop.

Dimension letters: T time steps, N environments.
"""

import json

import pytest
import torch

from erlcli.core.types import FinalObs, Rollout
from erlcli.engine.episodes import WINDOW, EpisodeTracker

N = 5


class Slow:
    """Env by env, step by step, in order of time."""

    def __init__(self):
        self.total, self.length = [0.0] * N, [0] * N
        self.returns, self.lengths = [], []

    def add(self, rollout):
        for t in range(len(rollout.reward)):
            for n in range(N):
                if not rollout.valid[t, n]:
                    continue
                self.total[n] += rollout.reward[t, n].item()
                self.length[n] += 1
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    self.returns.append(self.total[n])
                    self.lengths.append(self.length[n])
                    self.total[n], self.length[n] = 0.0, 0

    def restart(self):
        self.total, self.length = [0.0] * N, [0] * N


def make_rollout(draws, length, next_step_reset, before=None, share=0.1):
    reward = torch.randn(length, N, generator=draws) * 10
    terminated = torch.rand(length, N, generator=draws) < share
    truncated = torch.rand(length, N, generator=draws) < share
    valid = torch.ones(length, N, dtype=torch.bool)
    if next_step_reset:
        ended = before if before is not None else torch.zeros(N, dtype=torch.bool)
        for t in range(length):
            valid[t] = ~ended
            terminated[t] &= valid[t]
            truncated[t] &= valid[t]
            ended = terminated[t] | truncated[t]
    finals = FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1))
    return Rollout(
        torch.zeros(length + 1, N, 1), torch.zeros(length, N), reward, terminated, truncated, valid, finals, {}, 0
    )


@pytest.mark.parametrize("next_step_reset", [False, True])
@pytest.mark.parametrize("lengths", [(1,) * 30, (7, 3, 20, 1, 50), (400,)])
def test_equals_a_slow_loop_over_rollouts(lengths, next_step_reset, draws):
    fast, slow, ended = EpisodeTracker(N), Slow(), None
    for length in lengths:
        rollout = make_rollout(draws, length, next_step_reset, ended)
        ended = rollout.terminated[-1] | rollout.truncated[-1]
        fast.add(rollout)
        slow.add(rollout)
        assert fast.now().episodes == len(slow.returns)
        assert fast.now().returns == pytest.approx(slow.returns[-WINDOW:], abs=1e-4)
        assert fast.now().lengths == slow.lengths[-WINDOW:]
    assert fast.now().episodes > 10


def test_rewards_of_rows_that_are_not_valid_count_for_nothing(draws):
    found = []
    rollout = make_rollout(draws, 100, next_step_reset=True)
    assert not rollout.valid.all()
    for garbage in (0.0, 1e9):
        tracker = EpisodeTracker(N)
        rollout.reward.masked_fill_(~rollout.valid, garbage)
        tracker.add(rollout)
        found.append((tracker.now().returns, tracker.now().lengths))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5) and found[1][1] == found[0][1]


def test_one_episode_by_hand():
    tracker = EpisodeTracker(1)
    flag = torch.zeros(3, 1, dtype=torch.bool)
    reward = torch.tensor([[1.0], [2.0], [4.0]])
    finals = FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1))

    def rollout(end):
        over = flag.clone()
        if end is not None:
            over[end] = True
        return Rollout(torch.zeros(4, 1, 1), torch.zeros(3, 1), reward, over, flag, ~flag, finals, {}, 0)

    tracker.add(rollout(None))
    assert tracker.now().metrics() == {} and tracker.now().episodes == 0
    tracker.add(rollout(1))
    assert tracker.now().metrics() == {"episode/return": 10.0, "episode/length": 5.0}
    tracker.add(rollout(0))
    assert tracker.now().returns == [10.0, 5.0] and tracker.now().lengths == [5, 2]


def test_open_episodes_are_forgotten_at_a_restart(draws):
    fast, slow = EpisodeTracker(N), Slow()
    for _ in range(3):
        rollout = make_rollout(draws, 9, next_step_reset=False)
        for tracker in (fast, slow):
            tracker.add(rollout)
            tracker.restart()
    assert fast.now().returns == pytest.approx(slow.returns, abs=1e-4) and fast.now().lengths == slow.lengths


def test_the_mean_is_of_the_last_hundred(draws):
    fast, slow = EpisodeTracker(N), Slow()
    rollout = make_rollout(draws, 300, next_step_reset=False, share=0.3)
    fast.add(rollout)
    slow.add(rollout)
    assert len(slow.returns) > WINDOW == len(fast.now().returns)
    assert fast.now().metrics()["episode/return"] == pytest.approx(sum(slow.returns[-WINDOW:]) / WINDOW)


def test_state_survives_json_and_goes_on(draws):
    first, second = EpisodeTracker(N), EpisodeTracker(N)
    first.add(make_rollout(draws, 60, next_step_reset=False))
    first.restart()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    more = make_rollout(draws, 60, next_step_reset=False)
    first.add(more)
    second.add(more)
    assert (first.now().episodes, first.now().returns, first.now().lengths) == (
        second.now().episodes,
        second.now().returns,
        second.now().lengths,
    )


def test_the_rollout_stays_as_it_is(draws):
    rollout = make_rollout(draws, 20, next_step_reset=True)
    reward = rollout.reward.clone()
    EpisodeTracker(N).add(rollout)
    assert torch.equal(rollout.reward, reward)


def test_an_episode_that_an_env_left_when_it_was_made_anew_never_counts():
    """Two halves of different episodes are none: the first observation is not what the last rollout ended with."""
    tracker = EpisodeTracker(2)
    finals = FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1))

    def rollout(first, end):
        obs = torch.arange(4.0).view(4, 1, 1).repeat(1, 2, 1) + torch.tensor([[first], [100.0]])
        obs[:, 1] += 3 * (end or 0)  # the second env goes on
        over = torch.zeros(3, 2, dtype=torch.bool)
        over[1] = end is not None
        none = torch.zeros_like(over)
        return Rollout(obs, torch.zeros(3, 2), torch.ones(3, 2), over, none, ~none, finals, {}, 0)

    tracker.add(rollout(0.0, None))
    tracker.add(rollout(50.0, 1))  # where it stood was 3
    assert tracker.now().returns == [2.0, 5.0] and tracker.now().lengths == [2, 5]
