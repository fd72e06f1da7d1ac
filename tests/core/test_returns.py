"""Advantages: hand arithmetic, a slow transcription of the paper, closed forms.

Dimension letters: T time steps, N environments.
"""

import numpy as np
import pytest
import torch

from erlcli.core.returns import gae, next_values
from erlcli.core.types import FinalObs

NAN = float("nan")


def column(*values, dtype=torch.float32):
    """One environment's rows, (T, 1)."""
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def flags(length, *where):
    found = torch.zeros(length, 1, dtype=torch.bool)
    found[list(where)] = True
    return found


def everywhere(length):
    return torch.ones(length, 1, dtype=torch.bool)


def no_finals():
    return FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1))


def paper(reward, value, next_value, terminated, truncated, valid, gamma, gae_lambda):
    """Equation 16 of arXiv 1506.02438 by its definition: for each step a sum over the rest of its own episode."""
    length, envs = reward.shape
    advantage = np.zeros((length, envs))
    for n in range(envs):
        for t in range(length):
            if not valid[t, n]:
                continue
            for later in range(t, length):
                if not valid[later, n]:
                    break
                future = 0.0 if terminated[later, n] else gamma * next_value[later, n]
                delta = reward[later, n] + future - value[later, n]
                advantage[t, n] += (gamma * gae_lambda) ** (later - t) * delta
                if terminated[later, n] or truncated[later, n]:
                    break
    return advantage


def random_case(seed, length=40, envs=7, next_step_reset=False):
    """Rollout-like arrays with random ends; with `next_step_reset` each end is followed by a row that isn't valid."""
    rng = np.random.default_rng(seed)
    shape = (length, envs)
    terminated = rng.random(shape) < 0.1
    truncated = rng.random(shape) < 0.1
    valid = np.ones(shape, dtype=bool)
    if next_step_reset:
        for t in range(1, length):
            after_end = (terminated[t - 1] | truncated[t - 1]) & valid[t - 1]
            valid[t] = ~after_end
        terminated &= valid
        truncated &= valid
    reward, value, next_value = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    return reward, value, next_value, terminated, truncated, valid


def tensors(case):
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in case]


def test_two_steps_by_hand():
    # delta_0 = 1 + 0.5 * 4 - 2 = 1, delta_1 = 3 + 0.5 * 8 - 4 = 3, A_1 = 3, A_0 = 1 + 0.5 * 0.5 * 3
    found = gae(
        column(1.0, 3.0), column(2.0, 4.0), column(4.0, 8.0), flags(2), flags(2), everywhere(2), gamma=0.5,
        gae_lambda=0.5,
    )  # fmt: skip
    assert found.squeeze(1).tolist() == [1.75, 3.0]


def test_termination_has_no_future_and_truncation_has_the_true_one():
    # Three one-step episodes: terminated, truncated with a final observation worth 10, and one still open.
    value = column(1.0, 2.0, 3.0, 4.0)
    finals = FinalObs(torch.tensor([[1, 0]]), torch.zeros(1, 1))
    following = next_values(value, finals, torch.tensor([10.0]))
    assert following.squeeze(1).tolist() == [2.0, 10.0, 4.0]
    found = gae(
        column(1.0, 1.0, 1.0), value[:-1], following, flags(3, 0), flags(3, 1), everywhere(3), gamma=0.5,
        gae_lambda=1.0,
    )  # fmt: skip
    # 1 - 1;  1 + 0.5 * 10 - 2;  1 + 0.5 * 4 - 3
    assert found.squeeze(1).tolist() == [0.0, 4.0, 0.0]


def test_terminated_and_truncated_in_the_same_step_counts_as_terminated():
    found = gae(column(1.0), column(0.5), column(100.0), flags(1, 0), flags(1, 0), everywhere(1), 0.9, 0.9)
    assert found.item() == 0.5


def test_a_step_that_is_only_a_reset_gets_nothing_and_passes_nothing_on():
    # Row 1 is the reset of a next-step autoreset env: its reward is garbage, and row 2 begins an episode.
    found = gae(
        column(1.0, 50.0, 2.0), column(0.0, 70.0, 0.0), column(70.0, 90.0, 0.0), flags(3, 0), flags(3),
        torch.tensor([[True], [False], [True]]), gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert found.squeeze(1).tolist() == [1.0, 0.0, 2.0]


def test_truncation_before_a_reset_row_bootstraps_from_that_rows_observation():
    # A next-step autoreset env needs no final observations: obs[1] is the true last one, worth 70.
    value = column(0.0, 70.0, 0.0, 0.0)
    found = gae(
        column(1.0, 50.0, 2.0), value[:-1], next_values(value, no_finals(), torch.zeros(0)), flags(3), flags(3, 0),
        torch.tensor([[True], [False], [True]]), gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    assert found.squeeze(1).tolist() == [36.0, 0.0, 2.0]


def test_next_values_only_touches_the_entries_named():
    value = torch.arange(12.0).view(4, 3)
    original = value.clone()
    finals = FinalObs(torch.tensor([[0, 2], [2, 0], [2, 1]]), torch.zeros(3, 1))
    found = next_values(value, finals, torch.tensor([-1.0, -2.0, -3.0]))
    assert found.tolist() == [[3.0, 4.0, -1.0], [6.0, 7.0, 8.0], [-2.0, -3.0, 11.0]]
    assert torch.equal(value, original)


@pytest.mark.parametrize("next_step_reset", [False, True])
@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.0), (0.97, 1.0), (1.0, 1.0), (0.0, 0.5)])
def test_equals_the_paper_on_random_data(gamma, gae_lambda, next_step_reset):
    for seed in range(5):
        case = random_case(seed, next_step_reset=next_step_reset)
        found = gae(*tensors(case), gamma, gae_lambda)
        np.testing.assert_allclose(found.numpy(), paper(*case, gamma, gae_lambda), atol=2e-5)


