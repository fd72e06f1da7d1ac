"""Gymnasium spaces to the tool's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from erlcli.core.types import ActionSpace, Box, Discrete, MultiDiscrete
from erlcli.envs.parts import PackedSpace, is_text
from erlcli.errors import EnvError, RecipeError

# Gymnasium says so of its own Box2D environments, each time one is made.
warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered by casting")


def obs_box(space: spaces.Space[Any], env_id: str, stack: int = 1) -> Box:
    """The observation space, which wrappers have packed or flattened to a box where it was none.

    Args:
        space: after all wrappers.
        env_id: for messages.
        stack: observations that wrappers have stacked along its first axis.

    Raises:
        RecipeError: it is still none.
    """
    if isinstance(space, PackedSpace):
        return space.row
    if not isinstance(space, spaces.Box):
        raise RecipeError(
            f"env.id {env_id}: observation space not supported",
            expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those",
            found=str(space),
            remedy="turn it into one of those with a wrapper: env.wrappers",
        )
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    return Box(tuple(space.shape), dtype, _floats(space.low), _floats(space.high), stack=stack)


def action_space(space: spaces.Space[Any], env_id: str) -> ActionSpace:
    """The action space.

    Raises:
        RecipeError: no algorithm can act in it.
    """
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        start = tuple(int(x) for x in np.asarray(space.start).flatten())
        nvec = tuple(int(n) for n in space.nvec.flatten())
        return MultiDiscrete(nvec, tuple(space.shape), str(space.dtype), start if any(start) else ())
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * int(np.prod(space.shape)), tuple(space.shape), str(space.dtype))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Box(tuple(space.shape), str(space.dtype), _floats(space.low), _floats(space.high))
    raise RecipeError(
        f"env.id {env_id}: action space not supported",
        expected="Discrete, MultiDiscrete, MultiBinary or a Box of floats",
        found=str(space),
        remedy="turn it into one of those with a wrapper: env.wrappers",
    )


def check_declared(env: object, what: str) -> None:
    """Whether an environment says what it shows and takes, which Python alone does not ask for.

    Args:
        env: with its wrappers, or as tensors.
        what: it is, for messages.

    Raises:
        EnvError: a space is missing, or something else.
    """
    for name in ("observation_space", "action_space"):
        found = getattr(env, name, None)
        if not isinstance(found, spaces.Space):
            kind = f"{type(found).__module__}.{type(found).__qualname__}"
            raise EnvError(
                f"{what}: has no {name}",
                expected="a space of gymnasium.spaces",
                found="nothing" if found is None else f"one {kind.removeprefix('builtins.')}",
                remedy=f"set self.{name} in __init__",
            )


def describe(space: spaces.Space[Any]) -> str:
    """A space in a few words, whatever its size."""
    if isinstance(space, spaces.Box):
        low, high = np.unique(space.low), np.unique(space.high)
        if len(low) == len(high) == 1:
            bounds = f" in [{low[0]:g}, {high[0]:g}]" if np.isfinite([*low, *high]).any() else ", unbounded"
        else:
            bounds = ", with various bounds"
        return f"Box {space.dtype} {space.shape}{bounds}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})" + (f" from {space.start}" if space.start else "")
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete {space.shape} of {sorted({int(n) for n in space.nvec.flatten()})}"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary {space.shape}"
    if isinstance(space, spaces.Dict):
        return "Dict of " + ", ".join(f"{key}: {describe(part)}" for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "Tuple of " + ", ".join(map(describe, space.spaces))
    if is_text(space):
        return "text"
    return f"{space!s:.100}"


def _floats(bounds: Any) -> tuple[float, ...]:  # noqa: ANN401 - numpy array
    return tuple(float(x) for x in np.asarray(bounds, dtype=np.float64).flatten())
