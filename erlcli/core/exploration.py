"""Noise that makes continuous actors explore: all standard normal at each step, drawn for a whole rollout at once.

Scaling it is the policy's business. Dimensions and environments never share a draw.

Dimension letters: T time steps, N environments, A action dimensions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)


class ExplorationNoise(ABC):
    """A source of noise.

    Args:
        action_dim: A.
    """

    def __init__(self, action_dim: int) -> None:
        self.action_dim = action_dim

    @abstractmethod
    def __call__(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Noise for leading `shape`, usually (T, N), each number standard normal by itself: (*shape, A)."""


class GaussianNoise(ExplorationNoise):
    """Independent in time too."""

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """See `ExplorationNoise`."""
        return torch.randn(*shape, self.action_dim, generator=generator, device=device)


class OrnsteinUhlenbeckNoise(ExplorationNoise):
    """Noise with a memory: x_{t+1} = (1 - theta) x_t + sqrt(1 - (1 - theta)^2) e_t, e_t standard normal.

    That is the discretised process of arXiv 1509.02971 with its scale taken out, so that x is standard normal at
    every step, the first one included. A process goes on from rollout to rollout and over the ends of episodes, which
    it does not see. It belongs to the generator that drives it, and ends where that one is seeded anew: collectors do
    so whenever they reset all environments, so that nothing from before a restart point is left after it.

    Args:
        action_dim: A.
        theta: pull towards 0 of one step, in (0, 1]; 1 is independent noise.
    """

    def __init__(self, action_dim: int, theta: float = 0.15) -> None:
        super().__init__(action_dim)
        if not 0.0 < theta <= 1.0:
            raise ValueError(f"theta: expected a number in (0, 1], found {theta}")
        self.keep = 1.0 - theta
        self._last: WeakKeyDictionary[torch.Generator, tuple[int, Tensor]] = WeakKeyDictionary()  # seed, (N, A)

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """See `ExplorationNoise`. The first of at least two dimensions is time; (N,) alone is one step."""
        fresh = torch.randn(*shape, self.action_dim, generator=generator, device=device)
        if len(shape) < 2:
            return self._walk(fresh.unsqueeze(0), generator).squeeze(0)
        return self._walk(fresh, generator)

    def _walk(self, fresh: Tensor, generator: torch.Generator) -> Tensor:
        """Turn (T, ..., A) independent normals into the process, in place."""
        steps = fresh.unbind(0)
        seed = generator.initial_seed()
        before, last = self._last.get(generator, (seed, None))
        if before != seed or (last is not None and last.shape != steps[0].shape):
            last = None  # as many processes as there are environments: these are others
        push = math.sqrt(1.0 - self.keep**2)
        for step in steps:
            if last is not None:
                step.mul_(push).add_(last, alpha=self.keep)
            last = step
        self._last[generator] = seed, steps[-1].clone()
        return fresh


def uniform(noise: Tensor) -> Tensor:
    """Standard normals to uniform numbers in [-1, 1], one by one: random actions without a draw of their own."""
    return torch.erf(noise * SQRT_HALF)
