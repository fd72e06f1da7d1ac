"""The H-term against numpy on tiny trajectories.

Dimension letters: K steps of a window, L windows, A action dimensions.
"""

import copy
import math

import numpy as np
import pytest
import torch

from erlcli.core.categorical import Categorical
from erlcli.core.gaussian import Gaussian, StateTanhGaussian, TanhGaussian
from erlcli.core.h_term import HTerm, HTermSettings, deterministic_log_density, log_density
from erlcli.core.trajectories import TrajectoryStore
from erlcli.core.types import Box, FinalObs, Rollout

INF = float("inf")
A = 2


def term(lengths, reward=None, seed=0, capacity=400, min_steps=1, **settings):
    """An H-term that holds episodes of these lengths, one after the other in a single environment.

    The observation of a step is its place in this order; the reward is the observation unless given.
    """
    store = TrajectoryStore(
        Box((1,), "float32", (-INF,), (INF,)), (A,), torch.float32, num_envs=1, capacity=capacity,
        device=torch.device("cpu"),
    )  # fmt: skip
    made = HTerm(HTermSettings(min_steps=min_steps, **settings), store, seed)
    if lengths:
        made.add(rollout(lengths, reward))
    return made


def rollout(lengths, reward=None, start=0):
    steps = sum(lengths)
    obs = torch.arange(start, start + steps + 1, dtype=torch.float32).view(-1, 1, 1)
    terminated = torch.zeros(steps, 1, dtype=torch.bool)
    terminated[np.cumsum(lengths) - 1] = True
    source = torch.Generator().manual_seed(start)
    return Rollout(
        obs, torch.randn(steps, 1, A, generator=source), obs[:-1, :, 0] if reward is None else reward.view(-1, 1),
        terminated, terminated & False, terminated | True,
        FinalObs(torch.zeros(0, 2, dtype=torch.int64), obs[:0, 0]), {}, 0,
    )  # fmt: skip


def loss(made, log_density):
    """The term of one gradient step."""
    made.take()
    return made.loss(log_density)


def slow_windows(lengths, rewards, starts, settings):
    """For each start: [(place, g^k R)], by loops."""
    low, high = min(rewards), max(rewards)
    scaled = [(r - low) / (high - low) if high > low else 1.0 for r in rewards]
    end_of, at = [], 0
    for length in lengths:
        at += length
        end_of += [at] * length
    return [
        [
            (start + k, settings.discount ** (k + 1) * scaled[start + k])
            for k in range(settings.horizon)
            if start + k < end_of[start]
        ]
        for start in starts
    ]


def starts_of(made, steps):
    """The windows that `draw` will draw from, in order."""
    twin = torch.Generator()
    twin.set_state(made.generator.get_state())
    shape = (steps, made.settings.pool * made.settings.trajectories)
    return torch.randint(len(made.store), shape, generator=twin).tolist()


# --- loss and gradient ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 3, 8])
@pytest.mark.parametrize("pool", [1, 3])
def test_loss_and_gradient_are_those_of_numpy(horizon, pool):
    """A linear Gaussian actor, mean = w s + b in each dimension; its gradient by hand."""
    lengths = [4, 1, 7, 2]
    made = term(lengths, horizon=horizon, trajectories=3, pool=pool, weight=0.7, discount=0.6)
    rewards = list(range(14))
    starts = starts_of(made, made._block)[-1]  # a block is used from its end
    windows = slow_windows(lengths, rewards, starts, made.settings)
    best = sorted(windows, key=lambda window: -sum(gain for _, gain in window))[:3]

    w, b, log_std = np.array([0.05, -0.1]), np.array([0.2, 0.1]), np.array([0.3, -0.2])
    action = made.store.action[made.store.slots].numpy().astype(np.float64)
    h, dw, db, ds = 0.0, np.zeros(A), np.zeros(A), np.zeros(A)
    for window in best:
        for place, gain in window:
            z = (action[place] - w * place - b) / np.exp(log_std)
            log_prob = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum()
            assert -10 < log_prob < 2, "within the clamp"
            h -= gain * log_prob
            dw -= gain * z / np.exp(log_std) * place
            db -= gain * z / np.exp(log_std)
            ds -= gain * (z**2 - 1)

    distribution = Gaussian(A)
    with torch.no_grad():
        distribution.log_std.copy_(torch.tensor(log_std))
    weight = torch.tensor(w, dtype=torch.float32, requires_grad=True)
    bias = torch.tensor(b, dtype=torch.float32, requires_grad=True)
    got = loss(made, lambda obs, action: log_density(distribution, obs * weight + bias, action))
    got.backward()
    assert got.item() == pytest.approx(0.7 * h / 3, rel=1e-4)
    for tensor, by_hand in ((weight, dw), (bias, db), (distribution.log_std, ds)):
        np.testing.assert_allclose(tensor.grad.numpy(), 0.7 * by_hand / 3, rtol=1e-3, atol=1e-5)


