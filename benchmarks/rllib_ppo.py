"""RLlib's steps/s with PPO, for `ppo_speed.py`.

In a venv of its own: pip install torch==2.13.0 "ray[rllib]" box2d pygame; then

    python benchmarks/rllib_ppo.py '{"env": "CartPole-v1", "envs": 8, "options": {"n_steps": 32}}' --seconds 20

Its argument is that of `sb3_on_policy.py`: env, envs, whether observations are normalised (RLlib doesn't divide rewards
by their deviation), and PPO's options by Stable-Baselines3's names. Its environments are shared between runners, which
are processes. Whole iterations are counted; the first one is left out where it is short beside the rest.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NAMES = {
    "batch_size": "minibatch_size",
    "n_epochs": "num_epochs",
    "gamma": "gamma",
    "gae_lambda": "lambda_",
    "ent_coef": "entropy_coeff",
    "clip_range": "clip_param",
}
STEPS = "num_env_steps_sampled_lifetime"


def configured(task: dict[str, Any], runners: int) -> PPOConfig:
    """RLlib's PPO that does what a task says; with 0 runners the environments are in the learner's process."""
    options = task["options"]
    settings = {NAMES[name]: value for name, value in options.items() if name in NAMES}
    networks = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment(task["env"])
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=task["envs"] // max(runners, 1))
        .training(train_batch_size_per_learner=task["envs"] * options["n_steps"], **settings)
        .rl_module(model_config=networks)
    )
    normalizes, _ = task.get("normalize", (False, False))
    if normalizes:
        config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=json.loads, help="JSON, see above")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runners", type=int, default=2)
    options = parser.parse_args()
    # Ray counts a core for each process, however many there are.
    ray.init(include_dashboard=False, num_cpus=options.runners + 2, log_to_driver=False, logging_level="ERROR")
    algorithm = configured(options.task, options.runners).build_algo()
    start, before = time.perf_counter(), 0
    steps, now = algorithm.train()[STEPS], time.perf_counter()
    if now - start < options.seconds / 4:
        start, before = now, steps
    while now - start < options.seconds:
        steps, now = algorithm.train()[STEPS], time.perf_counter()
    print(f"{(steps - before) / (now - start):.1f}")
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
