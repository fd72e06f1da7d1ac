"""Gymnasium environments stepped one after another in this process, with same-step autoreset.

Dimension letters: N environments.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Step
from erlcli.envs.config import EnvConfig
from erlcli.envs.single import make_env
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError


class GymnasiumVecEnv:
    """N single environments as one; see `VecEnv`.

    Every observation is copied at once (envs may reuse theirs) and checked for shape and finiteness, since a NaN that
    is found after the update has already been trained on.

    Args:
        config: the environment; `num_envs` of it.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self.envs = [make_env(config) for _ in range(config.num_envs)]
        env = self.envs[0]
        limit = config.max_episode_steps or (env.spec.max_episode_steps if env.spec is not None else None)
        self.spec = EnvSpec(
            obs_box(env.observation_space, config.id),
            action_space(env.action_space, config.id),
            config.num_envs,
            limit,
        )
        n, box = config.num_envs, self.spec.obs
        self._map = ActionMap(self.spec.action)
        self._obs = np.zeros((n, *box.shape), dtype=box.dtype)
        self._reward = np.zeros(n, dtype=np.float32)
        self._terminated = np.zeros(n, dtype=bool)
        self._truncated = np.zeros(n, dtype=bool)
        self._step = Step(  # the arrays above, as tensors
            torch.from_numpy(self._obs),
            torch.from_numpy(self._reward),
            torch.from_numpy(self._terminated),
            torch.from_numpy(self._truncated),
            torch.ones(n, dtype=torch.bool),
        )
        self._images = box.dtype == "uint8"
        self._seeds = [0] * n
        self._steps = [0] * n  # in the current episode, for messages

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv.reset`."""
        for i in range(len(self.envs)):
            self._seeds[i] = derive(seed, "env", first_index + i)
            self._store(i, self._reset_one(i, self._seeds[i]))
        return self._step.obs

    def step(self, action: Tensor) -> Step:
        """See `VecEnv.step`."""
        actions: NDArray[Any] = self._map(action).numpy()
        final: dict[int, Tensor] | None = None
        for i, env in enumerate(self.envs):
            try:
                obs, reward, terminated, truncated, _ = env.step(actions[i])
            except Exception as error:
                raise self._failure(i, "step", error) from error
            self._steps[i] += 1
            self._store(i, obs)
            try:
                self._reward[i] = reward
                self._terminated[i] = terminated
                self._truncated[i] = truncated
            except (TypeError, ValueError) as error:
                raise self._failure(i, "step", error, f"reward {reward!r} or flags of no scalar kind") from None
            if terminated or truncated:
                final = final or {}
                final[i] = torch.from_numpy(self._obs[i].copy())
                self._store(i, self._reset_one(i, None))
        if not np.isfinite(self._reward).all():
            i = int(np.flatnonzero(~np.isfinite(self._reward))[0])
            raise self._failure(i, "step", None, f"a reward of {self._reward[i]}")
        return self._step if final is None else replace(self._step, final_obs=final)

    def close(self) -> None:
        """See `VecEnv.close`."""
        for env in self.envs:
            env.close()
        self.envs = []

    def _reset_one(self, i: int, seed: int | None) -> Any:  # noqa: ANN401 - an observation
        self._steps[i] = 0
        try:
            obs, _ = self.envs[i].reset(seed=seed)
        except Exception as error:
            raise self._failure(i, "reset", error) from error
        return obs

    def _store(self, i: int, obs: Any) -> None:  # noqa: ANN401 - an observation
        row = self._obs[i]
        if np.shape(obs) != row.shape:
            raise self._failure(i, "step", None, f"an observation of shape {np.shape(obs)}, not {row.shape}")
        try:
            row[...] = obs
        except (TypeError, ValueError) as error:
            raise self._failure(i, "step", error, f"an observation that is no number: {obs!r:.100}") from None
        if not self._images and not np.isfinite(row).all():
            raise self._failure(i, "step", None, f"a NaN or infinite observation: {row!r:.200}")

    def _failure(self, i: int, call: str, error: Exception | None, what: str | None = None) -> EnvError:
        where = f"env {i} (seed {self._seeds[i]}, step {self._steps[i]} of its episode)"
        what = f"raised {type(error).__name__}: {error}" if what is None else f"returned {what}"
        return EnvError(
            f"env.id {self.config.id}: {call} of {where} {what}",
            expected="a transition with a finite observation and reward",
            remedy=f"erl envs check {self.config.id} looks for such faults",
            details={
                "env_index": i,
                "seed": self._seeds[i],
                "step": self._steps[i],
                "traceback": "".join(traceback.format_exception(error)) if error is not None else None,
            },
        )