def test_every_gradient_step_of_a_block_has_windows_of_its_own():
    lengths = [5, 9]
    made = term(lengths, horizon=3, trajectories=2, pool=2)
    starts = starts_of(made, 6)
    windows = made.draw(6)
    assert windows.obs.shape == (6, 6, 1) and windows.action.shape == (6, 6, A) and windows.gain.shape == (6, 6)
    for row, drawn in enumerate(starts):
        best = sorted(slow_windows(lengths, range(14), drawn, made.settings), key=lambda w: -sum(g for _, g in w))[:2]
        expected = sum(gain for window in best for _, gain in window) * made.settings.weight / 2
        assert float(windows.gain[row].sum()) == pytest.approx(expected, rel=1e-5)


# --- which windows ----------------------------------------------------------------------------------------------------


def test_windows_stay_within_their_episode():
    made = term([3, 4, 1, 6], torch.ones(14), horizon=4, trajectories=200, pool=1)
    windows = made.draw(4)
    obs = windows.obs.view(-1, 4).long()  # place in the order of steps
    gain = windows.gain.view(-1, 4)
    episode = torch.tensor([0] * 3 + [1] * 4 + [2] + [3] * 6)
    counted = gain > 0
    assert (counted[:, 0]).all(), "every start counts itself"
    same = episode[obs] == episode[obs[:, :1]]
    assert (same | ~counted).all(), "a window ran into the next episode"
    consecutive = obs == obs[:, :1] + torch.arange(4)
    assert (consecutive | ~counted).all()
    ahead = torch.tensor([3, 2, 1, 4, 3, 2, 1, 1, 6, 5, 4, 3, 2, 1])[obs[:, 0]].clamp(max=4)
    assert torch.equal(counted.sum(1), ahead), "and none ended before it had to"
    assert set(obs[:, 0].tolist()) == set(range(14)), "every step can be the first"


def test_the_windows_of_the_highest_k_step_return_are_taken():
    reward = torch.zeros(20)
    reward[10:13] = 1.0
    made = term([20], reward, horizon=3, trajectories=5, pool=40, discount=1.0)
    obs = made.draw(10).obs.view(-1, 3)[:, 0]
    assert set(obs.tolist()) == {10.0}  # 200 draws for 5: the one best window comes often enough
    discounted = term([20], reward, horizon=3, trajectories=1, pool=200, discount=0.1)
    reward[5] = 1.0  # alone, and behind zeros worth little
    assert float(discounted.draw(1).obs[0, 0]) == 10.0


def test_a_pool_of_one_takes_what_is_drawn():
    made = term([20], horizon=2, trajectories=4, pool=1)
    [starts] = starts_of(made, 1)
    assert made.draw(1).obs.view(-1, 2)[:, 0].tolist() == starts


def test_rewards_that_are_all_equal_count_as_one():
    made = term([6], torch.full((6,), -3.0), horizon=2, trajectories=4, pool=1, weight=4.0, discount=1.0)
    assert set(made.draw(3).gain.unique().tolist()) <= {0.0, 1.0}
    assert torch.isfinite(made.draw(3).gain).all()


def test_scaled_rewards_are_within_0_and_1_whatever_their_units():
    gains = []
    for scale, shift in ((1.0, 0.0), (1000.0, -7000.0)):
        made = term([14], torch.arange(14.0) * scale + shift, horizon=3, trajectories=4)
        gains.append(made.draw(2).gain)
    torch.testing.assert_close(*gains, atol=1e-5, rtol=1e-4)


# --- when it is on, and what is kept ----------------------------------------------------------------------------------


def test_it_starts_once_there_are_enough_steps_and_stays_on():
    made = term([], min_steps=10, drop_rate=0.9)
    assert not made.ready
    made.add(rollout([4, 4]))
    assert not made.ready
    made.add(rollout([4, 4], start=8))
    assert made.ready
    assert len(made.store.returns) == 1, "0.9 of 4 were dropped"


