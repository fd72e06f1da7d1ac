"""Stable-Baselines3's steps/s with PPO, for `ppo_speed.py`.

In a venv of its own: pip install torch==2.13.0 stable-baselines3 "gymnasium[box2d]", then

    python benchmarks/sb3_ppo.py cartpole --seconds 20

Whole iterations are counted, rollout and updates. The first one is left out where it is short beside the rest.
"""

from __future__ import annotations

import argparse
import time

import torch
from sb3_tasks import PPO_TASKS
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


class Clock(BaseCallback):
    """Counts the steps of whole iterations, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.iterations = seconds, 0
        self.start, self.before, self.speed = 0.0, 0, 0.0

    def _on_rollout_start(self) -> None:
        now, steps = time.perf_counter(), self.num_timesteps
        first = self.iterations == 0 or (self.iterations == 1 and now - self.start < self.seconds / 4)
        self.iterations += 1
        if first:
            self.start, self.before = now, steps
        else:
            self.speed = (steps - self.before) / (now - self.start)

    def _on_step(self) -> bool:
        return not self.speed or time.perf_counter() - self.start < self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=PPO_TASKS)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    task = PPO_TASKS[options.task]
    env = make_vec_env(task["env"], task["envs"], seed=0)
    if task["normalize"]:
        env = VecNormalize(env, gamma=task["ppo"]["gamma"])
    clock = Clock(options.seconds)
    PPO("MlpPolicy", env, device="cpu", seed=0, **task["ppo"]).learn(10**9, callback=clock)
    print(f"{clock.speed:.1f}")


if __name__ == "__main__":
    main()
