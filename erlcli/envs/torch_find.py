"""From `env.id` to the `TorchEnv` that it names; and the ids of those that come with `erl`.

Shipped ones are in gymnasium's registry, in the namespace `torch`, as single environments (`torch_single`). Other
packages may register theirs in the same way: with `SingleTorchEnv` as the entry point and the class among its kwargs.
"""

from __future__ import annotations

import importlib
import traceback
from typing import TYPE_CHECKING

import gymnasium

from erlcli.envs.config import TORCH_NAMESPACE, TWINS, EnvConfig
from erlcli.errors import EnvError, RecipeError

if TYPE_CHECKING:
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
    try:
        return made(config.num_envs, torch.device(config.device), **kwargs)
    except TypeError as error:
        if "argument" not in str(error):
            raise _failed(config, error) from error
        raise RecipeError(
            f"env.id {config.id}: {error}", expected="env.kwargs that it takes", remedy="correct env.kwargs"
        ) from None
    except (RecipeError, EnvError):
        raise
    except Exception as error:
        raise _failed(config, error) from error


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


def _failed(config: EnvConfig, error: Exception) -> EnvError:
    return EnvError(
        f"env.id {config.id}: failed while it was made: {type(error).__name__}: {error}",
        remedy="the env's own traceback is in errors/",
        details={"traceback": "".join(traceback.format_exception(error))},
    )
