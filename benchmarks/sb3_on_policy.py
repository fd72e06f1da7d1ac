"""Stable-Baselines3's steps/s with PPO or A2C, for `ppo_speed.py` and `on_policy.py`.

In a venv of its own: pip install torch==2.13.0 stable-baselines3 "gymnasium[box2d,mujoco]", for Atari also ale-py and
opencv-python-headless, for MiniGrid minigrid, for a memory sb3-contrib; then

    python benchmarks/sb3_on_policy.py '{"env": "CartPole-v1", "envs": 8, "options": {"n_steps": 32}}' --seconds 20

Its argument: env, envs, algorithm ("ppo" or "a2c"), hidden and activation of the networks, what is normalised (obs,
reward), whether it is an Atari game, which entries of an observation are seen (entries, all without; the name of a part
of a Dict is a small image, for which the peer has no network of its own), the units of an LSTM before the networks
(memory, none without), and the options of the peer's class. Whole iterations are counted, rollout and updates. The
first one is left out where it is short beside the rest.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import time
from typing import Any

import gymnasium
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from torch import nn

ALGORITHMS = {"ppo": PPO, "a2c": A2C}
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}


def atari(name: str, envs: int) -> VecEnv:
    """Games with the peer's own preprocessing, which skips frames itself, and a stack of four."""
    gymnasium.register_envs(importlib.import_module("ale_py"))
    exact = {"frameskip": 1, "repeat_action_probability": 0.0}
    return VecFrameStack(make_atari_env(name, envs, seed=0, env_kwargs=exact), n_stack=4)


def seeing(name: str, entries: list[int] | str) -> gymnasium.Env[Any, Any]:
    """An environment of which some entries of each observation are seen, or one part as a flat vector."""
    if name.startswith("MiniGrid"):
        gymnasium.register_envs(importlib.import_module("minigrid"))
    env = gymnasium.make(name)
    space: Any = env.observation_space
    if isinstance(entries, str):
        part = gymnasium.wrappers.TransformObservation(env, lambda obs: obs[entries], space[entries])
        return gymnasium.wrappers.FlattenObservation(part)
    box = gymnasium.spaces.Box(space.low[entries], space.high[entries])
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[entries], box)


class SmallImage(BaseFeaturesExtractor):
    """Convolutions as our `small_cnn` has them, of MiniGrid's flat image: 7 x 7 cells of three numbers up to 10."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        layers: list[nn.Module] = []
        for channels, out in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(channels, out, 3), nn.ReLU()]
        layers.append(nn.Flatten())
        super().__init__(space, 64)
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """(B, 7 * 7 * 3) to (B, 64)."""
        images = observations.reshape(-1, 7, 7, 3).permute(0, 3, 1, 2)
        features: torch.Tensor = self.layers(images * 0.1)
        return features


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
    parser.add_argument("task", type=json.loads, help="JSON, see above")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    task = options.task
    games = task.get("atari", False)
    entries, memory = task.get("entries"), task.get("memory")
    make = task["env"] if entries is None else functools.partial(seeing, task["env"], entries)
    env = atari(task["env"], task["envs"]) if games else make_vec_env(make, task["envs"], seed=0)
    obs, reward = task.get("normalize", (False, False))
    if obs or reward:
        env = VecNormalize(env, norm_obs=obs, norm_reward=reward, gamma=task["options"]["gamma"])
    hidden = task.get("hidden", [64, 64])
    networks = {
        "net_arch": {"pi": hidden, "vf": hidden},
        "activation_fn": ACTIVATIONS[task.get("activation", "tanh")],
    }
    if games:  # its network for images ends with a layer of its own
        (width,) = hidden
        networks |= {"net_arch": [], "features_extractor_kwargs": {"features_dim": width}}
    if isinstance(entries, str):
        networks |= {"features_extractor_class": SmallImage}
    clock = Clock(options.seconds)
    peer: Any = ALGORITHMS[task.get("algorithm", "ppo")]
    policy = "CnnPolicy" if games else "MlpPolicy"
    if memory is not None:
        peer, policy = importlib.import_module("sb3_contrib").RecurrentPPO, "MlpLstmPolicy"
        networks |= {"lstm_hidden_size": memory}
    peer(policy, env, device="cpu", seed=0, policy_kwargs=networks, **task["options"]).learn(10**9, callback=clock)
    print(f"{clock.speed:.1f}")


if __name__ == "__main__":
    main()
