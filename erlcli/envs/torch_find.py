"""From `env.id` to the `TorchEnv` that it names; and the ids of those that come with `erl`.

Shipped ones are in gymnasium's registry, in the namespace `torch`, as single environments (`torch_single`). Other
packages may register theirs in the same way: with `SingleTorchEnv` as the entry point and the class among its kwargs.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from typing import TYPE_CHECKING

import gymnasium

from erlcli.envs.config import TORCH_NAMESPACE, TWINS, EnvConfig
from erlcli.errors import EnvError, RecipeError

if TYPE_CHECKING:
    import torch

    from erlcli.envs.torch_env import TorchEnv

ENTRY_POINT = "erlcli.envs.torch_single:SingleTorchEnv"
# id -> (class, time limit, return from which on it counts as solved)
SHIPPED: dict[str, tuple[str, int, float | None]] = {
    "torch/PointChasing-v0": ("erlcli.envs.chasing:PointChasing", 1024, 6.3),
    "torch/CartPole-v1": ("erlcli.envs.torch_control:CartPole", 500, 475.0),
    "torch/MountainCarContinuous-v0": ("erlcli.envs.torch_control:MountainCarContinuous", 999, 90.0),
    "torch/Pendulum-v1": ("erlcli.envs.torch_control:Pendulum", 200, None),
}


def register() -> None:
    """Make the shipped ids known to gymnasium; twice is fine. Imports no torch."""
    for name, (reference, limit, threshold) in SHIPPED.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=ENTRY_POINT,
                max_episode_steps=limit,
                reward_threshold=threshold,
                kwargs={"env": reference},
            )


def import_class(reference: str) -> type[TorchEnv]:
    """The class that `package.module:Class` names."""
    module, _, name = reference.partition(":")
    found: type[TorchEnv] = getattr(importlib.import_module(module), name)
    return found


def make_torch_env(config: EnvConfig) -> TorchEnv:
    """`config.num_envs` copies on `config.device`.

    Raises:
        RecipeError: `env.id` names something else, or an argument does not fit.
        EnvError: the class fails while it is made.
    """
    import torch

    made, kwargs = _named(config)
    return construct(made, config.num_envs, torch.device(config.device), kwargs, f"env.id {config.id}")


def construct(
    made: type[TorchEnv], num_envs: int, device: torch.device, kwargs: dict[str, object], what: str
) -> TorchEnv:
    """`made(num_envs, device, **kwargs)`, with its failures in the user's words.

    Args:
        made: the class.
        num_envs: first argument.
        device: second argument.
        kwargs: the others.
        what: is made, for messages.

    Raises:
        RecipeError: an argument does not fit.
        EnvError: the class takes other ones, fails while it is made, or leaves out what it has to set.
    """
    import torch

    from erlcli.envs.spaces import check_declared

    _check_arguments(made, (num_envs, device), kwargs, what)  # or a TypeError from within would look like a wrong one
    try:
        env = made(num_envs, device, **kwargs)
    except (RecipeError, EnvError):
        raise
    except Exception as error:
        raise EnvError(
            f"{what}: failed while it was made: {type(error).__name__}: {error}",
            details={"traceback": "".join(traceback.format_exception(error))},
        ) from error
    if not isinstance(getattr(env, "generator", None), torch.Generator):
        raise EnvError(
            f"{what}: {made.__name__} has no generator",
            expected="what TorchEnv.__init__ sets",
            remedy="begin __init__ with super().__init__(num_envs, device)",
        )
    check_declared(env, what)
    return env


def _check_arguments(
    made: type[TorchEnv], first: tuple[int, torch.device], kwargs: dict[str, object], what: str
) -> None:
    signature = inspect.signature(made)
    try:
        signature.bind_partial(*first)
    except TypeError:
        raise EnvError(
            f"{what}: {made.__name__} can't be made",
            expected="a class that takes (num_envs, device, **kwargs)",
            found=f"one that takes {signature}",
            remedy="def __init__(self, num_envs, device), and what env.kwargs may set after those",
        ) from None
    try:
        signature.bind(*first, **kwargs)
    except TypeError as error:
        raise RecipeError(
            f"{what}: {error}",
            expected="env.kwargs that it takes",
            found=f"{made.__name__} takes {signature}",
            remedy="correct env.kwargs",
        ) from None


def _named(config: EnvConfig) -> tuple[type[TorchEnv], dict[str, object]]:
    """The class, and its keyword arguments."""
    from erlcli.envs.single import named
    from erlcli.envs.torch_env import TorchEnv

    register()
    spec = gymnasium.registry.get(TORCH_NAMESPACE + config.id if config.id in TWINS else config.id)
    if spec is not None and spec.entry_point == ENTRY_POINT:
        defaults = dict(spec.kwargs)
        return import_class(defaults.pop("env")), defaults | config.kwargs
    found = named(config.id) if ":" in config.id else None
    if isinstance(found, type) and issubclass(found, TorchEnv):
        return found, dict(config.kwargs)
    raise RecipeError(
        f"env.backend: torch can't step {config.id}",
        expected=f"a subclass of erlcli.envs.torch_env.TorchEnv, or one of {', '.join((*SHIPPED, *sorted(TWINS)))}",
        found=config.id,
        remedy='env.backend = "auto"',
    )
