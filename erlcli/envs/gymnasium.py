"""Gymnasium environments stepped one after another in this process, with same-step autoreset.

Dimension letters: N environments.
"""

from __future__ import annotations

import shlex
import traceback
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Game, Step
from erlcli.envs.atari import GAME_OVER, GAME_REWARD
from erlcli.envs.config import EnvConfig
from erlcli.envs.masks import MaskFault, check_unused, mask_reader
from erlcli.envs.parts import BadObservation
from erlcli.envs.position import Position, PositionLog
from erlcli.envs.returned import copy_obs, scalar
from erlcli.envs.single import close_all, is_flattened, make_env
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError

FLOAT32_MAX = float(np.finfo(np.float32).max)


class GymnasiumVecEnv:
    """N single environments as one; see `VecEnv`.

    Every observation is copied at once (envs may reuse theirs) and checked for shape, kind and finiteness, since a NaN
    that is found after the update has already been trained on.

    Args:
        config: the environment; `num_envs` of it.
        position: told of every call into one of them.

    Raises:
        RecipeError: there is no such env, or its spaces are of no supported kind.
        EnvError: the env fails while it is made.
    """

    generator: torch.Generator | None = None  # every environment draws from its own

    def __init__(self, config: EnvConfig, position: PositionLog | None = None) -> None:
        self.config = config
        self._position = position or PositionLog()
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(config.num_envs):
                self.envs.append(make_env(config, training=True))
            env = self.envs[0]
            action = action_space(env.action_space, config.id)
            reader = mask_reader(env, action, config)
            limit = config.limit or (env.spec.max_episode_steps if env.spec is not None else None)
            self.spec = EnvSpec(
                obs_box(env.observation_space, config.id, config.frame_stack),
                action,
                config.num_envs,
                limit,
                mask=reader.width if reader is not None else 0,
                games=config.shows_games,
                flattened=is_flattened(env),
            )
        except BaseException:
            self.close()
            raise
        n, box = config.num_envs, self.spec.obs
        self._map = ActionMap(self.spec.action)
        self._obs = np.zeros((n, *box.shape), dtype=box.dtype)
        self._reward = np.zeros(n, dtype=np.float32)
        self._terminated = np.zeros(n, dtype=bool)
        self._truncated = np.zeros(n, dtype=bool)
        self._mask = np.zeros((n, self.spec.mask), dtype=bool)
        self._readers = [reader.of(env) for env in self.envs] if reader is not None else []
        self._step = Step(  # the arrays above, as tensors
            torch.from_numpy(self._obs),
            torch.from_numpy(self._reward),
            torch.from_numpy(self._terminated),
            torch.from_numpy(self._truncated),
            torch.ones(n, dtype=torch.bool),
            mask=torch.from_numpy(self._mask) if reader is not None else None,
            game=Game(torch.zeros(n), torch.zeros(n, dtype=torch.bool)) if self.spec.games else None,
        )
        self._rows = [self._obs[i, ...] for i in range(n)]  # views, also where an observation is one number
        self._first = 0
        self._seeds = [0] * n
        self._episodes = [0] * n  # since the seed was set, for messages
        self._steps = [0] * n  # in the current episode, for messages

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv.reset`."""
        self._first = first_index
        for i in range(len(self.envs)):
            self._seeds[i] = derive(seed, "env", first_index + i)
            self._episodes[i] = -1
            self._reset_one(i, self._seeds[i])
        return self._step.obs

    def first_mask(self) -> Tensor | None:
        """See `VecEnv.first_mask`."""
        return self._step.mask

    def step(self, action: Tensor) -> Step:
        """See `VecEnv.step`. A step that both terminates and truncates counts as terminated."""
        actions: NDArray[Any] = self._map(action).numpy()
        final: dict[int, Tensor] | None = None
        for i, env in enumerate(self.envs):
            self._steps[i] += 1
            self._note(i, "step")
            try:
                result = env.step(actions[i])
            except Exception as error:
                raise self._failure(i, "step", _raised(error), error) from error
            if not isinstance(result, tuple) or len(result) != 5:
                raise self._failure(
                    i, "step", f"returned {_kind(result)}, not (obs, reward, terminated, truncated, info)"
                )
            obs, reward, *flags = result
            self._store(i, obs, "step")
            value = scalar(reward)
            if value is None or not abs(value) <= FLOAT32_MAX:  # so that NaN too is caught
                raise self._failure(i, "step", f"returned a reward of {reward!r:.100}, no finite number")
            terminated, truncated = scalar(flags[0]), scalar(flags[1])
            if terminated is None or truncated is None:
                raise self._failure(i, "step", f"returned flags {flags[0]!r:.50} and {flags[1]!r:.50}, no booleans")
            self._reward[i] = value
            if self._step.game is not None:
                self._note_game(i, flags[2], self._step.game)
            self._terminated[i] = terminated
            self._truncated[i] = truncated and not terminated
            if terminated or truncated:
                final = final or {}
                final[i] = torch.from_numpy(self._obs[i, ...].copy())
                self._reset_one(i, None)
            elif self._readers:
                self._read_mask(i, flags[2], "step")
        return self._step if final is None else replace(self._step, final_obs=final)

    def verify(self) -> None:
        """See `VecEnv.verify`; every step has looked."""

    def close(self) -> None:
        """See `VecEnv.close`."""
        envs, self.envs = self.envs, []
        close_all(envs, self.config.id)

    def _reset_one(self, i: int, seed: int | None) -> None:
        self._steps[i] = 0
        self._episodes[i] += 1
        self._note(i, "reset")
        try:
            result = self.envs[i].reset(seed=seed)
        except Exception as error:
            raise self._failure(i, "reset", _raised(error), error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._failure(i, "reset", f"returned {_kind(result)}, not (obs, info)")
        self._store(i, result[0], "reset")
        if self._readers:
            self._read_mask(i, result[1], "reset")
        elif seed is not None:
            check_unused(result[1], self.spec.action, self.config)

    def _note_game(self, i: int, info: Any, game: Game) -> None:  # noqa: ANN401 - whatever the env returned
        try:
            game.reward[i], game.over[i] = info[GAME_REWARD], info[GAME_OVER]
        except (LookupError, TypeError):
            raise self._failure(
                i, "step", f"has lost {GAME_REWARD} and {GAME_OVER} from info: a wrapper of env.wrappers drops them"
            ) from None

    def _read_mask(self, i: int, info: Any, call: str) -> None:  # noqa: ANN401 - whatever the env returned
        try:
            self._readers[i](info, self._mask[i])
        except MaskFault as fault:
            raise self._failure(i, call, str(fault)) from None
        except Exception as error:
            raise self._failure(i, call, f"was asked for its mask, which {_raised(error)}", error) from error

    def _note(self, i: int, call: str) -> None:
        self._position.note(call, self._first + i, self._seeds[i], self._episodes[i], self._steps[i])

    def _store(self, i: int, obs: Any, call: str) -> None:  # noqa: ANN401 - an observation
        wrong = copy_obs(obs, self._rows[i])
        if wrong is not None:
            raise self._failure(i, call, f"returned {wrong}")

    def _failure(self, i: int, call: str, what: str, error: Exception | None = None) -> EnvError:
        where = Position(call, self._first + i, self._seeds[i], self._episodes[i], self._steps[i])
        return EnvError(
            f"env.id {self.config.id}: {where} {what}",
            expected="a transition with a finite observation and reward",
            remedy=f"erl envs check {shlex.quote(self.config.id)} looks for such faults",
            details={
                **where.facts(),
                "traceback": "".join(traceback.format_exception(error)) if error is not None else None,
            },
        )


def _raised(error: Exception) -> str:
    if isinstance(error, BadObservation):
        return f"returned {error}"
    return f"raised {type(error).__name__}: {error}"


def _kind(result: Any) -> str:  # noqa: ANN401 - whatever an env returns
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
