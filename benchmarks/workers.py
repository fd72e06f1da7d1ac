"""BipedalWalker in gymnasium, whose Python is the wall: one process, workers, and gymnasium's own vector envs.

python benchmarks/workers.py async --seconds 8      gymnasium's, by itself
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from report import Settings, bench_command, by_turns, ratio, spread, table

from erlcli.core.types import Box, EnvSpec
from erlcli.engine import build
from erlcli.recipe.load import load

TITLE = "Workers"
BUDGET_SECONDS = 150.0
ENV, ENVS, SECONDS = "BipedalWalker-v3", 32, 6.0
SETS = ['env.backend="gymnasium"', f"env.num_envs={ENVS}", "algorithm.rollout_length=64", "algorithm.batch_size=1024",
        "network.hidden=[64, 64]"]  # fmt: skip
OURS = {
    "one process": [],
    "2 workers": ["engine.workers=2"],
    "2 workers, lag 1": ["engine.workers=2", "engine.lag=1"],
}


def collect(kind: str, seconds: float) -> float:
    """Steps/s of gymnasium's vector env and our policy choosing its actions, on one thread as in our workers."""
    torch.set_num_threads(1)
    env = gymnasium.make_vec(ENV, num_envs=ENVS, vectorization_mode=kind)
    space, actions = env.single_observation_space, env.single_action_space
    spec = EnvSpec(
        Box(space.shape, "float32", tuple(space.low.tolist()), tuple(space.high.tolist())),
        Box(actions.shape, "float32", tuple(actions.low.tolist()), tuple(actions.high.tolist())),
        ENVS,
    )
    policy = build.policy(load("bipedal_ppo", SETS), spec)
    obs, _ = env.reset(seed=0)
    generator, steps = torch.Generator(), 0
    with torch.inference_mode():
        noise = policy.rollout_noise(64, ENVS, generator, spec.device)
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            action, _ = policy.act(torch.from_numpy(obs), noise[steps // ENVS % 64])
            obs, *_ = env.step(action.clamp(-1.0, 1.0).numpy())
            steps += ENVS
    env.close()
    return steps / spent


def section(settings: Settings) -> str:
    """See `report.section`."""
    seconds = settings.seconds(SECONDS)

    def vector(kind: str) -> Callable[[], float]:
        return lambda: float(settings.run(sys.executable, Path(__file__), kind, "--seconds", str(seconds)))

    def ours(more: list[str]) -> Callable[[], dict[str, Any]]:
        return lambda: settings.bench("bipedal_ppo", SETS + more, SECONDS)

    measures: dict[str, Callable[[], Any]] = {name: ours(more) for name, more in OURS.items()}
    found = by_turns(measures | {kind: vector(kind) for kind in ("sync", "async")}, settings)
    one = [row["steps_per_second"] for row in found["one process"]]
    rows = []
    for name, more in OURS.items():
        training = [row["steps_per_second"] for row in found[name]]
        # Without lag nothing is collected during updates, so that collection has the rest of the time.
        alone = (
            [row["steps_per_second"] / (1 - row["share_update"]) for row in found[name]] if "lag" not in name else []
        )
        rows.append(
            [name, spread(alone), spread(training), ratio(training, one), bench_command("bipedal_ppo", SETS + more)]
        )
    for kind, name in (("sync", "gymnasium's SyncVectorEnv"), ("async", f"its AsyncVectorEnv, {ENVS} processes")):
        rows.append([name, spread(found[kind]), "", "", f"`python benchmarks/workers.py {kind}`"])
    return table(["steps/s", "collecting", "training", "of one process", "command"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sync", "async"])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    print(f"{collect(options.kind, options.seconds):.1f}")


if __name__ == "__main__":
    main()
