"""An environment with pictures: a square that moves to the right, one pixel a step."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env):
    """Rewards are 1 a step.

    Args:
        length: of its episodes.
        size: of its pictures, (height, width).
        fault: what drawing raises, by its name.
        render_mode: as gymnasium has it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - gymnasium's own style

    def __init__(self, length=50, size=(40, 600), fault=None, render_mode=None):
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode, self._length, self._size, self._fault = render_mode, length, size, fault
        self._steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action):
        self._steps += 1
        return self._observation(), 1.0, self._steps == self._length, False, {}

    def render(self):
        np.random.random()
        if self._fault is not None:
            raise {"ImportError": ImportError, "OSError": OSError}[self._fault]("no EGL here")
        picture = np.zeros((*self._size, 3), np.uint8)
        picture[:, self._steps :] = 255
        return picture

    def _observation(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Unseen(Drawn):
    """The same without pictures."""

    metadata = {"render_modes": []}  # noqa: RUF012
