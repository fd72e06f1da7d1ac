"""Envpool: C++ environments on a thread pool.

Envpool resets in the step after the end of an episode: that step ignores its action and yields the first observation.
Such steps are marked not `valid`. On the other side obs[t + 1] is always the true last observation of an episode that
ended at t, so no final observations are needed.

One thing can't be had from it: an episode that terminates in the very step of its time limit counts as truncated there
(in gymnasium as terminated), so its last value is bootstrapped.

Dimension letters: N environments.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.cpus import usable_cpus
from erlcli.core.seeding import derive
from erlcli.core.types import ActionSpace, Box, EnvSpec, Game, Step
from erlcli.envs import envpool_import
from erlcli.envs.config import AtariConfig, EnvConfig, envpool_refusal
from erlcli.envs.envpool_exchange import Exchange
from erlcli.envs.position import PositionLog
from erlcli.envs.single import make_env
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError, RecipeError

envpool: Any = None
missing = ""
try:
    envpool = envpool_import.load()
except ImportError as error:  # the extra `fast` is optional; make_vec_env's callers get a RecipeError below
    missing = str(error)


_GAME = ("info:reward", "info:terminated")  # a game's own, where training sees other rewards and ends


class EnvpoolVecEnv:
    """N environments of envpool; see `VecEnv`.

    Args:
        config: the environment; `num_envs` of it on `threads` threads.
        position: told of every call into the pool.

    Raises:
        RecipeError: envpool is not installed, has no such id, or can't do what the config asks for.
    """

    generator: torch.Generator | None = None  # every environment draws from its own

    def __init__(self, config: EnvConfig, position: PositionLog | None = None) -> None:
        self.config = config
        self._position = position or PositionLog()
        self._check(config)
        obs, action, limit = _spaces(config)
        self.spec = EnvSpec(obs, action, config.num_envs, config.limit or limit, games=config.shows_games)
        self._map = ActionMap(self.spec.action)
        self._pool: Exchange | None = None
        self._seed = 0
        self._ended, self._terminated, self._truncated, self._valid = np.zeros((4, config.num_envs), dtype=bool)
        self._flags = (
            torch.from_numpy(self._terminated),
            torch.from_numpy(self._truncated),
            torch.from_numpy(self._valid),
        )
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
        if not envpool_import.knows(envpool, config.envpool_id):
            raise RecipeError(
                f"env.id {config.id}: envpool has no such environment",
                found=config.id,
                remedy='env.backend = "gymnasium", or one of envpool.list_all_envs()',
            )

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv.reset`. A pool can't be seeded again, so a new one is made (milliseconds)."""
        options: dict[str, Any] = {} if self.config.atari is None else _atari(self.config, self.config.atari)
        if self.config.limit is not None:
            options["max_episode_steps"] = self.config.limit
        self._seed = derive(seed, "envpool", first_index)
        self._position.note("reset", None, self._seed, None, 0)
        self._pool = None  # the threads of the old one go before new ones come
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool = envpool.make_gymnasium(
                self.config.envpool_id,
                num_envs=self.config.num_envs,
                seed=self._seed,
                num_threads=min(self.config.threads or usable_cpus(), self.config.num_envs),
                **options,
            )
        self._pool = Exchange(pool, _GAME if self.spec.games else ())
        self._ended[:] = False
        self._steps = 0
        return torch.from_numpy(self._checked(self._pool.reset()))

    def first_mask(self) -> Tensor | None:
        """See `VecEnv.first_mask`; none of the ids that envpool may step has masks."""
        return None

    def step(self, action: Tensor) -> Step:
        """See `VecEnv.step`."""
        if self._pool is None:
            raise RuntimeError("reset() comes before step()")
        self._steps += 1
        self._position.note("step", None, self._seed, None, self._steps)
        self._pool.send(self._map(action).numpy())
        np.logical_not(self._ended, out=self._valid)
        obs, reward, done, truncated, *game = self._pool.receive()
        np.logical_and(done, self._valid, out=self._ended)
        np.logical_and(truncated, self._ended, out=self._truncated)
        np.greater(self._ended, self._truncated, out=self._terminated)
        reward = reward.astype(np.float32, copy=False)
        if not _finite(reward):
            i = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise self._failure(i, f"a reward of {reward[i]}")
        return Step(
            torch.from_numpy(self._checked(obs)),
            torch.from_numpy(reward),
            *self._flags,
            game=self._game(truncated, *game) if game else None,
        )

    def verify(self) -> None:
        """See `VecEnv.verify`; every step has looked."""

    def close(self) -> None:
        """See `VecEnv.close`."""
        self._pool = None

    def _checked(self, obs: NDArray[Any]) -> NDArray[Any]:
        obs = obs.astype(self.spec.obs.dtype, copy=False)
        if obs.dtype == np.uint8:
            return obs.reshape(len(obs), *self.spec.obs.shape)  # a single frame has an axis of 1 here
        if not _finite(obs):
            bad = np.flatnonzero(~np.isfinite(obs.reshape(len(obs), -1)).all(axis=1))
            raise self._failure(int(bad[0]), "a NaN or infinite observation")
        return obs

    def _game(self, truncated: NDArray[np.bool_], reward: NDArray[Any], over: NDArray[Any]) -> Game:
        ends = ((over != 0) | truncated) & self._valid
        return Game(torch.from_numpy(reward.astype(np.float32)), torch.from_numpy(ends))

    def _failure(self, i: int, what: str) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: env {i} of the pool (seed {self._seed}, vector step {self._steps}) "
            f"returned {what}",
            expected="finite observations and rewards",
            remedy='env.backend = "gymnasium" tells whether it is the env or envpool',
            details={"env_index": i, "seed": self._seed, "step": self._steps, "traceback": None},
        )


