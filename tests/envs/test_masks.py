"""Masks of legal actions, wherever an env keeps them.

Dimension letters: N environments, C choices.
"""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from erlcli.envs.config import EnvConfig
from erlcli.envs.gymnasium import GymnasiumVecEnv
from erlcli.envs.masks import MaskTakenOut
from erlcli.envs.single import make_env
from erlcli.errors import EnvError, RecipeError


class Masked(gymnasium.Env):
    """Shows how often it was stepped; choice (steps mod n) is illegal. `where` says how the mask is given."""

    def __init__(self, where="method", action=None, spoil=None):
        self.action_space = action or spaces.Discrete(4)
        self.nvec = [4] if action is None else list(action.nvec)
        box = spaces.Box(0, 100, (1,), np.float32)
        self.observation_space = box
        if where == "dict":
            self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": box})
        if where == "method":
            self.action_masks = self.mask
        self.where, self.spoil, self.steps = where, spoil, 0

    def mask(self):
        if self.spoil is not None and self.steps == 2:
            return self.spoil() if callable(self.spoil) else self.spoil
        parts = [np.arange(n) != self.steps % n for n in self.nvec]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _answer(self):
        obs = np.array([self.steps], np.float32)
        if self.where == "dict":
            obs = {"action_mask": self.mask().astype(np.int8), "x": obs}
        return obs, {"action_mask": self.mask()} if self.where == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._answer()

    def step(self, action):
        for choice, n in zip(np.atleast_1d(action), self.nvec, strict=True):
            assert int(choice) != self.steps % n, "an illegal action"
        self.steps += 1
        obs, info = self._answer()
        return obs, 1.0, self.steps >= 7, False, info


@pytest.fixture
def make(monkeypatch):
    def vec(num_envs=2, action_masks="auto", **kwargs):
        monkeypatch.setitem(gymnasium.registry, "Masked-v0", gymnasium.envs.registration.EnvSpec("Masked-v0", Masked))
        return GymnasiumVecEnv(EnvConfig("Masked-v0", "gymnasium", num_envs, kwargs, action_masks=action_masks))

    return vec


def expected(steps):
    return (torch.arange(4) != steps % 4).expand(2, 4)


@pytest.mark.parametrize(("where", "key"), [("method", "auto"), ("dict", "auto"), ("info", "info")])
def test_masks_are_those_of_the_newest_observation(make, where, key):
    env = make(where=where, action_masks=key)
    assert env.spec.mask == 4 and env.spec.obs.shape == (1,)
    obs = env.reset(0)
    assert torch.equal(env.first_mask(), expected(0)) and not obs.any()
    for k in range(1, 20):
        illegal = (k - 1) % 7 % 4
        step = env.step(torch.full((2,), (illegal + 1) % 4))
        steps = k % 7  # of the episode at play: the seventh step ends it, and the mask is that of the next one's start
        assert torch.equal(step.mask, expected(steps)), k
        assert step.obs[0, 0] == steps
        assert bool(step.terminated[0]) is (steps == 0)


def test_several_choices_at_once_have_one_mask_after_the_other(make):
    env = make(action=spaces.MultiDiscrete([2, 3]))
    assert env.spec.mask == 5
    env.reset(0)
    assert env.first_mask()[0].tolist() == [False, True, False, True, True]
    assert env.step(torch.tensor([[1, 1], [1, 2]])).mask[0].tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (np.zeros(4), "left no legal action"),
        (np.ones(3), "no mask over 4 choices"),
        (None, None),
        ("all", "no mask over 4 choices"),
        ([[1, 2], [1]], "no mask over 4 choices"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_mask_that_is_none_is_the_fault_of_the_env(make, spoil, words):
    env = make(spoil=spoil)
    env.reset(0)
    env.step(torch.tensor([1, 1]))
    if words is None:
        env.step(torch.tensor([2, 2]))
        return
    with pytest.raises(EnvError, match=words) as caught:
        env.step(torch.tensor([2, 2]))
    assert caught.value.exit_code == 3
    assert "env 0 " in caught.value.message and "step 2" in caught.value.message


def test_each_dimension_needs_a_legal_choice(make):
    env = make(action=spaces.MultiDiscrete([2, 3]), spoil=[1, 1, 0, 0, 0])
    env.reset(0)
    env.step(torch.tensor([[1, 1], [1, 1]]))
    with pytest.raises(EnvError, match="left no legal action"):
        env.step(torch.tensor([[0, 0], [0, 0]]))


def test_masks_in_info_are_not_ignored_in_silence(make):
    with pytest.raises(RecipeError, match="action_mask") as caught:
        make(where="info").reset(0)
    assert "env.action_masks" in caught.value.expected


def test_masks_can_be_turned_off(make):
    for where in ("method", "info", "dict"):
        env = make(where=where, action_masks="off")
        assert env.spec.mask == 0
        env.reset(0)
        assert env.first_mask() is None and env.step(torch.tensor([1, 1])).mask is None
    assert env.spec.obs.shape == (5,), "then the mask is a part of the observation like any other"


def test_continuous_actions_have_no_masks():
    with pytest.raises(RecipeError, match="continuous"):
        GymnasiumVecEnv(EnvConfig("Pendulum-v1", "gymnasium", 1, action_masks="info"))


class Continuous(gymnasium.Env):
    """Has a part that is called like a mask, and is none."""

    action_space = spaces.Box(-1.0, 1.0, (2,))
    observation_space = spaces.Dict({"action_mask": spaces.Box(0.0, 1.0, (2,)), "x": spaces.Box(0.0, 9.0, (1,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"action_mask": np.array([0.25, 0.5], np.float32), "x": np.array([7.0], np.float32)}, {}


def test_a_part_of_that_name_stays_where_actions_are_continuous(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Like-v0", gymnasium.envs.registration.EnvSpec("Like-v0", Continuous))
    env = GymnasiumVecEnv(EnvConfig("Like-v0", "gymnasium", 1))
    assert env.spec.mask == 0 and env.reset(0).tolist() == [[0.25, 0.5, 7.0]]


def test_an_observation_that_is_nothing_but_a_mask_stays():
    assert not MaskTakenOut.fits(spaces.Dict({"action_mask": spaces.MultiBinary(3)}), spaces.Discrete(3))
    assert not MaskTakenOut.fits(spaces.MultiBinary(3), spaces.Discrete(3))


def test_taxi_is_obeyed():
    """Gymnasium's own env with masks."""
    env = make_env(EnvConfig("Taxi-v4", "gymnasium", 1, action_masks="info"))
    _, info = env.reset(seed=0)
    vec = GymnasiumVecEnv(EnvConfig("Taxi-v4", "gymnasium", 3, action_masks="info"))
    vec.reset(0)
    assert vec.spec.mask == len(info["action_mask"]) == 6
    assert vec.first_mask().any(-1).all() and not vec.first_mask().all()
