"""Environments that are learnt in seconds and whose optimum is known."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Bandit(gymnasium.Env):
    """Says which of three contexts it is in; one of three choices pays 1, the others 0. Episodes of one step.

    Optimum 1; without a look at the context 1 / 3.
    """

    RIGHT = (2, 0, 1)

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3, start=1)
        self.context = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.context], {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        right = int(action) - 1 == self.RIGHT[self.context]
        return np.eye(3, dtype=np.float32)[self.context], float(right), True, False, {}


class PairBandit(Bandit):
    """Two choices at once, of 3 and of 2: each right one pays 0.5. Optimum 1; without a look at most 2 / 3."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 2])

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        hits = (int(action[0]) == self.RIGHT[self.context]) + (int(action[1]) == self.context % 2)
        return np.eye(3, dtype=np.float32)[self.context], hits / 2, True, False, {}


class Target(gymnasium.Env):
    """Shows a number x in [-1, 1]; the action, within [1, 3], should be 2 - 0.5 x, and the distance is the cost.

    Optimum 0; a constant 2 costs 0.25 on average.
    """

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(1.0, 3.0, (1,), np.float32)
        self.x = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        cost = abs(float(action[0]) - 2 + 0.5 * self.x)
        return np.array([self.x], np.float32), -cost, True, False, {}


class Corridor(gymnasium.Env):
    """Five cells; the right end pays 1 and ends the episode. The left end pays 0.2 at once, and is a dead end.

    Needs rewards to travel back over steps: optimum 1, the short-sighted one 0.2. A time limit truncates.
    """

    LENGTH, LIMIT = 5, 12

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (self.LENGTH,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.cell = self.steps = 0

    def _obs(self):
        return np.eye(self.LENGTH, dtype=np.float32)[self.cell]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.steps = 1, 0
        return self._obs(), {}

    def step(self, action):
        self.cell += 1 if action == 1 else -1
        self.steps += 1
        won, lost = self.cell == self.LENGTH - 1, self.cell == 0
        return self._obs(), 1.0 if won else 0.2 if lost else 0.0, won or lost, self.steps >= self.LIMIT, {}


class Drift(gymnasium.Env):
    """A point that is pushed: noisy, with random ends of both kinds, for tests of samplers rather than of learning."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.at = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2).astype(np.float32)
        return self.at, {}

    def step(self, action):
        self.at += 0.3 * np.asarray(action, np.float32) + 0.1 * self.np_random.normal(size=2).astype(np.float32)
        luck = self.np_random.random()
        return self.at, -float(np.abs(self.at).sum()), bool(luck < 0.05), bool(luck > 0.95), {}


class DiscreteDrift(Drift):
    """`Drift` pushed to one of four sides."""

    SIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(4)

    def step(self, action):
        return super().step(self.SIDES[int(action)])


class MaskedDrift(DiscreteDrift):
    """`DiscreteDrift` in which one side is forbidden, told in `info`; who goes there all the same is told so."""

    def _info(self):
        self.forbidden = int(self.np_random.integers(4))
        return {"action_mask": (np.arange(4) != self.forbidden).astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self._info()

    def step(self, action):
        if int(action) == self.forbidden:
            raise ValueError(f"side {action} is forbidden")
        return *super().step(action)[:4], self._info()


class Recall(gymnasium.Env):
    """Shows a cue at first, then nothing; the choice in the third step has to be that of the cue, and pays 1.

    Choice 3 is never legal, choice 2 is not in the third step. Optimum 1; without a memory 0.5.
    """

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.cue = self.steps = 0

    def action_masks(self):
        return np.array([True, True, self.steps < 2, False])

    def _obs(self):
        return np.array([self.cue * 2 - 1 if self.steps == 0 else 0, self.steps / 2], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return self._obs(), {}

    def step(self, action):
        if not self.action_masks()[int(action)]:
            raise ValueError(f"choice {action} is not legal in step {self.steps}")
        right = self.steps == 2 and int(action) == self.cue
        self.steps += 1
        return self._obs(), float(right), self.steps == 3, False, {}
