"""When things happen, in iterations: counting them (never seconds) makes equal seeds give equal rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from erlcli.core.toolchain import cxx
from erlcli.envs.config import choose_backend, env_config, has_twin
from erlcli.recipe.load import AnyRecipe

MAX_ROWS = 5_000  # more than a screen or a printed curve has dots, and a file of some megabytes
# Compiling takes as long as some 15,000 compiled steps of small batches save, and a step of 600 rows saves twice as
# much as one of few: both take the same share of the time on slow machines and fast ones.
COMPILED_STEPS, COMPILED_ROWS = 30_000, 600
COMPILED_ACTS = 100_000  # time steps of all envs together, of which acting takes a tenth of a millisecond less


@dataclass(frozen=True)
class Plan:
    """Iterations (rollout and update) between events.

    Attributes:
        log: metric rows.
        snapshot: policies for the evaluator.
        checkpoint: restart points.
    """

    log: int
    snapshot: int
    checkpoint: int

    @staticmethod
    def of(recipe: AnyRecipe) -> Plan:
        """The plan of a recipe; `auto` is resolved from the budget."""
        rollout, total = recipe.steps_per_rollout, recipe.train.total_steps

        def iterations(steps: int | str, share: int) -> int:
            wanted = total / share if isinstance(steps, str) else steps
            return max(1, math.ceil(wanted / rollout))

        every = recipe.log.every
        log = math.ceil(total / rollout / MAX_ROWS) if isinstance(every, str) else every
        return Plan(
            max(1, log),
            iterations(recipe.eval.every_steps, 50),
            iterations(recipe.checkpoint.every_steps, 10),
        )


def backend_of(recipe: AnyRecipe) -> tuple[str, str]:
    """The backend that steps a recipe's envs here, and why, as a clause for a log line."""
    config, engine = env_config(recipe.env, recipe.env.num_envs), recipe.engine
    # As machine code a step of few copies takes less time than the threads of a pool need to wake up.
    if config.backend == "auto" and compiled(recipe) == "on" and has_twin(config) and not engine.workers and cxx():
        return "torch", "erl has the same as tensors, and makes machine code of their steps"
    return choose_backend(config)


def compiled(recipe: AnyRecipe) -> str:
    """What of the learner's process is compiled; `auto` is resolved from the budget."""
    return worth_compiling(recipe) if recipe.engine.compile == "auto" else recipe.engine.compile


def worth_compiling(recipe: AnyRecipe) -> Literal["on", "updates", "off"]:
    """What the budget is long enough to compile: what saves the time that it costs at least twice."""
    algorithm, envs, total = recipe.algorithm, recipe.env.num_envs, recipe.train.total_steps
    if algorithm.gradient_steps(total, envs) * (1.0 + algorithm.rows(envs) / COMPILED_ROWS) < COMPILED_STEPS:
        return "off"
    return "on" if total / envs >= COMPILED_ACTS else "updates"


def resolve(recipe: AnyRecipe, backend: str) -> AnyRecipe:
    """The recipe with every `auto` that changes results replaced by what it means here."""
    plan, rollout = Plan.of(recipe), recipe.steps_per_rollout
    return recipe.model_copy(
        update={
            "env": recipe.env.model_copy(update={"backend": backend}),
            "engine": recipe.engine.model_copy(update={"compile": compiled(recipe)}),
            "log": recipe.log.model_copy(update={"every": plan.log}),
            "eval": recipe.eval.model_copy(update={"every_steps": plan.snapshot * rollout}),
            "checkpoint": recipe.checkpoint.model_copy(update={"every_steps": plan.checkpoint * rollout}),
        }
    )