def test_environments_do_not_mix():
    case = random_case(3, envs=5)
    together = gae(*tensors(case), 0.99, 0.95)
    for n in range(5):
        alone = gae(*tensors([x[:, n : n + 1] for x in case]), 0.99, 0.95)
        assert torch.equal(alone[:, 0], together[:, n])


def test_lambda_0_is_the_one_step_error():
    case = random_case(1)
    reward, value, next_value, terminated, truncated, valid = tensors(case)
    found = gae(reward, value, next_value, terminated, truncated, valid, 0.9, 0.0)
    torch.testing.assert_close(found, reward + 0.9 * next_value * (~terminated).float() - value)


def test_lambda_1_is_the_discounted_return_less_the_value():
    length, gamma = 30, 0.9
    reward, value = torch.randn(length, 1), torch.randn(length + 1, 1)
    none = flags(length)
    found = gae(reward, value[:-1], value[1:], none, none, everywhere(length), gamma, 1.0)
    for t in range(length):
        discounts = gamma ** torch.arange(length - t)
        monte_carlo = (discounts * reward[t:, 0]).sum() + gamma ** (length - t) * value[-1, 0]
        assert found[t, 0].item() == pytest.approx((monte_carlo - value[t, 0]).item(), abs=1e-5)


@pytest.mark.parametrize("truncated_at", [(), (3, 7, 11)])
def test_a_constant_reward_is_worth_one_over_one_minus_gamma(truncated_at):
    """The true value of reward 1 forever makes every advantage zero, time limits or not."""
    length, gamma = 16, 0.875
    value = torch.full((length, 1), 1 / (1 - gamma))
    reward = torch.ones(length, 1)
    found = gae(reward, value, value, flags(length), flags(length, *truncated_at), everywhere(length), gamma, 0.95)
    assert found.abs().max() == 0.0


def test_a_finite_constant_reward_has_the_geometric_sum_as_value():
    length, gamma = 12, 0.5
    remaining = torch.arange(length, 0, -1, dtype=torch.float32)
    value = ((1 - gamma**remaining) / (1 - gamma)).unsqueeze(1)
    following = torch.cat([value[1:], torch.full((1, 1), 1e6)])  # what follows the end is never looked at
    found = gae(
        torch.ones(length, 1), value, following, flags(length, length - 1), flags(length), everywhere(length), gamma,
        0.9,
    )  # fmt: skip
    torch.testing.assert_close(found, torch.zeros(length, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_leaks_from_one_episode_into_the_one_before(kind):
    case = dict(zip(("reward", "value", "next_value", "terminated", "truncated", "valid"), random_case(5), strict=True))
    cut = 17
    case["terminated"][:], case["truncated"][:] = False, False
    case[kind][cut] = True
    before = gae(*tensors(case.values()), 0.99, 0.95)
    for name in ("reward", "value", "next_value"):
        case[name][cut + 1 :] += 1000.0
    after = gae(*tensors(case.values()), 0.99, 0.95)
    assert torch.equal(before[: cut + 1], after[: cut + 1])
    assert not torch.equal(before[cut + 1 :], after[cut + 1 :])


def test_whatever_stands_in_reset_rows_and_behind_terminations_changes_nothing():
    """NaN times zero is NaN, so this fails wherever rows are masked by multiplication."""
    case = random_case(11, length=200, next_step_reset=True)
    reward, value, next_value, terminated, truncated, valid = tensors(case)
    clean = gae(reward, value, next_value, terminated, truncated, valid, 0.99, 0.95)
    assert not valid.all() and terminated.any()
    for garbage in (NAN, float("inf"), -1e30):
        dirty = [x.masked_fill(~valid, garbage) for x in (reward, value, next_value)]
        dirty[2] = dirty[2].masked_fill(terminated, garbage)
        found = gae(*dirty, terminated, truncated, valid, 0.99, 0.95)
        assert torch.equal(found, clean)
        assert not found[~valid].any()


def test_flags_in_reset_rows_change_nothing():
    case = random_case(12, next_step_reset=True)
    reward, value, next_value, terminated, truncated, valid = tensors(case)
    clean = gae(reward, value, next_value, terminated, truncated, valid, 0.99, 0.95)
    found = gae(reward, value, next_value, terminated | ~valid, truncated | ~valid, valid, 0.99, 0.95)
    assert torch.equal(found, clean)


def test_inputs_stay_as_they_are():
    inputs = tensors(random_case(2))
    copies = [x.clone() for x in inputs]
    gae(*inputs, 0.99, 0.95)
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))