def _finite(numbers: NDArray[np.float32]) -> bool:
    """Whether all are; a sum of finite numbers may overflow, which takes another look."""
    return math.isfinite(numbers.sum()) or bool(np.isfinite(numbers).all())


def _atari(config: EnvConfig, atari: AtariConfig) -> dict[str, Any]:
    """The `[env.atari]` section in envpool's words."""
    return {
        "stack_num": config.frame_stack,
        "frame_skip": atari.frame_skip,
        "noop_max": atari.noop_max,
        "img_height": atari.size,
        "img_width": atari.size,
        "use_fire_reset": atari.fire,
        "episodic_life": atari.life_ends_episode,
        "reward_clip": atari.clip_reward,
        "repeat_action_probability": atari.repeat_action_probability,
    }


def _spaces(config: EnvConfig) -> tuple[Box, ActionSpace, int | None]:
    """Spaces and time limit as gymnasium has them, since envpool leaves some bounds out.

    Raises:
        RecipeError: they are of no supported kind, or gymnasium, which evaluates, has no such environment.
    """
    if config.atari is not None:
        env = make_env(replace(config, backend="gymnasium"))
        env.close()
        seen = obs_box(env.observation_space, config.id, config.frame_stack)
        return seen, action_space(env.action_space, config.id), None
    if config.id not in gymnasium.registry:
        raise RecipeError(
            f"env.id {config.id}: envpool alone has it",
            expected="an id that gymnasium has too, since evaluation runs there",
            found=config.id,
            remedy="erl envs lists what both have",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = envpool.make_spec(config.id)
    registered = gymnasium.spec(config.id)
    env = registered.make(disable_env_checker=True)
    obs, action = env.observation_space, env.action_space
    env.close()
    if pool.gymnasium_observation_space.shape != obs.shape or type(pool.gymnasium_action_space) is not type(action):
        raise RecipeError(
            f"env.id {config.id}: not the same environment in envpool and gymnasium",
            expected=f"{obs}, {action}",
            found=f"{pool.gymnasium_observation_space}, {pool.gymnasium_action_space}",
            remedy='env.backend = "gymnasium"',
        )
    return obs_box(obs, config.id), action_space(action, config.id), registered.max_episode_steps
