"""How a process of a run computes: its threads, and how exactly and by which library it multiplies matrices."""

from __future__ import annotations

import torch

from erlcli.core import matmul, pages
from erlcli.core.cpus import usable_cpus
from erlcli.errors import RecipeError
from erlcli.recipe.load import AnyRecipe

WIDE = 256  # width of a hidden layer from which products are bound by arithmetic
WORK = 2**21  # multiply-adds of the widest layer on a batch for each thread: with less, they mostly wait for each other
ROWS = 256  # of a batch, where an algorithm doesn't say
MOST_THREADS = 8
FEW_STEPS = 8  # env steps, which take less than a gradient step of wide layers (some 5 ms) even on slow physics


def configure_cuda(recipe: AnyRecipe, device: torch.device) -> None:
    """Set this process up for the learner's work on a GPU.

    Raises:
        RecipeError: the recipe wants what only a CPU does.
    """
    if device.type == "cuda":
        if recipe.engine.precision == "bf16":
            raise RecipeError(
                "engine.precision bf16: on a CPU only",
                expected="tf32 or fp32 on a GPU",
                found=f"bf16, train.device {device}",
                remedy='engine.precision = "tf32"',
            )
        torch.cuda.set_device(device)  # or streams and graphs would touch the first one, too
        tf32 = recipe.engine.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def configure_cpu(recipe: AnyRecipe) -> None:
    """Set this process up for the learner's tensor operations: threads, matrix products, and memory.

    Raises:
        RecipeError: see `choose_products`.
    """
    torch.set_num_threads(threads(recipe))
    choose_products(recipe)
    pages.keep_freed()


def choose_products(recipe: AnyRecipe) -> None:
    """Set how this process multiplies matrices: as exactly as the recipe says, with the faster library.

    Raises:
        RecipeError: this processor can't round as the recipe says.
    """
    rounded = recipe.engine.precision == "bf16"
    if rounded and not matmul.rounds():
        raise RecipeError(
            "engine.precision bf16: not on this processor",
            expected="one with AMX or AVX-512 BF16 (erl doctor names them)",
            found="neither",
            remedy='engine.precision = "fp32"',
        )
    matmul.choose(wide=is_wide(recipe), rounded=rounded)


def is_wide(recipe: AnyRecipe) -> bool:
    """Whether its layers are wide enough to be bound by arithmetic."""
    return _width(recipe) >= WIDE


def _width(recipe: AnyRecipe) -> int:
    critics: tuple[int, ...] | None = getattr(recipe.algorithm, "critic_hidden", None)
    return max([0, *recipe.network.hidden, *(critics or ())])


def threads(recipe: AnyRecipe) -> int:
    """CPU threads for the learner's tensor operations.

    Small products are done before a second thread has woken up: 256 rows through 128 x 128 are the fewest that two
    threads do sooner. Layers narrower than wide leave a core to the evaluator, in whose way threads that wait for each
    other lose what they gain; and all cores but one to environments, where there are many env steps for each gradient
    step. With workers and lag, learner and workers run at the same time and share the cores; not so with a gradient
    step for each few env steps, which leaves the workers waiting nearly all of the time.
    """
    if recipe.engine.threads != "auto":
        return recipe.engine.threads
    algorithm, total, envs = recipe.algorithm, recipe.train.total_steps, recipe.env.num_envs
    learns_most, wide = algorithm.gradient_steps(total, envs) >= total / FEW_STEPS, is_wide(recipe)
    if not (learns_most or wide):
        return 1
    worth = (algorithm.rows(envs) or ROWS) * _width(recipe) ** 2 // WORK
    busy = recipe.engine.workers if recipe.engine.lag and not learns_most else 0
    evaluator = 0 if wide else 1
    return max(1, min(usable_cpus() - busy - evaluator, worth, MOST_THREADS))


def takes_all_cores(recipe: AnyRecipe) -> bool:
    """Whether the threads of a learner on the CPU are as many as there are cores."""
    on_cpu = recipe.train.device == "cpu" or not torch.cuda.is_available()
    return on_cpu and threads(recipe) >= usable_cpus() > 1
