"""Environments of images, and of images with numbers, that are learnt in seconds and whose optimum is known."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Dot(gymnasium.Env):
    """A bright dot in one of three columns of a noisy 12 x 12 image; naming its column pays 1. Episodes of one step.

    Optimum 1; without a look 1 / 3.
    """

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (12, 12, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.column = 0

    def picture(self):
        self.column = int(self.np_random.integers(3))
        image = self.np_random.integers(0, 60, (12, 12, 1), dtype=np.uint8)
        row = int(self.np_random.integers(10))
        image[row : row + 3, 4 * self.column + 1 : 4 * self.column + 3] = 255
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture(), {}

    def step(self, action):
        reward = float(int(action) == self.column)
        return self.picture(), reward, True, False, {}


class DotTarget(Dot):
    """The action should be the column of the dot, counted from -1 to 1; the distance is the cost.

    Optimum 0; a constant costs 2 / 3 on average.
    """

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.5, 1.5, (1,), np.float32)

    def step(self, action):
        reward = -abs(float(action[0]) - (self.column - 1))
        return self.picture(), reward, True, False, {}


class Both(Dot):
    """The dot's column plus a number that is given beside the image, modulo 3, pays 1. Optimum 1; with one part 1 / 3.

    The observation also has a text, which nobody can read.
    """

    def __init__(self):
        super().__init__()
        parts = {"image": self.observation_space, "hint": spaces.Text(8), "shift": spaces.Discrete(3)}
        self.observation_space = spaces.Dict(parts)
        self.shift = 0

    def picture(self):
        image = super().picture()
        self.shift = int(self.np_random.integers(3))
        return {"image": image, "hint": "look", "shift": np.int64(self.shift)}

    def step(self, action):
        reward = float(int(action) == (self.column + self.shift) % 3)
        return self.picture(), reward, True, False, {}


class BothTarget(DotTarget):
    """The dot's column plus a number in [-0.4, 0.4] that is given beside the image. Optimum 0."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            {"image": self.observation_space, "plus": spaces.Box(-0.4, 0.4, (1,), np.float64)}
        )
        self.plus = 0.0

    def picture(self):
        image = super().picture()
        self.plus = float(self.np_random.uniform(-0.4, 0.4))
        return {"image": image, "plus": np.array([self.plus])}

    def step(self, action):
        reward = -abs(float(action[0]) - (self.column - 1) - self.plus)
        return self.picture(), reward, True, False, {}


class EightSteps:
    """Goes on for eight steps, of which the last truncates, with the right to any action."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.steps += 1
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.steps == 8, info


class Drifting(EightSteps, BothTarget):
    """A number for each picture, eight pictures an episode."""


class DriftingChoice(EightSteps, Both):
    """A choice of three for each picture, eight pictures an episode."""
