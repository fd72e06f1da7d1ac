import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from erlcli.core.packing import image, vector
from erlcli.envs.config import EnvConfig
from erlcli.envs.families import FAMILIES, register
from erlcli.envs.parts import BadObservation, PackObservation, left_out, wants_packing
from erlcli.envs.single import make_env
from erlcli.envs.spaces import obs_box
from erlcli.errors import RecipeError

CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)
SPACE = spaces.Dict(
    {
        "camera": CAMERA,
        "inner": spaces.Dict({"pose": spaces.Box(-1.0, 1.0, (2,), np.float64), "door": spaces.Discrete(3, start=5)}),
        "told": spaces.Text(20),
    }
)


class Given(gymnasium.Env):
    """Returns what it was given."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, rows):
        self.observation_space = space
        self.rows = iter(rows)

    def reset(self, *, seed=None, options=None):
        return next(self.rows), {}

    def step(self, action):
        return next(self.rows), 0.0, False, False, {}


def observation(value, **changes):
    camera = np.full((4, 5, 3), value, np.uint8)
    return {"camera": camera, "inner": {"pose": np.array([value, 0.5]), "door": 6}, "told": "go"} | changes


def test_what_is_packed_and_what_is_left_out():
    assert wants_packing(SPACE) and left_out(SPACE) == ["told"]
    assert wants_packing(spaces.Tuple([CAMERA, spaces.Discrete(2)]))
    assert not wants_packing(CAMERA) and not wants_packing(spaces.Dict({"a": spaces.Discrete(2)}))


def test_parts_arrive_where_the_space_says():
    env = PackObservation(Given(SPACE, [observation(7)]))
    box = obs_box(env.observation_space, "Env")
    row = torch.from_numpy(env.reset()[0])
    assert [part.name for part in box.parts] == ["inner.door", "inner.pose", "camera"]
    assert env.observation_space.contains(row.numpy())
    assert vector(row, 5).tolist() == [0.0, 1.0, 0.0, 7.0, 0.5]
    assert torch.equal(image(row, box.parts[2]), torch.full((4, 5, 3), 7, dtype=torch.uint8))


def test_a_stack_holds_the_last_ones_and_begins_with_copies_of_the_first():
    env = PackObservation(Given(SPACE, [observation(1), observation(2), observation(3)]), stack=2)
    box = obs_box(env.observation_space, "Env")
    rows = [env.reset()[0], env.step(0)[0], env.step(0)[0]]
    camera = next(part for part in box.parts if part.name == "camera")
    assert camera.space.shape == (2, 4, 5, 3)
    assert [image(torch.from_numpy(row), camera)[:, 0, 0, 0].tolist() for row in rows] == [[1, 1], [1, 2], [2, 3]]
    assert vector(torch.from_numpy(rows[2]), 10)[6:].tolist() == [2.0, 0.5, 3.0, 0.5]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"camera": np.zeros((4, 5, 1), np.uint8)}, "camera is uint8"),
        ({"camera": np.full((4, 5, 3), 300)}, "outside of 0"),
        ({"camera": np.zeros((4, 5, 3), np.float32)}, "camera is float32"),
        ({"inner": {"pose": np.array([np.nan, 0.0]), "door": 5}}, "NaN"),
        ({"inner": {"pose": np.array([1e300, 0.0]), "door": 5}}, "NaN or infinite"),
        ({"inner": {"pose": np.zeros(2), "door": 9}}, "door is 9"),
        ({"inner": {"door": 5}}, "without 'pose'"),
    ],
)
def test_what_is_no_observation_is_named(changes, text):
    env = PackObservation(Given(SPACE, [observation(1, **changes)]))
    with pytest.raises(BadObservation, match=text):
        env.reset()


def test_rows_are_not_reused():
    env = PackObservation(Given(SPACE, [observation(1), observation(2)]))
    first = env.reset()[0]
    kept = first.copy()
    env.step(0)
    assert np.array_equal(first, kept)


def test_minigrid_is_an_image_a_direction_and_a_mission_that_is_left_out():
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    env = make_env(EnvConfig("MiniGrid-DoorKey-5x5-v0"))
    box = obs_box(env.observation_space, "Env")
    assert [(part.name, part.space.shape) for part in box.parts] == [("direction", (4,)), ("image", (7, 7, 3))]
    assert left_out(env.unwrapped.observation_space) == ["mission"]
    env.close()


def test_pybullet_envs_are_found_by_their_ids():
    pytest.importorskip("pybullet_envs_gymnasium", reason="the extra pybullet is not installed")
    env = make_env(EnvConfig("InvertedPendulumSwingupBulletEnv-v0"))
    assert env.reset(seed=0)[0].shape == (5,)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "extra"),
    [("ALE/Pong-v5", "atari"), ("BabyAI-GoToObj-v0", "minigrid"), ("HopperBulletEnv-v0", "pybullet")],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(env_id, extra, monkeypatch):
    module = next(family.module for family in FAMILIES if family.knows(env_id))
    monkeypatch.setitem(__import__("sys").modules, module, None)  # makes its import fail
    with pytest.raises(RecipeError) as caught:
        register(env_id)
    assert f"erlcli[{extra}]" in str(caught.value)
