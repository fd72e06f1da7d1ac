import numpy as np
import pytest
import torch

from erlcli.core.distributions import for_space
from erlcli.core.memory import Memory
from erlcli.core.policy import ActorPolicy, Policy
from erlcli.core.types import Box, Discrete, MultiDiscrete

CPU = torch.device("cpu")
ACTIONS = {
    "discrete": (Discrete(3), False),
    "multi_discrete": (MultiDiscrete((2, 4), (2,)), False),
    "gaussian": (Box((2,), "float32", (-1.0,) * 2, (1.0,) * 2), False),
    "tanh": (Box((2,), "float32", (-1.0,) * 2, (1.0,) * 2), True),
}


def obs_space(shape=(4,), dtype="float32"):
    size = int(np.prod(shape))
    return Box(shape, dtype, (-float("inf"),) * size, (float("inf"),) * size)


def make(kind="discrete", shape=(4,), dtype="float32", obs_clip=None, log_std=-0.5):
    torch.manual_seed(3)
    space, squash = ACTIONS[kind]
    policy = ActorPolicy(obs_space(shape, dtype), for_space(space, log_std, squash), (16,), "tanh", False, obs_clip)
    with torch.no_grad():
        for p in policy.network.parameters():
            p.mul_(3.0).add_(0.1)  # away from the small initial output layer, so that actions depend on obs
    return policy


@pytest.mark.parametrize("kind", sorted(ACTIONS))
@pytest.mark.parametrize("normalize", [False, True])
def test_the_log_prob_of_act_is_that_of_the_action(kind, normalize, draws):
    policy = make(kind, obs_clip=10.0 if normalize else None)
    obs = torch.randn(64, 4, generator=draws) * 5
    if normalize:
        policy.normalizer.update(obs)
    action, extras = policy.act(obs, policy.noise((64,), draws, CPU))
    assert action.shape == (64, *policy.action_shape) and action.dtype == policy.action_dtype
    assert set(extras) == set(policy.extras)
    again = policy.distribution.log_prob(policy.params(policy.features(obs)), action)
    torch.testing.assert_close(extras["log_prob"], again, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_extras_are_announced_with_shape_and_dtype(kind, draws):
    policy = make(kind)
    _, extras = policy.act(torch.zeros(5, 4), policy.noise((5,), draws, CPU))
    for name, (shape, dtype) in policy.extras.items():
        assert extras[name].shape == (5, *shape) and extras[name].dtype == dtype


@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_noise_of_a_whole_rollout_is_sliced_by_step(kind, draws):
    policy = make(kind)
    noise = policy.noise((7, 5), draws, CPU)
    assert noise.shape[:2] == (7, 5)
    action, _ = policy.act(torch.zeros(5, 4), noise[3])
    assert action.shape == (5, *policy.action_shape)


@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_acting_is_a_function_of_observation_and_noise(kind, draws):
    policy = make(kind)
    obs, noise = torch.randn(32, 4, generator=draws), policy.noise((32,), draws, CPU)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    first, second = policy.act(obs, noise)[0], policy.act(obs, noise)[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, policy.act(obs, policy.noise((32,), draws, CPU))[0])
    assert torch.equal(policy.act_greedy(obs), policy.act_greedy(obs))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_greedy_is_the_mode(draws):
    obs = torch.randn(20, 4, generator=draws)
    for kind in ACTIONS:
        policy = make(kind)
        assert torch.equal(policy.act_greedy(obs), policy.distribution.mode(policy.params(policy.features(obs))))
    gaussian = make("gaussian")
    torch.testing.assert_close(gaussian.act_greedy(obs), gaussian.act(obs, torch.zeros(20, 2))[0])


@pytest.mark.parametrize(
    ("shape", "dtype", "width"),
    [((6,), "float32", 6), ((2, 3, 4), "uint8", 24), ((), "float32", 1), ((1,), "float32", 1), ((3, 2), "float32", 6)],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_features_are_flat_float32(shape, dtype, width, normalize, draws):
    policy = make("discrete", shape, dtype, obs_clip=10.0 if normalize else None)
    raw = torch.randint(256, (5, 7, *shape), generator=draws).to(getattr(torch, dtype))
    features = policy.features(raw)
    assert features.shape == (5, 7, width) and features.dtype == torch.float32
    expected = raw.float().clamp(-10, 10) if normalize else raw.float()
    assert torch.equal(features, expected.reshape(5, 7, width))
    assert policy.act_greedy(raw[0]).shape == (7,)
    assert policy.features(raw[:, :0]).shape == (5, 0, width)


def test_the_normalizer_travels_with_the_state():
    policy, obs = make("gaussian", obs_clip=5.0), torch.randn(200, 4) * 3 + 100
    policy.normalizer.update(obs)
    other = make("gaussian", obs_clip=5.0)
    assert not torch.equal(other.act_greedy(obs), policy.act_greedy(obs))
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other.act_greedy(obs), policy.act_greedy(obs))
    assert any(name.startswith("normalizer.") for name in policy.state_dict())
    assert not any(name.startswith("normalizer.") for name in make("gaussian").state_dict())


def test_a_fresh_policy_starts_near_its_centre(draws):
    obs = torch.randn(100, 4, generator=draws)
    space, _ = ACTIONS["gaussian"]
    policy = ActorPolicy(obs_space(), for_space(space), (64, 64), "tanh", False, None)
    assert policy.act_greedy(obs).abs().max() < 0.1


def test_a_plain_policy_refuses_masks_and_states(draws):
    class Plain(Policy):
        def noise(self, shape, generator, device):
            return torch.zeros(*shape)

        def act(self, obs, noise):
            return obs + noise.unsqueeze(-1), {}

        def act_greedy(self, obs):
            return obs

    policy, obs, mask = Plain(), torch.randn(4, 2, generator=draws), torch.ones(4, 2, dtype=torch.bool)
    assert policy.plain and policy.initial_state(4, CPU) is None
    noise = policy.rollout_noise(3, 4, draws, CPU)
    assert len(noise) == 3
    action, extras, state = policy.step(obs, noise[0], None, None)
    assert torch.equal(action, obs) and extras == {} and state is None
    for given in ((mask, None), (None, torch.zeros(4, 3))):
        with pytest.raises(TypeError, match="observations alone"):
            policy.step(obs, noise[0], *given)
        with pytest.raises(TypeError, match="observations alone"):
            policy.step_greedy(obs, *given)


def test_a_policy_with_a_memory_acts_from_a_state(draws):
    policy = ActorPolicy(obs_space(), for_space(Discrete(3)), (8,), "tanh", False, None, Memory("gru", 4, 6))
    assert not policy.plain and policy.state_size == 6
    obs, noise = torch.randn(5, 4, generator=draws), policy.noise((5,), draws, CPU)
    state = policy.initial_state(5, CPU)
    action, extras, following = policy.step(obs, noise, None, state)
    assert action.shape == extras["log_prob"].shape == (5,) and following.shape == (5, 6)
    assert not torch.equal(policy.step_greedy(obs, None, following)[1], following)
    for method, given in (("act", (obs, noise)), ("act_greedy", (obs,)), ("step_greedy", (obs, None, None))):
        with pytest.raises(TypeError, match="from a state"):
            getattr(policy, method)(*given)
