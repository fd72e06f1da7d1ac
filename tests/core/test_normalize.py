"""Running statistics against numpy, and the reward normaliser against a slow loop.

Dimension letters: T time steps, N environments, B batch.
"""

import numpy as np
import pytest
import torch

from erlcli.core.normalize import ObsNormalizer, RewardNormalizer, RunningMoments

RAGGED = (1, 0, 7, 1, 100, 0, 3, 29)


def batches(draws, shape, sizes=RAGGED, scale=3.0, shift=5.0):
    return [torch.randn(size, *shape, generator=draws) * scale + shift for size in sizes]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_moments_equal_numpy_over_ragged_batches(shape, draws):
    moments, seen = RunningMoments(shape), []
    for batch in batches(draws, shape):
        moments.update(batch)
        seen.append(batch.numpy().astype(np.float64))
        everything = np.concatenate(seen)
        assert moments.count.item() == len(everything)
        np.testing.assert_allclose(moments.mean.numpy(), everything.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.var.numpy(), everything.var(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_rows_that_do_not_count_are_as_if_they_were_not_there(shape, draws):
    masked, picked = RunningMoments(shape), RunningMoments(shape)
    for batch in batches(draws, shape):
        valid = torch.rand(len(batch), generator=draws) < 0.5
        picked.update(batch[valid])
        batch[~valid] = torch.nan
        masked.update(batch, valid=valid)
        for found, wanted in zip(masked.buffers(), picked.buffers(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert 0 < masked.count < sum(RAGGED)


def test_moments_of_nothing_are_those_of_a_standard_variable():
    moments = RunningMoments((2,))
    moments.update(torch.zeros(0, 2))
    assert moments.count.item() == 0
    assert moments.mean.tolist() == [0.0, 0.0] and moments.var.tolist() == [1.0, 1.0]


def test_moments_keep_their_digits_far_from_zero_and_after_many_samples(draws):
    moments = RunningMoments(())
    for _ in range(20):
        moments.update(torch.randn(1000, generator=draws, dtype=torch.float64) + 1e6)
    assert moments.var.item() == pytest.approx(1.0, rel=0.05)
    moments.count.fill_(1e8)
    before = moments.mean.item()
    moments.update(torch.full((1,), before + 1e6, dtype=torch.float64))
    assert moments.mean.item() - before == pytest.approx(1e-2, rel=1e-3)


def test_obs_normalizer_only_casts_and_clips_before_the_first_update():
    normalizer = ObsNormalizer((2,), clip=10.0)
    assert normalizer(torch.tensor([[1.5, -200.0]])).tolist() == [[1.5, -10.0]]
    assert normalizer(torch.tensor([[3, 255]], dtype=torch.uint8)).tolist() == [[3.0, 10.0]]


def test_obs_normalizer_centres_scales_and_clips(draws):
    normalizer = ObsNormalizer((3,), clip=2.0)
    seen = torch.randn(500, 3, generator=draws) * torch.tensor([0.1, 1.0, 50.0]) + torch.tensor([-3.0, 0.0, 1000.0])
    normalizer.update(seen[:200])
    normalizer.update(seen[200:])
    found = normalizer(seen)
    expected = (seen.double() - seen.double().mean(0)) / (seen.double().var(0, correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(found, expected.clamp(-2, 2).float(), atol=2e-5, rtol=1e-4)
    assert found.dtype == torch.float32 and found.abs().max().item() == 2.0


def test_obs_normalizer_takes_images_and_leading_dimensions(draws):
    normalizer = ObsNormalizer((2, 2), clip=10.0)
    images = torch.randint(256, (6, 5, 2, 2), generator=draws, dtype=torch.uint8)
    normalizer.update(images.flatten(0, 1))
    found = normalizer(images)
    assert found.shape == images.shape and found.dtype == torch.float32
    torch.testing.assert_close(found.mean((0, 1)), torch.zeros(2, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 1), correction=0), torch.ones(2, 2), atol=1e-4, rtol=0)


def test_a_constant_observation_becomes_zero_not_infinite():
    normalizer = ObsNormalizer((1,), clip=10.0)
    normalizer.update(torch.full((50, 1), 4.0))
    assert normalizer(torch.full((1, 1), 4.0)).item() == 0.0
    assert normalizer(torch.full((1, 1), 5.0)).item() == 10.0


def test_calling_a_normalizer_never_changes_it(draws):
    for normalizer, data in (
        (ObsNormalizer((3,), 10.0), torch.randn(4, 3, generator=draws)),
        (RewardNormalizer(3, 0.9, 10.0), torch.randn(4, 3, generator=draws)),
    ):
        before = {name: tensor.clone() for name, tensor in normalizer.state_dict().items()}
        normalizer(data)
        assert all(torch.equal(before[name], tensor) for name, tensor in normalizer.state_dict().items())


# --- rewards ----------------------------------------------------------------------------------------------------------


class SlowRewards:
    """Step by step and env by env: the variance of all discounted returns so far."""

    def __init__(self, num_envs, gamma, clip):
        self.running, self.seen = [0.0] * num_envs, []
        self.gamma, self.clip = gamma, clip

    def update(self, reward, ended, valid):
        for t in range(len(reward)):
            for n in range(len(self.running)):
                if not valid[t, n]:
                    continue
                self.running[n] = self.gamma * self.running[n] + float(reward[t, n])
                self.seen.append(self.running[n])
                if ended[t, n]:
                    self.running[n] = 0.0

    def __call__(self, reward):
        return np.clip(reward / np.sqrt(np.var(self.seen) + 1e-8), -self.clip, self.clip)


def rollout(draws, next_step_reset, length=25, envs=4):
    reward = torch.randn(length, envs, generator=draws) * 7 + 2
    ended = torch.rand(length, envs, generator=draws) < 0.15
    valid = torch.ones(length, envs, dtype=torch.bool)
    if next_step_reset:
        for t in range(1, length):
            valid[t] = ~(ended[t - 1] & valid[t - 1])
        ended &= valid
    return reward, ended, valid


@pytest.mark.parametrize("next_step_reset", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_reward_normalizer_equals_a_slow_loop_over_rollouts(gamma, next_step_reset, draws):
    fast, slow = RewardNormalizer(4, gamma, 1.5), SlowRewards(4, gamma, 1.5)
    for _ in range(6):
        reward, ended, valid = rollout(draws, next_step_reset)
        assert next_step_reset != bool(valid.all())
        fast.update(reward, ended, valid)
        slow.update(reward, ended, valid)
        np.testing.assert_allclose(fast.carry.numpy() / (gamma or 1), np.array(slow.running) * bool(gamma), atol=2e-4)
        np.testing.assert_allclose(fast(reward).numpy(), slow(reward.numpy()), atol=1e-4)


def test_reward_normalizer_by_hand():
    # Returns 2, 0.5 * 2 + 4 = 5 (ends), 1: mean 8 / 3, variance (4 + 25 + 1) / 3 - 64 / 9 = 26 / 9.
    normalizer = RewardNormalizer(1, 0.5, clip=100.0)
    reward = torch.tensor([[2.0], [4.0], [1.0]])
    ended = torch.tensor([[False], [True], [False]])
    normalizer.update(reward, ended, torch.ones(3, 1, dtype=torch.bool))
    assert normalizer.moments.var.item() == pytest.approx(26 / 9)
    assert normalizer.carry.tolist() == [0.5]
    torch.testing.assert_close(normalizer(reward), reward / (26 / 9) ** 0.5)


def test_returns_of_episodes_that_were_lost_with_their_envs_are_not_carried_on():
    normalizer = RewardNormalizer(2, 1.0, clip=100.0)
    ended = torch.zeros(3, 2, dtype=torch.bool)
    obs = torch.arange(4.0).view(4, 1, 1).expand(4, 2, 1)
    normalizer.begin(obs)
    normalizer.update(torch.ones(3, 2), ended, None)
    assert normalizer.carry.tolist() == [3.0, 3.0]
    second = obs + torch.tensor([[3.0], [0.0]])  # the second env begins anew, and no row says so
    normalizer.begin(second)
    normalizer.update(torch.ones(3, 2), ended, None)
    assert normalizer.carry.tolist() == [6.0, 3.0]
    normalizer.restart()
    normalizer.begin(second)
    assert normalizer.carry.tolist() == [0.0, 0.0]


def test_the_mean_of_rewards_is_not_moved(draws):
    normalizer = RewardNormalizer(2, 0.9, 10.0)
    normalizer.update(torch.full((50, 2), 3.0), torch.zeros(50, 2, dtype=torch.bool), torch.ones(50, 2).bool())
    assert (normalizer(torch.full((1, 2), 3.0)) > 0).all()
    assert (normalizer(torch.zeros(1, 2)) == 0).all()


def test_garbage_in_rows_that_are_not_valid_changes_nothing(draws):
    reward, ended, valid = rollout(draws, next_step_reset=True, length=100)
    states = []
    for garbage in (0.0, 1e6, float("nan"), float("-inf")):
        normalizer = RewardNormalizer(4, 0.99, 10.0)
        normalizer.update(reward.masked_fill(~valid, garbage), ended, valid)
        normalizer.update(reward.masked_fill(~valid, garbage), ended | ~valid, valid)
        states.append(normalizer.state_dict())
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_rewards_are_clipped():
    normalizer = RewardNormalizer(1, 0.9, clip=0.5)
    assert normalizer(torch.tensor([[3.0], [-3.0], [0.1]])).squeeze(1).tolist() == pytest.approx([0.5, -0.5, 0.1])


def test_restart_forgets_open_episodes_and_nothing_else(draws):
    normalizer = RewardNormalizer(4, 0.9, 10.0)
    normalizer.update(*rollout(draws, next_step_reset=False))
    before = {name: tensor.clone() for name, tensor in normalizer.moments.state_dict().items()}
    assert normalizer.carry.any()
    normalizer.restart()
    assert not normalizer.carry.any()
    assert all(torch.equal(before[name], tensor) for name, tensor in normalizer.moments.state_dict().items())


def test_state_round_trip_continues_exactly_from_fresh_envs(draws):
    first = RewardNormalizer(4, 0.9, 10.0)
    first.update(*rollout(draws, next_step_reset=True))
    first.restart()
    second = RewardNormalizer(4, 0.9, 10.0)
    second.load_state_dict(first.state_dict())
    data = rollout(draws, next_step_reset=True)
    first.update(*data)
    second.update(*data)
    assert torch.equal(first(data[0]), second(data[0]))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_obs_normalizer_state_round_trip_continues_exactly(draws):
    first, second = ObsNormalizer((3,), 10.0), ObsNormalizer((3,), 10.0)
    first.update(torch.randn(20, 3, generator=draws) + 4)
    second.load_state_dict(first.state_dict())
    more = torch.randn(20, 3, generator=draws)
    for normalizer in (first, second):
        normalizer.update(more)
    assert torch.equal(first(more), second(more))
