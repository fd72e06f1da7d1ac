"""Training on one GPU whose environments are tensors on it: point chasing, PPO, 5 epochs of 4 minibatches over T = 24.

    python benchmarks/gpu.py --envs 4096 16384

For each number of environments: env steps/s of `erl bench` with CUDA graphs and without, of the environments alone in a
CUDA graph, the one's share of the other, and wall seconds from a cold `erl train` to the first snapshot that scores 6.3
over 20 episodes. Without a GPU it ends with exit code 2; `--device cpu` runs everything small, without graphs, which
says nothing of speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from time_to_score import first_score

from erlcli.core.graphs import CudaRecorder, Graphs
from erlcli.engine.bench import random_action
from erlcli.envs.config import env_config
from erlcli.envs.vecenv import make_vec_env
from erlcli.recipe.load import load

RECIPE, TARGET = "chasing_ppo", 6.3
LENGTH, EPOCHS, MINIBATCHES, HIDDEN = 24, 5, 4, [256, 128, 64]


def settings(num_envs: int, device: str, capture: str, precision: str) -> list[str]:
    """Overrides of the recipe."""
    return [
        f"train.device={device}",
        f"env.num_envs={num_envs}",
        f"algorithm.rollout_length={LENGTH}",
        f"algorithm.epochs={EPOCHS}",
        f"algorithm.batch_size={LENGTH * num_envs // MINIBATCHES}",
        f"network.hidden={HIDDEN}",
        f"engine.capture={capture}",
        f"engine.precision={precision}",
    ]


def erl(verb: str, sets: list[str], *options: str) -> dict:
    """The JSON that a verb prints."""
    flags = [part for override in sets for part in ("--set", override)]
    command = [sys.executable, "-m", "erlcli", verb, RECIPE, *flags, *options, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def envs_alone(num_envs: int, device: torch.device, seconds: float) -> float:
    """Steps/s with the same random actions at every step, T steps at a time: in a graph on a GPU."""
    recipe = load(RECIPE, settings(num_envs, str(device), "auto", "fp32"))
    env = make_vec_env(env_config(recipe.env, num_envs, None, str(device)))
    action = random_action(env.spec.action, num_envs).to(device)
    env.reset(0)
    told: dict[str, str | None] = {}
    graphs = Graphs(CudaRecorder(device) if device.type == "cuda" else None, told.__setitem__)

    def steps() -> None:
        for _ in range(LENGTH):
            env.step(action)

    generators = [env.generator] if env.generator is not None else []
    captured, done = graphs.capture("environments", steps, generators), 0
    for _ in range(3):
        captured()
    synchronize(device)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(20):
            captured()
        synchronize(device)
        done += 20 * LENGTH * num_envs
    spent = time.perf_counter() - started
    env.verify()
    if told.get("environments") is not None:
        print(f"environments alone: not captured: {told['environments']}", file=sys.stderr)
    return done / spent


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_to_target(sets: list[str], total_steps: int) -> float | None:
    """Wall seconds from the start of the process; None where the budget did not do. Evaluation time is not counted."""
    with tempfile.TemporaryDirectory(prefix="erl-gpu-") as folder:
        root = Path(folder) / "run"
        started = time.time()
        erl("train", [*sets, f"train.total_steps={total_steps}"], "--run-dir", str(root), "--no-tui")
        hit = first_score(root, TARGET)
    return None if hit is None else hit["time/wall"] - started


def measure(num_envs: int, device: torch.device, seconds: float, precision: str, total_steps: int) -> dict:
    """All figures for one number of environments."""
    speed = {}
    for capture in ("auto", "off"):
        sets = settings(num_envs, str(device), capture, precision)
        speed[capture] = erl("bench", sets, "--seconds", str(seconds))["steps_per_second"]
    limit = envs_alone(num_envs, device, seconds)
    return {
        "num_envs": num_envs,
        "precision": precision,
        "steps_per_second": speed["auto"],
        "steps_per_second_without_graphs": speed["off"],
        "envs_alone_steps_per_second": limit,
        "share_of_limit": speed["auto"] / limit,
        "seconds_to_target": seconds_to_target(settings(num_envs, str(device), "auto", precision), total_steps),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of speed")
    parser.add_argument("--precision", choices=("fp32", "tf32"), default="fp32")
    parser.add_argument("--total-steps", type=int, default=30_000_000, help="budget for reaching the target")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU that PyTorch can use; --device cpu tries this script without one", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    rows = []
    for num_envs in arguments.envs:
        rows.append(measure(num_envs, device, arguments.seconds, arguments.precision, arguments.total_steps))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
