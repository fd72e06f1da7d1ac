"""Operations of a group, by two members in two threads of this process; against numbers by hand and one process."""

import pytest
import torch
from torch import nn

from erlcli.core.collective import Collective
from erlcli.core.normalize import ObsNormalizer, RewardNormalizer, RunningMoments
from erlcli.core.optim import Optimizer
from erlcli.errors import PeerLostError


def test_flags_and_counts_are_those_of_all(together):
    def body(group):
        return group.any(group.rank == 1), group.any(False), group.sum(group.rank + 1), group.leads

    assert together(body, 3) == [(True, False, 6, True), (True, False, 6, False), (True, False, 6, False)]


def test_json_of_any_length_is_gathered_by_rank(together):
    def body(group):
        return group.gather({"rank": group.rank, "rows": ["ä" * 7] * group.rank, "nan": None})

    one, two = together(body)
    assert one == two == [{"rank": 0, "rows": [], "nan": None}, {"rank": 1, "rows": ["ä" * 7], "nan": None}]


def test_a_single_member_is_the_identity():
    alone, x = Collective(), torch.tensor([1.0, 5.0])
    assert (alone.any(True), alone.any(False), alone.sum(3), alone.gather("x"), alone.leads) == (
        True, False, 3, ["x"], True)  # fmt: skip
    assert alone.mean_(x) is x and alone.broadcast_(x) is x and x.tolist() == [1.0, 5.0]
    std, mean = alone.std_mean(x)
    assert (std.item(), mean.item()) == (2.0, 3.0)


def test_mean_and_broadcast_by_hand(together):
    def body(group):
        mean = group.mean_(torch.tensor([1.0, 2.0]) * (3 * group.rank + 1))
        given = torch.full((2, 3), float(group.rank)).t()  # not contiguous
        return mean.tolist(), group.broadcast_(given).tolist(), given.tolist()

    assert together(body) == [([2.5, 5.0], [[0.0] * 2] * 3, [[0.0] * 2] * 3)] * 2


@pytest.mark.parametrize(
    ("rows", "batch_size", "expected"),
    [((30, 34), 32, 2), ((64, 64), 128, 1), ((3, 100), 10, 3), ((0, 64), 32, 0), ((2, 2), 100, 1)],
)
def test_minibatches_are_equally_many(together, rows, batch_size, expected):
    assert together(lambda group: group.minibatches(rows[group.rank], batch_size)) == [expected] * 2


