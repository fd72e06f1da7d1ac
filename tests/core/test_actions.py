"""Policy units to env units, with exact values."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from erlcli.core.actions import ActionMap
from erlcli.core.types import Box, Discrete, MultiDiscrete

INF = float("inf")


def box(low, high, shape=None, dtype="float32"):
    return Box(shape or (len(low),), dtype, tuple(low), tuple(high))


def test_bounded_dimensions_are_stretched_onto_their_bounds():
    mapped = ActionMap(box([-2.0, 0.0, 10.0], [2.0, 1.0, 30.0]))
    action = torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, -0.5, 0.25]])
    assert mapped(action).tolist() == [[-2.0, 0.0, 10.0], [0.0, 0.5, 20.0], [2.0, 1.0, 30.0], [1.0, 0.25, 22.5]]


def test_what_lies_outside_is_clipped():
    mapped = ActionMap(box([-2.0, -1.0], [2.0, 1.0]))
    assert mapped(torch.tensor([5.0, -1.5])).tolist() == [2.0, -1.0]
    assert mapped(torch.tensor([INF, -INF])).tolist() == [2.0, -1.0]


def test_unbounded_dimensions_pass_as_they_are_up_to_the_bound_that_is_there():
    mapped = ActionMap(box([-INF, 0.0, -INF], [INF, INF, 3.0]))
    assert mapped(torch.tensor([123.0, 4.0, -7.0])).tolist() == [123.0, 4.0, -7.0]
    assert mapped(torch.tensor([-123.0, -4.0, 7.0])).tolist() == [-123.0, 0.0, 3.0]


def test_the_shape_and_dtype_of_the_env_come_back():
    mapped = ActionMap(box([-1.0] * 6, [1.0] * 6, shape=(2, 3), dtype="float64"))
    action = torch.arange(24.0).view(4, 6) / 24
    found = mapped(action)
    assert found.shape == (4, 2, 3) and found.dtype == torch.float64
    torch.testing.assert_close(found, action.double().view(4, 2, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high"), [([-0.1, 0.3, -1e-3, 0.7], [0.1, 0.9, 1e-3, 0.8]), ([-0.1] * 4, [0.3] * 4)], ids=["own", "shared"]
)
def test_every_action_lies_in_the_space(low, high, dtype, draws):
    """Bounds that float32 can't hold are not to be passed by rounding."""
    low, high = np.array(low), np.array(high)
    space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    mapped = ActionMap(box(space.low.tolist(), space.high.tolist(), dtype=dtype))
    edges = torch.tensor([[-1.0] * 4, [1.0] * 4, [-1.0000001] * 4, [9.0] * 4, [-9.0] * 4])
    for action in torch.cat([edges, torch.randn(2000, 4, generator=draws)]):
        assert space.contains(mapped(action).numpy())


def test_discrete_choices_are_shifted_by_start():
    assert ActionMap(Discrete(3))(torch.tensor([0, 2, 1])).tolist() == [0, 2, 1]
    shifted = ActionMap(Discrete(3, start=-1))(torch.tensor([0, 2, 1]))
    assert shifted.tolist() == [-1, 1, 0] and shifted.dtype == torch.int64


def test_multi_discrete_keeps_shape_dtype_and_starts():
    space = MultiDiscrete((2, 3, 4, 5), (2, 2), "int32", (0, 10, 20, 30))
    found = ActionMap(space)(torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]))
    assert found.tolist() == [[[1, 12], [23, 34]], [[0, 10], [20, 30]]]
    assert found.dtype == torch.int32


def test_multi_binary_arrives_in_its_own_dtype():
    space = spaces.MultiBinary(3)
    found = ActionMap(MultiDiscrete((2, 2, 2), (3,), str(space.dtype)))(torch.tensor([1, 0, 1]))
    assert space.contains(found.numpy())


def test_the_input_stays_as_it_is():
    action = torch.tensor([[5.0]])
    ActionMap(box([-1.0], [1.0]))(action)
    assert action.item() == 5.0


def test_it_holds_no_state():
    assert not ActionMap(box([-2.0], [2.0])).state_dict()
