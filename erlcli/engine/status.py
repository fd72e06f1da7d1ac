"""What `status.json` of a run holds, whoever supervises the run."""

from __future__ import annotations

import os
import time

from erlcli.recipe.load import AnyRecipe
from erlcli.runs.jsonl import Row


def status_row(
    name: str,
    recipe: AnyRecipe,
    state: str,
    *,
    attempt: int,
    steps: int,
    seconds: float,
    reached: bool = False,
    exit_code: int | None = None,
    error: str | None = None,
) -> Row:
    """The state of a run, signed by this process.

    Args:
        name: of the run.
        recipe: resolved.
        state: one of those that `RunView.state` names.
        attempt: number of this start.
        steps: env transitions taken.
        seconds: of training, over all attempts.
        reached: whether a full evaluation reached the target.
        exit_code: once the run has ended.
        error: what went wrong, in the user's words.
    """
    return {
        "state": state,
        "pid": os.getpid(),
        "attempt": attempt,
        "time": time.time(),
        "name": name,
        "env": recipe.env.id,
        "backend": recipe.env.backend,
        "algorithm": recipe.algorithm.name,
        "steps": steps,
        "seconds": seconds,
        "total_steps": recipe.train.total_steps,
        "target_return": recipe.train.target_return,
        "target_reached": reached,
        "exit_code": exit_code,
        "error": error,
    }
