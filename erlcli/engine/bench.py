"""Throughput of a recipe against the limit that its environments set.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from erlcli.core import toolchain
from erlcli.core.compiled import Compiler
from erlcli.core.cpus import usable_cpus
from erlcli.core.types import ActionSpace, Box, Discrete
from erlcli.engine import build
from erlcli.engine.plan import Plan
from erlcli.engine.scratch import run_learner
from erlcli.envs.config import EnvConfig, env_config
from erlcli.envs.vecenv import make_vec_env
from erlcli.recipe.load import AnyRecipe, dump
from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import Curve

FOREVER = 2**40
WARM_ROWS = 2  # metric rows left out: the first ones that learn allocate


@dataclass(frozen=True)
class Result:
    """What was measured; steps are env transitions, all shares are of the training time.

    Attributes:
        steps_per_second: of training.
        env_limit_steps_per_second: of the environments alone, with random actions.
        share_env: waiting for environments.
        share_act: choosing actions and writing them down.
        share_update: learning.
        share_wait: waiting for worker processes.
        rollouts: that were measured.
        rss_bytes: of the learner, the first one of several.
    """

    steps_per_second: float
    env_limit_steps_per_second: float
    share_env: float
    share_act: float
    share_update: float
    share_wait: float
    rollouts: int
    rss_bytes: int

    @property
    def share_of_limit(self) -> float:
        """Training speed as a share of the environments' own."""
        return self.steps_per_second / self.env_limit_steps_per_second


def bench(recipe: AnyRecipe, seconds: float, tell: Callable[[str], None]) -> Result:
    """Measure the environments alone, then training.

    Args:
        recipe: resolved.
        seconds: for each of the two, beside start-up.
        tell: told what is measured.

    Raises:
        ErlError: what the environments or the learner failed of.
    """
    tell("environments alone, random actions")
    limit = env_limit(recipe, seconds)
    tell("training")
    rows, rss = _train(recipe, seconds)
    first, last = rows[0], rows[-1]
    spent = last["time/wall"] - first["time/wall"]
    shares = {
        name: sum(row[f"time/share_{name}"] for row in rows[1:]) / (len(rows) - 1)
        for name in ("env", "act", "update", "wait")
    }
    return Result(
        (last["steps"] - first["steps"]) / spent,
        limit,
        shares["env"],
        shares["act"],
        shares["update"],
        shares["wait"],
        last["version"] - first["version"],
        rss,
    )


def env_limit(recipe: AnyRecipe, seconds: float) -> float:
    """Steps a second of the recipe's environments with random actions and nothing else to do.

    With workers, or several learners, it is that of one process's share, times the processes that can run at once on
    this machine's cores.
    """
    engine, cores = recipe.engine, usable_cpus()
    threads = None if engine.env_threads == "auto" else engine.env_threads
    processes = engine.learners * max(1, engine.workers)
    if processes == 1 and not engine.workers:
        device = str(build.device(recipe.train.device))
        compiler = Compiler(toolchain.libraries()) if recipe.engine.compile == "on" and device == "cpu" else None
        return _steps_per_second(env_config(recipe.env, recipe.env.num_envs, threads, device), seconds, compiler)
    share = 1 if engine.workers else max(1, cores // engine.learners)
    config = env_config(recipe.env, recipe.env.num_envs // processes, threads or share)
    return _steps_per_second(config, seconds) * min(processes, cores)


def _steps_per_second(config: EnvConfig, seconds: float, compiler: Compiler | None = None) -> float:
    env = make_vec_env(config, compiler=compiler)
    try:
        actions = [random_action(env.spec.action, config.num_envs).to(env.spec.device) for _ in range(64)]
        env.reset(0)
        mask = env.first_mask()
        if compiler is not None:
            env.step(actions[0])  # which compiles it
        count = valid = 0
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            step = env.step(actions[count % 64] if mask is None else legal_action(env.spec.action, mask))
            mask = step.mask
            valid += config.num_envs if env.spec.gives_next_obs else int(step.valid.sum())
            count += 1
        return valid / spent
    finally:
        env.close()


def random_action(space: ActionSpace, num_envs: int) -> torch.Tensor:
    """(N, *action) uniform actions in a policy's units."""
    if isinstance(space, Box):
        return torch.rand(num_envs, space.size) * 2 - 1
    if isinstance(space, Discrete):
        return torch.randint(space.n, (num_envs,))
    return torch.stack([torch.randint(n, (num_envs,)) for n in space.nvec], dim=1)


def legal_action(space: ActionSpace, mask: torch.Tensor) -> torch.Tensor:
    """(N, *action) actions that are drawn uniformly from those that `mask` (N, C) leaves."""
    nvec = (mask.shape[1],) if isinstance(space, (Box, Discrete)) else space.nvec
    parts = torch.split(mask.to(torch.float32), list(nvec), dim=1)
    chosen = torch.cat([part.multinomial(1) for part in parts], dim=1)
    return chosen.squeeze(1) if isinstance(space, Discrete) else chosen


def _train(recipe: AnyRecipe, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Metric rows of a real learner after its first ones, and its resident memory."""
    everything = {"total_steps": FOREVER, "target_return": None}
    rare = {"every_steps": FOREVER}
    recipe = recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update=everything),
            "eval": recipe.eval.model_copy(update=rare),
            "checkpoint": recipe.checkpoint.model_copy(update=rare),
            "log": recipe.log.model_copy(update={"every": Plan.of(recipe).log}),  # as often as the run would
        }
    )
    with tempfile.TemporaryDirectory(prefix="erl-bench-") as folder:
        layout = RunLayout(Path(folder) / "run")
        layout.create()
        layout.recipe.write_text(dump(recipe))
        curve = Curve(layout.metrics)

        def tick() -> bool:
            curve.refresh()
            rows = _learning(curve)
            return len(rows) < 3 or rows[-1]["time/wall"] - rows[0]["time/wall"] < seconds

        run_learner(layout, FOREVER, tick)
        rss = int((read_json(layout.process("learner")) or {}).get("rss_bytes", 0))
    return _learning(curve), rss


def _learning(curve: Curve) -> list[dict[str, Any]]:
    """Rows from when learning goes on: in a warm-up, actions are random and nothing is learnt."""
    return [row for row in curve.rows if row["updates"] > 0][WARM_ROWS:]
