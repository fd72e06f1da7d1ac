"""Envpool: C++ environments on a thread pool.

Envpool resets in the step after the end of an episode: that step ignores its action and yields the first observation.
Such steps are marked not `valid`. On the other side obs[t + 1] is always the true last observation of an episode that
ended at t, so no final observations are needed.

One thing can't be had from it: an episode that terminates in the very step of its time limit counts as truncated there
(in gymnasium as terminated), so its last value is bootstrapped.

Dimension letters: N environments.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.seeding import derive
from erlcli.core.types import ActionSpace, Box, EnvSpec, Step
from erlcli.envs.config import EnvConfig, envpool_refusal
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError, RecipeError

envpool: Any = None
missing = ""
try:
    import envpool
except ImportError as error:  # the extra `fast` is optional; make_vec_env's callers get a RecipeError below
    missing = str(error)


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
        obs, action, limit = _spaces(config)
        self.spec = EnvSpec(obs, action, config.num_envs, config.max_episode_steps or limit)
        self._map = ActionMap(self.spec.action)
        self._pool: Any = None
        self._seed = 0
        self._ended = np.zeros(config.num_envs, dtype=bool)
        self._steps = 0

    @staticmethod
    def _check(config: EnvConfig) -> None:
        if envpool is None:
            raise RecipeError(
                "env.backend: envpool can't be imported",
                expected="an installed backend",
                found=missing,
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
        self._pool = None  # the threads of the old one go before new ones come
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = envpool.make_gymnasium(
                self.config.id,
                num_envs=self.config.num_envs,
                seed=self._seed,
                num_threads=min(self.config.threads or usable_cpus(), self.config.num_envs),
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
        if not np.isfinite(reward).all():
            i = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise self._failure(i, f"a reward of {reward[i]}")
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
        if not np.isfinite(obs.sum()):  # a sum of finite numbers may overflow: look again before blaming an env
            bad = np.flatnonzero(~np.isfinite(obs.reshape(len(obs), -1)).all(axis=1))
            if len(bad):
                raise self._failure(int(bad[0]), "a NaN or infinite observation")
        return obs

    def _failure(self, i: int, what: str) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: env {i} of the pool (seed {self._seed}, vector step {self._steps}) "
            f"returned {what}",
            expected="finite observations and rewards",
            remedy='env.backend = "gymnasium" tells whether it is the env or envpool',
            details={"env_index": i, "seed": self._seed, "step": self._steps, "traceback": None},
        )


def usable_cpus() -> int:
    """Logical CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spaces(config: EnvConfig) -> tuple[Box, ActionSpace, int | None]:
    """Spaces and time limit; as gymnasium has them where it can, since envpool leaves some bounds out.

    Raises:
        RecipeError: they are of no supported kind, or not those that evaluation will meet in gymnasium.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = envpool.make_spec(config.id)
    obs_space, action = pool.gymnasium_observation_space, pool.gymnasium_action_space
    limit = pool.config.max_episode_steps
    if not isinstance(obs_space, spaces.Box):
        raise RecipeError(
            f"env.id {config.id}: envpool's observations are not supported",
            expected="a Box",
            found=str(obs_space),
            remedy='env.backend = "gymnasium", which flattens them',
        )
    if config.id in gymnasium.registry:
        registered = gymnasium.spec(config.id)
        env = registered.make(disable_env_checker=True)
        if obs_space.shape != env.observation_space.shape or type(action) is not type(env.action_space):
            raise RecipeError(
                f"env.id {config.id}: not the same environment in envpool and gymnasium",
                expected=f"{env.observation_space}, {env.action_space}",
                found=f"{obs_space}, {action}",
                remedy='env.backend = "gymnasium"',
            )
        obs_space, action, limit = env.observation_space, env.action_space, registered.max_episode_steps
        env.close()
    unlimited = limit is None or limit >= 2**31 - 1
    return obs_box(obs_space, config.id), action_space(action, config.id), None if unlimited else int(limit)
