"""rl-zoo's tuned settings of PPO for Stable-Baselines3, as data: used by its scripts here and to set up ours alike."""

from __future__ import annotations

from typing import Any

PPO_TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1",
        "envs": 8,
        "normalize": False,
        "ppo": {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8},
    },
    "lunarlander": {
        "env": "LunarLanderContinuous-v3",
        "envs": 16,
        "normalize": False,
        "ppo": {
            "n_steps": 1024, "batch_size": 64, "n_epochs": 4, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01,
        },
    },
    "bipedal": {
        "env": "BipedalWalker-v3",
        "envs": 32,
        "normalize": True,
        "ppo": {
            "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gamma": 0.999, "gae_lambda": 0.95, "clip_range": 0.18,
        },
    },
}  # fmt: skip
