"""CartPole, MountainCarContinuous and Pendulum as tensors: the spaces, constants, dynamics, rewards and time limits of
gymnasium's.

States are of the type that gymnasium computes with, float64 for CartPole and Pendulum: a pole that is not balanced
doubles any rounding several times a second. Observations are float32.

Dimension letters: N copies.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.envs.classic_control import CartPoleEnv, Continuous_MountainCarEnv, PendulumEnv
from numpy.typing import NDArray
from torch import Tensor

from erlcli.envs.torch_env import State, TorchEnv


class CartPole(TorchEnv):
    """A pole on a cart that is pushed left (0) or right (1): 1 a step until pole or cart is too far off.

    Args:
        num_envs: N.
        device: where all tensors are.
    """

    max_episode_steps: ClassVar[int | None] = 500
    render_fps: ClassVar[int] = 50

    def __init__(self, num_envs: int, device: torch.device) -> None:
        super().__init__(num_envs, device)
        self.original = CartPoleEnv(render_mode="rgb_array")
        self.observation_space, self.action_space = self.original.observation_space, self.original.action_space

    def initial(self) -> State:
        """All four numbers uniform in [-0.05, 0.05)."""
        return (self.uniform(-0.05, 0.05, 4).to(torch.float64),)

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The equations of Barto, Sutton and Anderson (1983) as corrected by Florian (2007), by Euler's method."""
        known = self.original
        _, speed, angle, spin = state[0].unbind(1)
        force = known.force_mag * (2 * action - 1)
        sin, cos = angle.sin(), angle.cos()
        pull = (force + known.polemass_length * spin.square() * sin) / known.total_mass
        turn = (known.gravity * sin - cos * pull) / (
            known.length * (4.0 / 3.0 - known.masspole * cos.square() / known.total_mass)
        )
        push = pull - known.polemass_length * turn * cos / known.total_mass
        rates = torch.stack([speed, push, spin, turn], dim=1)
        following = state[0] + known.tau * rates
        lost = (following[:, 0].abs() > known.x_threshold) | (following[:, 2].abs() > known.theta_threshold_radians)
        return (following,), torch.ones(self.num_envs, device=self.device), lost

    def observe(self, state: State) -> Tensor:
        """Position and speed of the cart, angle and angular speed of the pole."""
        return state[0].to(torch.float32)

    def render(self, state: State) -> NDArray[np.uint8]:
        """Gymnasium's picture."""
        return _picture(self.original, state[0][0].cpu().numpy())


class MountainCarContinuous(TorchEnv):
    """A car in a valley whose motor is too weak for the hill: it has to swing up. 100 at the top, less what it burns.

    Args:
        num_envs: N.
        device: where all tensors are.
    """

    max_episode_steps: ClassVar[int | None] = 999

    def __init__(self, num_envs: int, device: torch.device) -> None:
        super().__init__(num_envs, device)
        self.original = Continuous_MountainCarEnv(render_mode="rgb_array")
        self.observation_space, self.action_space = self.original.observation_space, self.original.action_space

    def initial(self) -> State:
        """At rest, somewhere in [-0.6, -0.4)."""
        position = self.uniform(-0.6, -0.4)
        return position, torch.zeros_like(position)

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The valley is sin(3 x); the wall at its left end takes all speed."""
        known = self.original
        position, speed = state
        force = action[:, 0].clamp(known.min_action, known.max_action)
        speed = speed + force * known.power - 0.0025 * (3.0 * position).cos()
        speed = speed.clamp(-known.max_speed, known.max_speed)
        position = (position + speed).clamp(known.min_position, known.max_position)
        speed = speed.masked_fill((position == known.min_position) & (speed < 0.0), 0.0)
        there = (position >= known.goal_position) & (speed >= known.goal_velocity)
        return (position, speed), 100.0 * there - 0.1 * action[:, 0].square(), there

    def observe(self, state: State) -> Tensor:
        """Position and speed."""
        return torch.stack(state, dim=1)

    def render(self, state: State) -> NDArray[np.uint8]:
        """Gymnasium's picture."""
        return _picture(self.original, np.array([float(part[0]) for part in state]))


class Pendulum(TorchEnv):
    """A pendulum that is to be swung up and held there by a torque within [-2, 2].

    Args:
        num_envs: N.
        device: where all tensors are.
        g: gravity.
    """

    max_episode_steps: ClassVar[int | None] = 200

    def __init__(self, num_envs: int, device: torch.device, g: float = 10.0) -> None:
        super().__init__(num_envs, device)
        self.original = PendulumEnv(render_mode="rgb_array", g=g)
        self.observation_space, self.action_space = self.original.observation_space, self.original.action_space

    def initial(self) -> State:
        """Any angle, and a speed within [-1, 1)."""
        draws = self.uniform(-1.0, 1.0, 2).to(torch.float64)
        return math.pi * draws[:, 0], draws[:, 1]

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """A rod of mass m and length l; what is paid for is the state acted in."""
        known = self.original
        angle, spin = state
        torque = action[:, 0].clamp(-known.max_torque, known.max_torque)
        off = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = off.square() + 0.1 * spin.square() + 0.001 * torque.square()
        turn = 3.0 * known.g / (2.0 * known.l) * angle.sin() + 3.0 / (known.m * known.l**2) * torque
        spin = (spin + known.dt * turn).clamp(-known.max_speed, known.max_speed)
        never = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return (angle + known.dt * spin, spin), cost.neg().to(torch.float32), never

    def observe(self, state: State) -> Tensor:
        """Cosine and sine of the angle, which is 0 at the top, and the speed."""
        angle, spin = state
        return torch.stack([angle.cos(), angle.sin(), spin], dim=1).to(torch.float32)

    def render(self, state: State) -> NDArray[np.uint8]:
        """Gymnasium's picture, without the arrow that shows the torque."""
        self.original.last_u = None
        return _picture(self.original, np.array([float(part[0]) for part in state]))


def _picture(original: Any, state: NDArray[np.float64]) -> NDArray[np.uint8]:  # noqa: ANN401 - either env
    """What gymnasium's env draws in a state."""
    original.state = state
    picture: NDArray[np.uint8] = original.render()
    return picture