@pytest.mark.parametrize("cut", [0, 1, 4, 10])
def test_moments_are_those_of_all_samples(together, cut, draws):
    samples = torch.randn(10, 2, 3, generator=draws, dtype=torch.float64) * 5 + 100
    parts = samples[:cut], samples[cut:]
    for count, mean, variance in together(lambda group: group.moments(parts[group.rank])):
        assert count == 10
        torch.testing.assert_close(mean, samples.mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(variance, samples.var(0, correction=0), rtol=1e-9, atol=0)
    flat = samples[:, 0, 0].float()
    for std, mean in together(lambda group: group.std_mean(flat[:cut] if group.rank == 0 else flat[cut:])):
        torch.testing.assert_close(std, flat.std(correction=0))
        torch.testing.assert_close(mean, flat.mean())


def test_moments_of_what_counts(together, draws):
    samples = torch.randn(2, 10, 3, generator=draws, dtype=torch.float64) * 5 + 100
    valid = torch.rand(2, 10, generator=draws) < 0.4
    for count, mean, variance in together(lambda group: group.moments(samples[group.rank], valid[group.rank])):
        assert count == valid.sum()
        torch.testing.assert_close(mean, samples[valid].mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(variance, samples[valid].var(0, correction=0), rtol=1e-9, atol=0)
    flat = samples[..., 0].float()
    for std, mean in [
        *together(lambda group: group.std_mean(flat[group.rank], valid[group.rank])),
        Collective().std_mean(flat.flatten(), valid.flatten()),
    ]:
        torch.testing.assert_close(std, flat[valid].std(correction=0))
        torch.testing.assert_close(mean, flat[valid].mean())


def test_moments_of_nothing(together):
    for count, mean, variance in together(lambda group: group.moments(torch.zeros(0, 2))):
        assert (count, mean.tolist(), variance.tolist()) == (0, [0.0, 0.0], [0.0, 0.0])


def test_running_statistics_equal_those_of_one_process(together, draws):
    rounds = [torch.randn(12, 3, generator=draws) + n for n in range(4)]
    alone = ObsNormalizer((3,), 10.0)
    for samples in rounds:
        alone.update(samples)

    def body(group):
        normalizer = ObsNormalizer((3,), 10.0)
        for samples in rounds:
            normalizer.update(samples[:5] if group.rank == 0 else samples[5:], group)
        return normalizer.state_dict()

    one, two = together(body)
    for name, expected in alone.state_dict().items():
        assert torch.equal(one[name], two[name])
        torch.testing.assert_close(one[name], expected, rtol=1e-6, atol=1e-12)


def test_reward_statistics_equal_those_of_one_process(together, draws):
    reward = torch.randn(3, 8, 6, generator=draws)
    ended, valid = torch.rand(2, 3, 8, 6, generator=draws) > 0.8
    alone = RewardNormalizer(6, 0.9, 10.0)

    def run(normalizer, envs):
        for k in range(3):
            normalizer.update(reward[k][:, envs], ended[k][:, envs], ~valid[k][:, envs])
        return normalizer.moments

    expected = run(alone, slice(None))
    for found in together(
        lambda group: run(RewardNormalizer(3, 0.9, 10.0, group), slice(3 * group.rank, 3 * group.rank + 3))
    ):
        assert found.count == expected.count
        torch.testing.assert_close(found.var, expected.var, rtol=1e-10, atol=0)


def test_empty_batches_leave_statistics_alone(together):
    def body(group):
        moments = RunningMoments((2,))
        moments.update(torch.zeros(0, 2), group)
        return moments.count.item(), moments.var.tolist()

    assert together(body) == [(0.0, [1.0, 1.0])] * 2


def test_gradient_of_two_equals_that_of_one_with_the_joined_batch(together, draws):
    x, y = torch.randn(16, 3, generator=draws), torch.randn(16, 1, generator=draws)

    def steps(group, rows):
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimizer = Optimizer({"net": net}, max_grad_norm=0.5, collective=group)
        for _ in range(3):
            optimizer.apply((net(x[rows]) - y[rows]).square().mean(), 1e-2)
        return optimizer.flat.clone(), optimizer.grad.clone(), optimizer.mean_grad_norm()

    expected = steps(Collective(), slice(None))
    halves = slice(0, 8), slice(8, 16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [nn.Linear(3, 1), nn.Linear(3, 1)]
        nets[1].load_state_dict(nets[0].state_dict())

    def body(group):
        net, rows = nets[group.rank], halves[group.rank]
        optimizer = Optimizer({"net": net}, max_grad_norm=0.5, collective=group)
        for _ in range(3):
            optimizer.apply((net(x[rows]) - y[rows]).square().mean(), 1e-2)
        return optimizer.flat.clone(), optimizer.grad.clone(), optimizer.mean_grad_norm()

    one, two = together(body)
    for a, b, c in zip(one, two, expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6)


def test_gradient_by_hand(together):
    """Loss w * x: gradients 1 and 3, whose mean is 2."""

    def body(group):
        net = nn.Linear(1, 1, bias=False)
        optimizer = Optimizer({"net": net}, collective=group)
        optimizer.apply(net(torch.tensor([[1.0 + 2.0 * group.rank]])).sum(), 1e-3)
        return optimizer.grad.tolist()

    assert together(body) == [[2.0], [2.0]]


def test_a_member_that_leaves_is_an_error_for_those_that_wait(together):
    def body(group):
        group.any(False)
        if group.rank == 1:
            group._control.abort()
            return None
        with pytest.raises(PeerLostError, match="another learner is gone"):
            group.any(False)
        return "noticed"

    assert together(body) == ["noticed", None]
