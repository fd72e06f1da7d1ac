import numpy as np
import pytest
import torch
from gymnasium import spaces

from erlcli.core.actions import ActionMap
from erlcli.core.types import Box, Discrete, MultiDiscrete
from erlcli.envs.spaces import action_space, describe, obs_box
from erlcli.errors import RecipeError


def to_env(space, action):
    """What the environment is given for a policy's (N, ...) actions."""
    return ActionMap(action_space(space, "Env"))(action).numpy()


def test_discrete_starts_where_the_space_does():
    assert action_space(spaces.Discrete(3, start=5), "Env") == Discrete(3, 5)
    got = to_env(spaces.Discrete(3, start=5), torch.tensor([0, 1, 2]))
    assert got.tolist() == [5, 6, 7] and got.dtype == np.int64
    assert to_env(spaces.Discrete(3, start=-1), torch.tensor([0, 2])).tolist() == [-1, 1]


def test_multi_discrete_of_two_dimensions_keeps_its_shape_and_order():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]])
    assert action_space(space, "Env") == MultiDiscrete((2, 3, 4, 5), (2, 2))
    got = to_env(space, torch.tensor([[1, 2, 3, 4], [0, 1, 0, 3]]))
    assert got.tolist() == [[[1, 2], [3, 4]], [[0, 1], [0, 3]]]
    assert all(space.contains(row) for row in got)


def test_multi_discrete_with_a_start_and_a_dtype():
    space = spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[10, -1])
    got = to_env(space, torch.tensor([[0, 2]]))
    assert got.tolist() == [[10, 1]] and space.contains(got[0])


@pytest.mark.parametrize("shape", [3, [2, 2]])
def test_multi_binary(shape):
    space = spaces.MultiBinary(shape)
    choices = torch.randint(2, (5, int(np.prod(shape))), generator=torch.Generator().manual_seed(0))
    got = to_env(space, choices)
    assert got.shape == (5, *space.shape) and all(space.contains(row) for row in got)
    assert got.reshape(5, -1).tolist() == choices.tolist()


def test_box_is_scaled_and_clipped_exactly():
    space = spaces.Box(-2, 5, (1,), np.float32)
    got = to_env(space, torch.tensor([[-1.0], [0.0], [1.0], [3.0], [-3.0]]))
    assert got.ravel().tolist() == [-2.0, 1.5, 5.0, 5.0, -2.0]
    assert got.dtype == np.float32 and all(space.contains(row) for row in got)


def test_box_with_other_bounds_in_each_dimension():
    space = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 10.0]]), dtype=np.float64)
    got = to_env(space, torch.tensor([[0.5, -0.5]]))
    assert got.tolist() == [[[0.5, 2.5]]] and got.dtype == np.float64 and space.contains(got[0])


def test_half_infinite_and_infinite_bounds_pass_through_and_clip_where_there_is_a_bound():
    low, high = np.array([0.0, -np.inf, -np.inf]), np.array([np.inf, 1.0, np.inf])
    space = spaces.Box(low, high, dtype=np.float64)
    box = action_space(space, "Env")
    assert isinstance(box, Box) and not box.bounded
    got = to_env(space, torch.tensor([[-3.0, -3.0, -3.0], [30.0, 30.0, 30.0]]))
    assert got.tolist() == [[0.0, -3.0, -3.0], [30.0, 1.0, 30.0]]


def test_box_without_dimensions():
    got = to_env(spaces.Box(-4.0, 4.0, (), np.float32), torch.tensor([[0.5], [1.0]]))
    assert got.shape == (2,) and got.tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 5, (2,), np.int32), spaces.Dict({"a": spaces.Discrete(2)}), spaces.Text(3)]
)
def test_actions_that_no_algorithm_can_take_are_refused(space):
    with pytest.raises(RecipeError, match=r"env\.id Env: action space not supported") as caught:
        action_space(space, "Env")
    assert "env.wrappers" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "seen"),
    [
        (np.uint8, "uint8"),
        (np.float32, "float32"),
        (np.float64, "float32"),
        (np.int64, "float32"),
        (np.int8, "float32"),
    ],
)
def test_observations_are_bytes_or_float32(dtype, seen):
    box = obs_box(spaces.Box(0, 100, (2, 3), dtype), "Env")
    assert (box.shape, box.dtype, box.low, box.high) == ((2, 3), seen, (0.0,) * 6, (100.0,) * 6)


def test_observations_that_are_no_box_are_refused():
    with pytest.raises(RecipeError, match="observation space not supported"):
        obs_box(spaces.Discrete(3), "Env")


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Box(-2, 2, (3,)), "Box float32 (3,) in [-2, 2]"),
        (spaces.Box(-np.inf, np.inf, (3,)), "Box float32 (3,), unbounded"),
        (spaces.Box(np.array([0.0, 1.0]), np.array([2.0, 2.0])), "Box float32 (2,), with various bounds"),
        (spaces.Discrete(4, start=2), "Discrete(4) from 2"),
        (spaces.MultiDiscrete([[2, 3], [3, 2]]), "MultiDiscrete (2, 2) of [2, 3]"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(3)}),
         "Dict of a: Discrete(2), b: MultiBinary (3,)"),
        (spaces.Tuple([spaces.Discrete(2)]), "Tuple of Discrete(2)"),
    ],
)  # fmt: skip
def test_describe(space, text):
    assert describe(space) == text
