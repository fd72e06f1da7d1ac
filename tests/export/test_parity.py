"""The check has to notice whatever an exporter may forget."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from erlcli.core.gaussian import TanhGaussian
from erlcli.core.types import Box, Discrete, EnvSpec, MultiDiscrete
from erlcli.engine.load_policy import load_policy
from erlcli.errors import ErlError
from erlcli.export.greedy import GreedyPolicy
from erlcli.export.parity import BATCHES, Outputs, Runtime, check, observations, torch_runtime
from erlcli.runs.layout import RunLayout

INF = float("inf")
OBS = Box((3,), "float32", (-INF,) * 3, (INF,) * 3)
TORQUE = Box((2,), "float32", (-2.0, -2.0), (5.0, 5.0))
MakeRun = Callable[..., RunLayout]


class Chain(nn.Module):
    """A runtime of any function of the policy."""

    def __init__(self, greedy: GreedyPolicy, body: Callable[[GreedyPolicy, Tensor], Tensor]) -> None:
        super().__init__()
        self.greedy, self.body = greedy, body

    def forward(self, obs: Tensor) -> Tensor:
        return self.body(self.greedy, obs)


def load_greedy(make_run: MakeRun, action, *overrides: str, obs: Box = OBS) -> tuple[GreedyPolicy, EnvSpec]:
    loaded = load_policy(make_run(obs, action, *overrides))
    return GreedyPolicy(loaded.policy, loaded.spec.action), loaded.spec


def without_normalizer(g: GreedyPolicy, x: Tensor) -> Tensor:
    return g.action_map(g.policy.distribution.mode(g.policy.params(x)))


def without_clip_of_obs(g: GreedyPolicy, x: Tensor) -> Tensor:
    normalizer = g.policy.normalizer
    return g.action_map(g.policy.distribution.mode(g.policy.params((x - normalizer.shift) * normalizer.scale)))


def without_map(g: GreedyPolicy, x: Tensor) -> Tensor:
    return g.policy.act_greedy(x)


def without_clip_of_actions(g: GreedyPolicy, x: Tensor) -> Tensor:
    return g.action_map.offset + g.policy.act_greedy(x) * g.action_map.scale


def without_tanh(g: GreedyPolicy, x: Tensor) -> Tensor:
    return g.action_map(g.policy.params(g.policy.features(x)))


def in_bfloat16(g: GreedyPolicy, x: Tensor) -> Tensor:
    features = g.policy.features(x)
    for layer in g.policy.network:
        features = layer(features).bfloat16().float()
    return g.action_map(g.policy.distribution.mode(features))


def off_by_a_little(g: GreedyPolicy, x: Tensor) -> Tensor:
    return g(x) + 1e-4


CONTINUOUS = [
    without_normalizer,
    without_clip_of_obs,
    without_map,
    without_clip_of_actions,
    in_bfloat16,
    off_by_a_little,
]


@pytest.mark.parametrize("forgetful", CONTINUOUS)
def test_continuous_faults_are_noticed(make_run: MakeRun, forgetful) -> None:
    greedy, spec = load_greedy(make_run, TORQUE, "normalize.obs=true")
    assert check(greedy, spec, torch_runtime(greedy), "itself").max_error == 0.0
    with pytest.raises(ErlError, match="does not act like the policy") as caught:
        check(greedy, spec, torch_runtime(Chain(greedy, forgetful)), "file")
    assert caught.value.exit_code == 1


def test_a_forgotten_tanh_is_noticed(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, TORQUE, "algorithm.squash=true")
    assert isinstance(greedy.policy.distribution, TanhGaussian)
    with pytest.raises(ErlError, match="does not act like"):
        check(greedy, spec, torch_runtime(Chain(greedy, without_tanh)), "file")


@pytest.mark.parametrize(
    "action",
    [Discrete(3, start=3), MultiDiscrete((2, 3, 4, 2), (4,), start=(0, 0, 1, 0)), MultiDiscrete((2, 3), (2, 1))],
)
def test_a_forgotten_start_or_shape_is_noticed(make_run: MakeRun, action) -> None:
    greedy, spec = load_greedy(make_run, action)
    assert check(greedy, spec, torch_runtime(greedy), "itself").differing_actions == 0
    with pytest.raises(ErlError):
        check(greedy, spec, torch_runtime(Chain(greedy, without_map)), "file")


def test_scores_tell_policies_apart_that_choose_alike(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, Discrete(2), "normalize.obs=true")
    greedy.policy.network[-1].bias.copy_(torch.tensor([0.0, 100.0]))  # always 1
    forgetful = Chain(greedy, without_normalizer)
    obs = torch.from_numpy(observations(greedy, spec))
    assert torch.equal(forgetful(obs), greedy(obs))
    with pytest.raises(ErlError, match="does not act like"):
        check(greedy, spec, torch_runtime(forgetful), "file")


def tied(greedy: GreedyPolicy, choose: int, gap: float) -> Runtime:
    """A file of a policy with two equal scores, which takes the other one, and is off by `gap`."""

    def act(obs: np.ndarray) -> Outputs:
        scores = torch_runtime(greedy)(obs)[1]
        moved = scores + np.asarray([0.0, gap, 0.0], dtype=np.float32)
        return np.full(len(obs), choose), moved

    return act


def test_ties_may_be_broken_either_way_and_are_counted(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, Discrete(3))
    last = greedy.policy.network[-1]
    last.weight[1].copy_(last.weight[0])
    last.bias.copy_(torch.tensor([50.0, 50.0, 0.0]))  # 0 and 1 are always equal, 2 never wins
    assert check(greedy, spec, tied(greedy, 0, 0.0), "file").differing_actions == 0
    assert check(greedy, spec, tied(greedy, 1, 1e-6), "file").differing_actions == 1000
    for runtime in (tied(greedy, 2, 0.0), tied(greedy, 7, 0.0), tied(greedy, 1, 0.1)):
        with pytest.raises(ErlError, match="does not act like"):
            check(greedy, spec, runtime, "file")


def test_wrong_dtype_and_nan_are_noticed(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, TORQUE)
    honest = torch_runtime(greedy)
    with pytest.raises(ErlError, match="another form"):
        check(greedy, spec, lambda obs: (honest(obs)[0].astype(np.float64), None), "file")
    with pytest.raises(ErlError, match="does not act like"):
        check(greedy, spec, lambda obs: (honest(obs)[0] * np.float32("nan"), None), "file")
    greedy.policy.network[0].bias[0] = float("nan")
    with pytest.raises(ErlError, match="the policy itself gives NaN"):
        check(greedy, spec, honest, "file")


def test_a_fault_at_one_batch_size_is_noticed(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, TORQUE)
    honest, seen = torch_runtime(greedy), []

    def no_single(obs: np.ndarray) -> Outputs:
        seen.append(len(obs))
        actions = honest(obs)[0]
        return (actions + np.float32(len(obs) == 1), None)

    with pytest.raises(ErlError, match="does not act like"):
        check(greedy, spec, no_single, "file")
    assert tuple(seen) == BATCHES
    assert sum(seen) == 1000


def test_observations_fill_the_space(make_run: MakeRun) -> None:
    space = Box((2, 2), "float32", (-1.0, 0.0, -INF, -3.4e38), (1.0, 50.0, INF, 3.4e38))
    greedy, spec = load_greedy(make_run, TORQUE, obs=space)
    obs = observations(greedy, spec)
    assert obs.dtype == np.float32
    low, high = obs.min(axis=0), obs.max(axis=0)
    np.testing.assert_array_equal(low[0], [-1.0, 0.0])  # the very bounds
    np.testing.assert_array_equal(high[0], [1.0, 50.0])
    assert (np.abs(obs[:, 1]).max(axis=0) < 6.0).all()  # no bounds, or none worth the name: standard normal
    assert 0.8 < obs[:, 1].std() < 1.2
    np.testing.assert_array_equal(obs, observations(greedy, spec))


def test_observations_meet_the_statistics_and_their_clipping(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, TORQUE, "normalize.obs=true")
    obs = observations(greedy, spec)
    normalizer = greedy.policy.normalizer
    normal = (obs - normalizer.shift.numpy()) * normalizer.scale.numpy()
    assert (np.abs(normal[::2]).max(axis=0) < 101.0).all()
    assert np.abs(normal).max() > 10.0 == normalizer.clip
    assert 0.7 < np.median(normal[::2].std(axis=0)) < 10.0


def test_images_are_bytes(make_run: MakeRun) -> None:
    space = Box((4, 4), "uint8", (0.0,) * 16, (255.0,) * 16)
    greedy, spec = load_greedy(make_run, Discrete(2), "normalize.obs=true", obs=space)
    obs = observations(greedy, spec)
    assert obs.dtype == np.uint8
    assert (obs.min(), obs.max()) == (0, 255)


def test_rounding_of_an_ill_conditioned_network_is_no_fault(make_run: MakeRun) -> None:
    greedy, spec = load_greedy(make_run, Box((1,), "float32", (-1.0,), (1.0,)), "network.activation=relu")
    *_, hidden, _, last = greedy.policy.network
    hidden.bias.add_(3000.0)  # large features that nearly cancel
    last.weight.sub_(last.weight.mean())

    def summed_backwards(g: GreedyPolicy, x: Tensor) -> Tensor:
        features = g.policy.network[:-1](x)
        return g.action_map(sum(features[:, i : i + 1] * last.weight[:, i] for i in reversed(range(16))) + last.bias)

    found = check(greedy, spec, torch_runtime(Chain(greedy, summed_backwards)), "file")
    assert 1e-5 < found.max_error < 1e-2
    with pytest.raises(ErlError, match="does not act like"):
        check(greedy, spec, torch_runtime(Chain(greedy, lambda g, x: g(x) + 0.02)), "file")
