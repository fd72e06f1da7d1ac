"""Masks of legal actions, wherever a gymnasium environment keeps them.

They are found by themselves as a key `action_mask` of a Dict observation (which is taken out of it), or as a method
`action_masks()` of the env or of a wrapper; with `env.action_masks = "info"` they are `info["action_mask"]` of `reset`
and `step`. A mask has a number for each choice, and anything but 0 is legal; MultiDiscrete actions have one for each
choice of each dimension, flat or as a sequence of one array a dimension.

Dimension letters: C choices, of all dimensions one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from erlcli.core.types import ActionSpace, Box, Discrete
from erlcli.envs.config import EnvConfig
from erlcli.errors import RecipeError

KEY, METHOD = "action_mask", "action_masks"
Env = gymnasium.Env[Any, Any]


class MaskFault(Exception):  # noqa: N818 - the caller says where, and makes an EnvError of it
    """A mask that is none, or that leaves nothing to do."""


class MaskTakenOut(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the mask out of Dict observations.

    Args:
        env: whose observation space is a Dict with `action_mask`; what is left of it is the new one.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        whole: Any = env.observation_space
        parts = {key: part for key, part in whole.spaces.items() if key != KEY}
        self.observation_space = spaces.Dict(parts)
        self._mask: Any = None

    @staticmethod
    def fits(space: spaces.Space[Any], action: spaces.Space[Any]) -> bool:
        """Whether there is a mask of choices beside something else; continuous actions have none to mask."""
        if isinstance(action, spaces.Box):
            return False
        return isinstance(space, spaces.Dict) and KEY in space.spaces and len(space.spaces) > 1

    def action_masks(self) -> Any:  # noqa: ANN401 - whatever the env has put there
        """The mask of the newest observation."""
        return self._mask

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - gymnasium's own signature
        """See `gymnasium.Env.reset`."""
        obs, info = self.env.reset(**options)
        return self._without(obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401
        """See `gymnasium.Env.step`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._without(obs), reward, terminated, truncated, info

    def _without(self, obs: dict[str, Any]) -> dict[str, Any]:
        self._mask = obs[KEY]
        return {key: part for key, part in obs.items() if key != KEY}


class MaskReader:
    """Reads the masks of one environment.

    Args:
        env: with its wrappers.
        action: its action space, as `spaces.action_space` has it; no Box.
        from_info: whether `info` has the masks, not a method.

    Attributes:
        width: C.
    """

    def __init__(self, env: Env, action: ActionSpace, from_info: bool) -> None:
        if isinstance(action, Box):
            raise TypeError("continuous actions have no masks")
        nvec = (action.n,) if isinstance(action, Discrete) else action.nvec
        self.width = sum(nvec)
        self._action, self._from_info = action, from_info
        self._starts = np.cumsum([0, *nvec[:-1]])
        self._method: Callable[[], Any] | None = None if from_info else env.get_wrapper_attr(METHOD)

    def of(self, env: Env) -> MaskReader:
        """The same for another instance of the environment."""
        return MaskReader(env, self._action, self._from_info)

    def __call__(self, info: Any, into: NDArray[np.bool_]) -> None:  # noqa: ANN401 - whatever the env returned
        """The mask that belongs to the newest observation.

        Args:
            info: that came with it.
            into: (C,), written.

        Raises:
            MaskFault: it is missing, of another size, or leaves no choice in some dimension.
            Exception: the env's method raised; of any type.
        """
        if self._method is not None:
            mask, where = self._method(), f"{METHOD}()"
        else:
            mask, where = info.get(KEY) if isinstance(info, dict) else None, f'info["{KEY}"]'
        try:
            parts = [np.asarray(part).ravel() for part in mask] if isinstance(mask, (tuple, list)) else [mask]
            array = np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0]).ravel()
        except ValueError:
            array = np.zeros(0)
        if array.size != self.width or array.dtype.kind not in "biuf":
            raise MaskFault(f"gave {where} = {mask!r:.80}, no mask over {self.width} choices")
        np.not_equal(array, 0, out=into)
        if not np.logical_or.reduceat(into, self._starts).all():
            raise MaskFault(f"left no legal action: {where} = {mask!r:.80}")


def mask_reader(env: Env, action: ActionSpace, config: EnvConfig) -> MaskReader | None:
    """What reads the masks of an env; None where it has none, or they are not wanted.

    Raises:
        RecipeError: masks are expected of continuous actions.
    """
    wanted = config.action_masks
    if isinstance(action, Box):
        if wanted == "info":
            raise RecipeError(
                'env.action_masks: "info", but actions are continuous',
                expected="Discrete, MultiDiscrete or MultiBinary actions",
                found=str(env.action_space),
                remedy="leave env.action_masks out",
            )
        return None
    if wanted == "info":
        return MaskReader(env, action, from_info=True)
    return MaskReader(env, action, from_info=False) if wanted == "auto" and env.has_wrapper_attr(METHOD) else None


def check_unused(info: Any, action: ActionSpace, config: EnvConfig) -> None:  # noqa: ANN401 - what reset returned
    """Called after a reset of an env without a reader: masks are never ignored in silence.

    Whether `info` has masks shows only there, too late to build a policy for them.

    Raises:
        RecipeError: it has some.
    """
    if config.action_masks == "auto" and isinstance(info, dict) and KEY in info and not isinstance(action, Box):
        raise RecipeError(
            f'env.id {config.id}: gives masks of legal actions in info["{KEY}"]',
            expected='env.action_masks = "info" to obey them, or "off" to take all actions for legal',
            found='env.action_masks = "auto", which looks for a method and a part of the observation',
            remedy="set one of the two",
        )
