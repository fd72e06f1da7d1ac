"""An environment that misbehaves on demand. Reward is 1 for action 1, so that there is something to learn."""

import ctypes
import os
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    """Fails at step `at` of the process, `once` (a flag file remembers) or always."""

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own way

    def __init__(self, fault="none", where="step", at=60, once=None, only_process=None):
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.fault, self.where, self.at, self.once = fault, where, at, once
        self.only_process = only_process  # e.g. evaluator
        self.calls = self.t = 0
        self.render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        obs = self._obs()
        if self.where == "reset" and self.calls >= self.at:
            obs = self._fail(obs)
        return obs, {}

    def step(self, action):
        self.calls += 1
        self.t += 1
        obs, reward = self._obs(), float(action)
        if self.where == "step" and self.calls >= self.at:
            obs = self._fail(obs)
            if self.fault == "inf_reward":
                reward = float("inf")
            if self.fault == "text_reward":
                reward = "much"
            if self.fault == "huge_reward":
                reward = 3e38
        return obs, reward, self.t >= 20, False, {}

    def _obs(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def _fail(self, obs):
        if self.only_process not in (None, Path(sys.argv[0]).stem):
            return obs
        if self.once is not None:
            try:
                Path(self.once).touch(exist_ok=False)  # of several processes, one alone fails
            except FileExistsError:
                return obs
        match self.fault:
            case "raise":
                raise RuntimeError("the simulator lost its marbles")
            case "hang":
                time.sleep(3600)
            case "exit" | "exit_0":
                print("env says goodbye", flush=True)
                os._exit(7 if self.fault == "exit" else 0)
            case "sys_exit":
                sys.exit()
            case "segfault":
                ctypes.string_at(0)
            case "nan_obs":
                return np.full(3, np.nan, np.float32)
            case "wrong_shape":
                return np.zeros(4, np.float32)
        return obs
