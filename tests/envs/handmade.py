"""Small environments, good and bad, that the tests name as `handmade.py:Class`."""

import os
import random
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Counts its steps; obs (2,) = (a random start of the episode, steps). Terminates after `length` steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length=5, action_space=None, observation_space=None, render_mode=None):
        self.length = length
        self.action_space = action_space or spaces.Discrete(2)
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.render_mode = render_mode
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.steps = self.np_random.random(), 0
        return self.observe(), {}

    def step(self, action):
        self.actions.append(action)
        self.steps += 1
        return self.observe(), self.reward(), self.steps >= self.length, False, {}

    def observe(self):
        return np.array([self.start, self.steps], dtype=np.float32)

    def reward(self):
        return 0.5

    def render(self):
        return np.zeros((32, 48, 3), dtype=np.uint8)


class Endless(Counter):
    """Never ends by itself."""

    def __init__(self, **kwargs):
        super().__init__(length=10**9, **kwargs)


class Reuses(Counter):
    """Hands out the same buffer again and again, and empties it at each reset."""

    def reset(self, *, seed=None, options=None):
        self.buffer = getattr(self, "buffer", np.zeros(2, np.float32))
        return super().reset(seed=seed)

    def observe(self):
        self.buffer[:] = self.start, self.steps
        return self.buffer


class Rewards(Counter):
    """Rewards of a kind: int, float64, array, bool, nan, inf, text, none or pair."""

    def __init__(self, kind="int", **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def reward(self):
        return {
            "int": 3,
            "float64": np.float64(0.25),
            "array": np.array([1.5]),
            "array0": np.array(1.5, dtype=np.float64),
            "bool": True,
            "bool_": np.bool_(True),
            "nan": float("nan"),
            "inf": np.float64("inf"),
            "huge": 1e39,
            "text": "3",
            "none": None,
            "pair": np.array([1.0, 2.0]),
        }[self.kind]


class Flags(Counter):
    """Flags of a kind."""

    def __init__(self, kind="int", **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def step(self, action):
        obs, reward, ended, _, info = super().step(action)
        make = {
            "int": int,
            "numpy": np.bool_,
            "array": lambda x: np.array([x]),
            "none": lambda x: None,
            "text": str,
            "both": bool,
        }[self.kind]
        return obs, reward, make(ended), make(ended) if self.kind == "both" else make(False), info


class Spaces(Counter):
    """Observations of all kinds of spaces, sampled from a seeded space."""

    def __init__(self, kind="dict", **kwargs):
        box = spaces.Box(-1, 1, (2, 2), np.float64)
        space = {
            "dict": spaces.Dict({"b": box, "a": spaces.Discrete(3)}),
            "tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(3, start=5)]),
            "discrete": spaces.Discrete(4),
            "multi": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "binary": spaces.MultiBinary([2, 3]),
            "float64": box,
            "int64": spaces.Box(-5, 5, (3,), np.int64),
            "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "scalar": spaces.Box(-1, 1, (), np.float32),
            "sequence": spaces.Sequence(spaces.Discrete(2)),
            "graph": spaces.Graph(box, None),
        }[kind]
        super().__init__(observation_space=space, **kwargs)
        self.seen = []

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def observe(self):
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]


class Faulty(Counter):
    """Fails in a way, in `call`: at the third step, or at the reset of the second episode (the first with at=0)."""

    def __init__(self, call="step", way="raise", at=1, **kwargs):
        super().__init__(**kwargs)
        self.call, self.way, self.at, self.episode = call, way, at, -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        result = super().reset(seed=seed)
        return self.spoil(result) if self.call == "reset" and self.episode == self.at else result

    def step(self, action):
        result = super().step(action)
        return self.spoil(result) if self.call == "step" and self.steps == 3 else result

    def spoil(self, result):
        obs, *rest = result
        if self.way == "raise":
            raise ZeroDivisionError("a fault of the env")
        if self.way == "hang":
            while True:
                time.sleep(0.01)
        if self.way == "exit":
            os._exit(7)
        if self.way == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.way == "short":
            return tuple(result[:-1])
        if self.way == "alone":
            return obs
        obs = {
            "nan": np.array([np.nan, 0], np.float32),
            "inf": np.array([0, 1e300]),
            "shape": np.zeros(3, np.float32),
            "column": np.zeros((2, 1), np.float32),
            "none": None,
            "text": np.array(["a", "b"]),
            "ragged": [[1.0], [1.0, 2.0]],
            "list": [0.0, 1.0],
        }[self.way]
        return (obs, *rest)


class Unseeded(Counter):
    """Draws from the global generator."""

    def reset(self, *, seed=None, options=None):
        result = super().reset()
        self.start = random.random()
        return self.observe(), result[1]


class NoSeed(Counter):
    """Knows no seed at all."""

    def reset(self):
        return super().reset()


class Drifts(Counter):
    """Carries state over resets."""

    total = 0

    def step(self, action):
        self.total += 1
        return super().step(action)

    def reward(self):
        return float(self.total)


class Fixed(Counter):
    """Without any randomness."""

    def observe(self):
        return np.array([0, self.steps], dtype=np.float32)


class Shares(Counter):
    """Instances share their state."""

    steps_of_all = 0

    def step(self, action):
        Shares.steps_of_all += 1
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            Shares.steps_of_all = 0
        return super().reset(seed=seed)

    def reward(self):
        return float(Shares.steps_of_all)


class Outside(Counter):
    """Leaves the bounds of its space, in another dtype."""

    def __init__(self, **kwargs):
        super().__init__(observation_space=spaces.Box(0, 2, (2,), np.float32), **kwargs)


class Pictureless(Counter):
    """Renders nothing."""

    metadata = {"render_modes": []}  # noqa: RUF012


class Broken(gymnasium.Env):
    """Can't be made."""

    def __init__(self):
        raise OSError("no simulator here")


class Unclosable(Counter):
    """Closes a viewer that was never opened."""

    viewer = None

    def close(self):
        self.viewer.close()


class Undeclared(Counter):
    """Says nothing of a space."""

    def __init__(self, space="observation_space", **kwargs):
        super().__init__(**kwargs)
        delattr(self, space)


class NoEnv:
    """No environment at all."""


class Scale(gymnasium.RewardWrapper):
    """A wrapper with an argument."""

    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return reward * self.factor


INSTANCE, NUMBER = Counter(), 3


def make_counter(length=2):
    """A function works as well as a class."""
    return Counter(length=length)
