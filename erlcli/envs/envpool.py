"""Envpool: C++ environments on a thread pool.

Envpool resets in the step after the end of an episode: that step ignores its action and yields the first observation.
Such steps are marked not `valid`. On the other side obs[t + 1] is always the true last observation of an episode that
ended at t, so no final observations are needed.

Dimension letters: N environments.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Step
from erlcli.envs.config import EnvConfig, envpool_refusal
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError, RecipeError

envpool: Any
try:
    import envpool
except ImportError:  # the extra `fast` is optional; make_vec_env's callers get a RecipeError below
    envpool = None


class EnvpoolVecEnv:
    """N environments of envpool; see `VecEnv`.

    Args:
        config: the environment; `num_envs` of it on `threads` threads.

    Raises:
        RecipeError: envpool is not installed, has no such id, or can't do what the config asks for.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self._check(config)
        # Spaces as gymnasium has them: envpool leaves some bounds out.
        registered = gymnasium.spec(config.id) if config.id in gymnasium.registry else None
        if registered is not None:
            env = registered.make(disable_env_checker=True)
            spaces = (env.observation_space, env.action_space)
            limit = registered.max_episode_steps
            env.close()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pool_spec = envpool.make_spec(config.id)
                spaces = (pool_spec.gymnasium_observation_space, pool_spec.gymnasium_action_space)
            limit = pool_spec.config.max_episode_steps
        self.spec = EnvSpec(
            obs_box(spaces[0], config.id),
            action_space(spaces[1], config.id),
            config.num_envs,
            config.max_episode_steps or limit,
        )
        self._map = ActionMap(self.spec.action)
        self._pool: Any = None
        self._seed = 0
        self._ended = np.zeros(config.num_envs, dtype=bool)
        self._steps = 0

    @staticmethod
    def _check(config: EnvConfig) -> None:
        if envpool is None:
            raise RecipeError(
                "env.backend: envpool is not installed",
                expected="an installed backend",
                found="envpool",
                remedy="pip install 'erlcli[fast]' (Linux), or env.backend = \"gymnasium\"",
            )
        if refusal := envpool_refusal(config):
            raise RecipeError(f"env.backend: envpool can't do this: {refusal}", remedy='env.backend = "gymnasium"')
        if config.id not in envpool.list_all_envs():
            raise RecipeError(
                f"env.id {config.id}: envpool has no such environment",
                found=config.id,
                remedy='env.backend = "gymnasium", or one of envpool.list_all_envs()',
            )

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv.reset`. A pool can't be seeded again, so a new one is made (milliseconds)."""
        options: dict[str, Any] = {}
        if self.config.max_episode_steps is not None:
            options["max_episode_steps"] = self.config.max_episode_steps
        self._seed = derive(seed, "envpool", first_index)
        self._pool = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = envpool.make_gymnasium(
                self.config.id,
                num_envs=self.config.num_envs,
                seed=self._seed,
                num_threads=self.config.threads or os.cpu_count() or 1,
                **options,
            )
        self._ended[:] = False
        self._steps = 0
        obs, _ = self._pool.reset()
        return torch.from_numpy(self._checked(obs))

    def step(self, action: Tensor) -> Step:
        """See `VecEnv.step`."""
        obs, reward, terminated, truncated, _ = self._pool.step(self._map(action).numpy())
        self._steps += 1
        valid = ~self._ended
        self._ended = (terminated | truncated) & valid
        return Step(
            torch.from_numpy(self._checked(obs)),
            torch.from_numpy(reward.astype(np.float32, copy=False)),
            torch.from_numpy(terminated & valid),
            torch.from_numpy(truncated & valid & ~terminated),
            torch.from_numpy(valid),
        )

    def close(self) -> None:
        """See `VecEnv.close`."""
        self._pool = None

    def _checked(self, obs: NDArray[Any]) -> NDArray[Any]:
        obs = obs.astype(self.spec.obs.dtype, copy=False)
        if not np.isfinite(obs.sum()):
            i = int(np.flatnonzero(~np.isfinite(obs.reshape(len(obs), -1)).all(axis=1))[0])
            raise EnvError(
                f"env.id {self.config.id}: env {i} of the pool (seed {self._seed}, vector step {self._steps}) "
                "returned a NaN or infinite observation",
                expected="finite observations",
                details={"env_index": i, "seed": self._seed, "step": self._steps},
            )
        return obs
