"""One copy of a `TorchEnv` as a gymnasium environment, for all that plays one episode at a time.

Evaluation, `erl envs check`, videos and play in a terminal use it like any other env. Its time limit is gymnasium's
`TimeLimit` around it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from erlcli.envs.torch_env import State, TorchEnv
from erlcli.envs.torch_find import construct, import_class


class SingleTorchEnv(gymnasium.Env[Any, Any]):
    """See the module's docstring. Episodes depend on the seed of `reset` alone.

    Args:
        env: the class, or `package.module:Class`, so that gymnasium can register it.
        render_mode: `rgb_array`, where the class draws; None for no pictures.
        kwargs: of the class.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - gymnasium asks the class for them

    def __init__(self, env: type[TorchEnv] | str, render_mode: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        made = import_class(env) if isinstance(env, str) else env
        self.metadata = {"render_modes": ["rgb_array"] if made.draws() else [], "render_fps": made.render_fps}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise gymnasium.error.Error(f"{made.__name__} knows no render mode {render_mode}")
        self.torch_env = construct(made, 1, torch.device("cpu"), kwargs, made.__name__)
        self.render_mode = render_mode
        self.observation_space, self.action_space = self.torch_env.observation_space, self.torch_env.action_space
        self.spec = EnvSpec(f"{made.__name__}-v0", max_episode_steps=made.max_episode_steps)
        self._state: State = ()

    @torch.no_grad()
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if seed is not None:
            self.torch_env.generator.manual_seed(seed)
        self._state = self.torch_env.initial()
        return self._obs(), {}

    @torch.no_grad()
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - of any space
        """See `gymnasium.Env.step`."""
        batch = torch.from_numpy(np.asarray(action)[None])
        self._state, reward, terminated = self.torch_env.dynamics(self._state, batch)
        return self._obs(), float(reward), bool(terminated), False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """See `gymnasium.Env.render`."""
        return self.torch_env.render(self._state) if self.render_mode is not None else None

    def _obs(self) -> NDArray[Any]:
        obs: NDArray[Any] = self.torch_env.observe(self._state)[0].numpy().copy()  # it may be a view of the state
        return obs
