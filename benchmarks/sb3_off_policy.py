"""Stable-Baselines3's steps/s once it learns, for `off_policy.py`.

In a venv of its own: pip install torch==2.13.0 stable-baselines3 "gymnasium[mujoco]", then

    python benchmarks/sb3_off_policy.py sac --seconds 20
"""

from __future__ import annotations

import argparse
import time

import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

CHEETAH = {"env": "HalfCheetah-v5", "batch_size": 256, "policy_kwargs": {"net_arch": [256, 256]}}
WORKLOADS = {
    "sac": (SAC, CHEETAH),
    "td3": (TD3, CHEETAH),
    "dqn": (DQN, {"env": "CartPole-v1", "batch_size": 64, "train_freq": 256, "gradient_steps": 128}),
}
WARMUP = 1000


class Clock(BaseCallback):
    """Counts steps from when learning has begun, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.start: float | None = None
        self.before = 0

    def _on_step(self) -> bool:
        if self.start is None:
            if self.num_timesteps >= WARMUP + 300:  # past the first round of updates, which allocates
                self.start, self.before = time.perf_counter(), self.num_timesteps
            return True
        self.spent = time.perf_counter() - self.start
        return self.spent < self.seconds

    @property
    def speed(self) -> float:
        """Steps a second."""
        return (self.num_timesteps - self.before) / self.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    kind, settings = WORKLOADS[options.workload]
    clock = Clock(options.seconds)
    model = kind("MlpPolicy", device="cpu", seed=0, learning_starts=WARMUP, **settings)
    model.learn(10**9, callback=clock)
    print(f"{clock.speed:.1f}")


if __name__ == "__main__":
    main()
