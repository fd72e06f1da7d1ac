"""Point chasing: an agent with inertia catches a point that drifts away.

After the task of ElegantRL's documentation (arXiv 2112.05923), in any number of dimensions. The point's velocity is
v0 <- ball(0.5 v0 + u) with u uniform in [0, 1]^D, the agent's v1 <- 0.75 v1 + ball(a); both move by 0.01 v a step, and
ball(x) is x / max(1, |x|). The reward is by how much the distance falls, less 0.02 |ball(a)|; an episode ends within a
distance of 1, which pays 8, the distance at its start.

Dimension letters: N copies, D dimensions.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from erlcli.envs.torch_env import State, TorchEnv
from erlcli.errors import RecipeError

START = 8.0  # distance
CAUGHT = 1.0  # distance
PACE = 0.01  # of a unit of velocity, in one step
EFFORT = 0.02  # price of an action of length 1
PIXELS = 192
VIEW = 24.0  # units that a picture shows


class PointChasing(TorchEnv):
    """Observations (N, 4 D) are position and velocity of the point, then of the agent; actions (N, D) are pushes.

    Args:
        num_envs: N.
        device: where all tensors are.
        dim: D.
    """

    max_episode_steps: ClassVar[int | None] = 1024
    render_fps: ClassVar[int] = 50

    def __init__(self, num_envs: int, device: torch.device, dim: int = 2) -> None:
        super().__init__(num_envs, device)
        if dim < 1:
            raise RecipeError("env.kwargs.dim: too small", expected="at least 1", found=str(dim))
        self.dim = dim
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 * dim,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (dim,), np.float32)

    def initial(self) -> State:
        """The point near the origin, the agent at a distance of 8 in any direction, both at rest."""
        draws = self.normal(2, self.dim)
        point, direction = draws[:, 0], draws[:, 1]
        agent = point + direction * (START / torch.linalg.vector_norm(direction, dim=1, keepdim=True))
        rest = torch.zeros_like(point)
        return point, rest, agent, rest

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """See the module's docstring."""
        point, drift, agent, speed = state
        before = torch.linalg.vector_norm(point - agent, dim=1)
        drift, _ = _ball(0.5 * drift + self.uniform(0.0, 1.0, self.dim))
        push, effort = _ball(action)
        speed = 0.75 * speed + push
        point, agent = point + PACE * drift, agent + PACE * speed
        distance = torch.linalg.vector_norm(point - agent, dim=1)
        caught = distance < CAUGHT
        reward = before - distance - EFFORT * effort + START * caught
        return (point, drift, agent, speed), reward, caught

    def observe(self, state: State) -> Tensor:
        """Everything there is."""
        return torch.cat(state, dim=1)

    def render(self, state: State) -> NDArray[np.uint8]:
        """The first two dimensions: the point in red, the agent in blue, grey is where the point is caught."""
        point, agent = (np.resize(np.append(tensor[0].cpu().numpy(), 0.0), 2) for tensor in (state[0], state[2]))
        across = (np.arange(PIXELS, dtype=np.float32) + 0.5) * (VIEW / PIXELS) - VIEW / 2  # where pixels are
        away, near = (np.hypot(across - where[0], across[::-1, None] - where[1]) for where in (point, agent))
        picture = np.full((PIXELS, PIXELS, 3), 255, dtype=np.uint8)
        picture[away < CAUGHT] = (225, 225, 225)
        picture[away < 0.4] = (200, 30, 30)
        picture[near < 0.4] = (30, 60, 200)
        return picture


def _ball(vector: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) scaled into the unit ball, and the lengths (N,) after that."""
    length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return vector / length.clamp(min=1.0), length.squeeze(1).clamp(max=1.0)