def test_episodes_are_dropped_each_time_that_enough_steps_came_in_however_short_the_rollouts():
    for lengths in ([1] * 10, [1] * 5, [1] * 2):
        made = term([], min_steps=20, drop_rate=0.5, capacity=1000)
        for k in range(60 // len(lengths)):
            made.add(rollout(lengths, start=k * len(lengths)))
        # 20 less 10, and 20 more less 15, and 20 more less 17; later ones have higher returns
        assert made.store.returns.tolist() == list(range(42, 60))


def test_only_every_so_many_gradient_steps_have_it():
    made = term([4], interval=3)
    assert [made.step() for _ in range(7)] == [False, False, True] * 2 + [False]
    assert not any(term([], interval=1).step() for _ in range(3)), "nothing to learn from"


def test_no_drop_rate_keeps_all():
    made = term([], min_steps=4, drop_rate=0.0)
    for k in range(10):
        made.add(rollout([4], start=4 * k))
    assert len(made.store.returns) == 10


def test_metrics_are_means_since_the_last_call():
    made = term([5, 5], horizon=2, trajectories=2)
    losses = [loss(made, lambda obs, action: -obs[:, 0]).item() for _ in range(2)]
    metrics = made.metrics()
    assert float(metrics["h_term/loss"]) == pytest.approx(sum(losses) / 2)
    assert (metrics["h_term/steps"], metrics["h_term/episodes"]) == (10, 2)
    assert float(metrics["h_term/return"]) == pytest.approx(45 / 2)
    assert float(made.metrics()["h_term/loss"]) == 0.0


def test_a_restored_term_goes_on_bit_for_bit():
    def steps(made):
        found = []
        for k in range(4):
            made.add(rollout([3, 5], start=100 + 8 * k))
            found += [loss(made, lambda obs, action: -action.square().sum(-1)) for _ in range(3)]
        return torch.stack(found)

    first = term([4, 6, 2], horizon=3, min_steps=6)
    loss(first, lambda obs, action: action[:, 0])
    saved = copy.deepcopy(first.state_dict())
    second = term([9], horizon=3, min_steps=6, seed=5)
    second.load_state_dict(saved)
    for made in (first, second):
        made.restart(77)
    assert torch.equal(steps(first), steps(second))
    second.restart(78)
    first.restart(77)
    assert not torch.equal(steps(first), steps(second))


def test_blocks_are_smaller_where_observations_are_large():
    assert term([4])._block == 64
    image = Box((4, 84, 84), "uint8", (0.0,) * 28224, (255.0,) * 28224)
    store = TrajectoryStore(image, (), torch.int64, num_envs=1, capacity=8, device=torch.device("cpu"))
    assert HTerm(HTermSettings(), store, 0)._block == 9  # 16 MiB over 64 frames of 28 kB


# --- densities --------------------------------------------------------------------------------------------------------


def test_log_probs_within_the_clamp_are_the_distributions_own(draws):
    distribution = Gaussian(A, -0.5)
    params, action = torch.randn(50, A, generator=draws) * 0.3, torch.randn(50, A, generator=draws) * 0.5
    assert torch.equal(log_density(distribution, params, action), distribution.log_prob(params, action))


@pytest.mark.parametrize(("std", "distance", "moves"), [(1.0, 1.0, True), (1.0, 5.0, False), (0.05, 0.0, False)])
def test_what_is_outside_the_clamp_has_no_gradient(std, distance, moves):
    distribution = Gaussian(A, math.log(std))
    params = torch.zeros(1, A, requires_grad=True)
    value = log_density(distribution, params, torch.full((1, A), distance))
    value.sum().backward()
    assert bool(params.grad.any() or distribution.log_std.grad.any()) is moves
    assert -5.0 * A <= value.item() <= 1.0 * A


@pytest.mark.parametrize("squashed", ["tanh", "state_tanh"])
def test_squashed_actions_count_as_they_were_before_tanh(squashed, draws):
    """Same value up to the digits that tanh loses, and the same gradient as the squashed density."""
    raw = torch.randn(64, A, generator=draws)
    mean = (torch.randn(64, A, generator=draws) * 0.5).requires_grad_()
    if squashed == "tanh":
        distribution, plain = TanhGaussian(A, -0.1), Gaussian(A, -0.1)
        params = mean
    else:
        distribution, plain = StateTanhGaussian(A), Gaussian(A, -0.1)
        params = torch.cat([mean, torch.full((64, A), -0.1)], -1)
    value = log_density(distribution, params, raw.tanh())
    expected = plain.log_prob(mean, raw).clamp(-5.0 * A, 1.0 * A)
    torch.testing.assert_close(value, expected, atol=2e-4, rtol=1e-4)
    inside = (value > -5.0 * A) & (value < 1.0 * A)
    (gradient,) = torch.autograd.grad(value.sum(), mean, retain_graph=True)
    (squashed_gradient,) = torch.autograd.grad(distribution.log_prob(params, raw.tanh())[inside].sum(), mean)
    torch.testing.assert_close(gradient[inside], squashed_gradient[inside])


@pytest.mark.parametrize("edge", [-1.0, 1.0])
def test_actions_on_a_bound_are_finite_and_learnt_from(edge):
    distribution = StateTanhGaussian(1)
    params = torch.tensor([[edge * 6.0, 0.0]], requires_grad=True)
    value = log_density(distribution, params, torch.tensor([[edge]]))
    value.sum().backward()
    assert torch.isfinite(params.grad).all() and params.grad[0, 0] * edge > 0


def test_choices_are_not_clamped():
    logits = torch.zeros(1, 500)
    logits[0, 0] = 100.0
    value = log_density(Categorical(500), logits, torch.tensor([3]))
    assert value.item() == pytest.approx(-100.0)


def test_the_stand_in_for_deterministic_actors():
    mean = torch.tensor([[0.1, -0.2], [0.5, 0.5]], requires_grad=True)
    action = torch.tensor([[0.2, -0.2], [-1.0, 1.0]])
    value = deterministic_log_density(mean, action, torch.tensor(0.2))
    assert value.tolist() == pytest.approx([-(0.1**2) / (2 * 0.04), -10.0])  # the second is held
    value.sum().backward()
    torch.testing.assert_close(mean.grad, torch.tensor([[0.1 / 0.04, 0.0], [0.0, 0.0]]))
    silent = deterministic_log_density(mean.detach(), action, torch.tensor(0.0))
    assert silent.tolist() == pytest.approx([-(0.1**2) / (2 * 0.05**2), -10.0])
