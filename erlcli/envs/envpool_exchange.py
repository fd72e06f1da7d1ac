"""What goes into a pool of envpool and comes out, by the calls that its own `step` and `reset` make.

Those build trees of dictionaries and compare the pool's whole configuration at each step, which takes as long as eight
CartPoles take to step. The calls beneath are the ones that envpool gives JAX: lists of arrays in the order of the keys.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erlcli.errors import RecipeError

ENVS = "env_id"  # which environments the rows of an action are for: all, always
PLAYERS = "players.env_id"  # the same, where each has one player


class Exchange:
    """A pool that is stepped as a whole.

    Dimension letters: N environments.

    Args:
        pool: made by `envpool.make_gymnasium`.
        extra: keys that are wanted beside those that every environment has.

    Raises:
        RecipeError: the environment speaks of something else than one observation, one action and one player.
    """

    def __init__(self, pool: Any, extra: tuple[str, ...] = ()) -> None:  # noqa: ANN401 - a class made at run time
        self._pool = pool
        self._ids = np.arange(len(pool), dtype=np.int32)
        inputs, outputs = list(pool._action_keys), list(pool._state_keys)
        if inputs[:-1] != [ENVS, PLAYERS] or "obs" not in outputs:
            raise RecipeError(
                "env.backend: envpool's environment is of a kind that erl does not know",
                expected="one observation, one action and one player",
                found=f"{', '.join(outputs)}; {', '.join(inputs)}",
                remedy='env.backend = "gymnasium"',
            )
        self._action_type = np.dtype(pool.spec.action_array_spec[inputs[-1]].dtype)
        self._wanted = itemgetter(*(outputs.index(key) for key in ("obs", "reward", "done", "trunc", *extra)))

    def reset(self) -> NDArray[Any]:
        """Start all environments: (N, *obs)."""
        self._pool._reset(self._ids)
        obs: NDArray[Any] = self.receive()[0]
        return obs

    def send(self, action: NDArray[Any]) -> None:
        """Have all environments step with (N, *action), in the env's units, on the pool's threads."""
        action = action.astype(self._action_type, order="C", copy=False)
        self._pool._send([self._ids, self._ids, action])

    def receive(self) -> tuple[NDArray[Any], ...]:
        """What came of it, when all have: (N, *obs), and reward, done, truncated and what else is wanted, (N,) each.

        Done is also what was truncated. The arrays are the caller's.
        """
        out: tuple[NDArray[Any], ...] = self._wanted(self._pool._recv())
        return out
