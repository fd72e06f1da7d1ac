"""Classic control without velocities: tasks that can't be done on the newest observation alone.

They are registered as soon as environments are made or listed: `CartPoleNoVel-v1` sees cart position and pole angle,
`PendulumNoVel-v1` sees cosine and sine of the angle. Everything else is that of `CartPole-v1` and `Pendulum-v1`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Env = gymnasium.Env[Any, Any]

ENTRIES = {"CartPoleNoVel-v1": (0, 2), "PendulumNoVel-v1": (0, 1)}  # of an observation, that are seen


class Chosen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Some entries of flat observations.

    Args:
        env: with a one-dimensional box of observations.
        entries: that are kept, in this order.
    """

    def __init__(self, env: Env, entries: tuple[int, ...]) -> None:
        super().__init__(env)
        self._entries = list(entries)
        box: Any = env.observation_space
        low, high = box.low[self._entries], box.high[self._entries]
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:  # noqa: ANN401 - gymnasium's own signature
        """What is kept."""
        return observation[self._entries]


def cart_pole(**kwargs: Any) -> Env:  # noqa: ANN401 - whatever CartPole takes
    """CartPole without the velocities of cart and pole."""
    from gymnasium.envs.classic_control import CartPoleEnv

    return Chosen(CartPoleEnv(**kwargs), ENTRIES["CartPoleNoVel-v1"])


def pendulum(**kwargs: Any) -> Env:  # noqa: ANN401 - whatever Pendulum takes
    """Pendulum without its angular velocity."""
    from gymnasium.envs.classic_control import PendulumEnv

    return Chosen(PendulumEnv(**kwargs), ENTRIES["PendulumNoVel-v1"])


def register() -> None:
    """Make the ids known to gymnasium; twice is fine, and ids that somebody else has registered stay."""
    for name, like, make in (
        ("CartPoleNoVel-v1", "CartPole-v1", "cart_pole"),
        ("PendulumNoVel-v1", "Pendulum-v1", "pendulum"),
    ):
        if name not in gymnasium.registry:
            spec = gymnasium.spec(like)
            gymnasium.register(
                name,
                entry_point=f"{__name__}:{make}",
                max_episode_steps=spec.max_episode_steps,
                reward_threshold=spec.reward_threshold,
            )
