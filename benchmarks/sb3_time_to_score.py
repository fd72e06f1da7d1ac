"""The same measure for Stable-Baselines3 with the hyper-parameters of rl-zoo, to run beside `time_to_score.py`.

In an environment of its own: pip install torch==2.13.0 stable-baselines3 "gymnasium[box2d]"; then
    python benchmarks/sb3_time_to_score.py cartpole 0

Wall seconds since the start of the process, imports included and evaluations left out, until the mean of 20
deterministic episodes is at the target.
"""

import time

START = time.perf_counter()

import sys  # noqa: E402

import torch  # noqa: E402
from sb3_tasks import PPO_TASKS  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

# What rl-zoo has beside the settings that speed depends on.
TASKS = {
    "cartpole": {
        "target": 475,
        "budget": 100_000,
        "every": 4_000,
        "ppo": {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left},
    },
    "lunarlander": {"target": 200, "budget": 1_000_000, "every": 32_768, "ppo": {}},
}


class Score(BaseCallback):
    """Evaluates every so many steps and keeps that time apart."""

    def __init__(self, env, target: float, every: int):
        super().__init__()
        self.env, self.target, self.every = env, target, every
        self.due, self.evaluating, self.reached = every, 0.0, None

    def _on_step(self) -> bool:
        if self.num_timesteps < self.due:
            return True
        self.due += self.every
        before = time.perf_counter()
        mean, _ = evaluate_policy(self.model, self.env, 20, deterministic=True)
        self.evaluating += time.perf_counter() - before
        seconds = time.perf_counter() - START - self.evaluating
        print(f"{self.num_timesteps} steps, {seconds:.1f} s, return {mean:.1f}", flush=True)
        if mean < self.target:
            return True
        self.reached = seconds
        return False


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    task = {**PPO_TASKS[name], **TASKS[name]}
    torch.set_num_threads(2)
    train, test = make_vec_env(task["env"], task["envs"], seed=seed), make_vec_env(task["env"], 1, seed=seed + 1000)
    score = Score(test, task["target"], task["every"])
    model = PPO("MlpPolicy", train, device="cpu", seed=seed, **PPO_TASKS[name]["ppo"], **task["ppo"])
    model.learn(task["budget"], callback=score)
    print(f"{name} seed {seed}: {score.reached or float('inf'):.1f} s to {task['target']}")


if __name__ == "__main__":
    main()
