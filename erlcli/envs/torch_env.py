"""Environments as tensors: what a user writes so that thousands of copies are stepped at once, on the CPU or a GPU.

All N copies are rows of the same tensors, and there is no loop over them. A class says how states begin, how they go
on and what is seen of them; time limits, resets, seeds and the units of actions are taken care of elsewhere:
`torch_vec` steps N copies for training, `torch_single` one copy for evaluation, checks and videos.

Dimension letters: N copies.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

State = tuple[Tensor, ...]


class OtherDraw(Exception):  # noqa: N818 - the caller knows the step, and makes an EnvError of it
    """Random numbers are asked for in the place of others, which have been made already."""


@dataclass(frozen=True)
class Draw:
    """Random numbers that an environment asks for.

    Attributes:
        shape: (N, ...).
        bounds: uniform within these; of mean 0 and standard deviation 1 where there are none.
    """

    shape: tuple[int, ...]
    bounds: tuple[float, float] | None

    def make(self, generator: torch.Generator) -> Tensor:
        """New ones, float32."""
        empty = torch.empty(self.shape, device=generator.device)
        if self.bounds is None:
            return empty.normal_(generator=generator)
        return empty.uniform_(*self.bounds, generator=generator)

    def __str__(self) -> str:
        """As an environment asks for them, for one copy."""
        shape = map(str, self.shape[1:])
        name, bounds = ("normal", ()) if self.bounds is None else ("uniform", (f"{bound:g}" for bound in self.bounds))
        return f"{name}({', '.join((*bounds, *shape))})"


class TorchEnv(ABC):
    """N copies of an environment. Subclasses set `observation_space` and `action_space`, of one copy, when made.

    `initial`, `dynamics` and `observe` return new tensors and leave those that they are given as they are. Every draw
    comes from `generator` (`uniform` and `normal` do that) and is made for all N copies at every call: which of them
    need it is not their business. So equal seeds give equal episodes, and nothing waits for a GPU.

    Args:
        num_envs: N.
        device: where all tensors are.

    Attributes:
        max_episode_steps: time limit in steps, unless the recipe sets one; None for no limit.
        capturable: whether the three methods are tensor operations alone, of fixed shapes, which never look at a value
            (no `if` on a tensor, `.item()`, `nonzero` or index by a mask), so that a CUDA graph can record them.
        render_fps: pictures a second, of videos.
        generator: on `device`; seeded by the caller.
    """

    max_episode_steps: ClassVar[int | None] = None
    capturable: ClassVar[bool] = True
    render_fps: ClassVar[int] = 30
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.num_envs, self.device = num_envs, device
        self.generator = torch.Generator(device=device)
        self._asked: list[Draw] | None = None  # who listens to what is asked for
        self._given: Iterator[tuple[Draw, Tensor]] = iter(())

    @abstractmethod
    def initial(self) -> State:
        """States at the start of an episode: tensors (N, ...)."""

    @abstractmethod
    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step.

        Args:
            state: tensors (N, ...).
            action: (N, *action) within `action_space`; int64 for discrete ones.

        Returns:
            The next states, of the same shapes and dtypes; rewards (N,) float32; and terminated (N,) bool, whether an
            episode is over other than by the time limit.
        """

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """What is seen of the states: (N, *obs), float32 or uint8 as `observation_space` has it."""

    def render(self, state: State) -> NDArray[np.uint8]:
        """A picture (H, W, 3) of the first copy. Overriding it is what makes videos possible."""
        raise NotImplementedError(f"{type(self).__name__} draws no pictures")

    @classmethod
    def draws(cls) -> bool:
        """Whether there are pictures."""
        return cls.render is not TorchEnv.render

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """(N, *shape) float32, uniform in [low, high)."""
        return self._draw(Draw((self.num_envs, *shape), (low, high)))

    def normal(self, *shape: int) -> Tensor:
        """(N, *shape) float32, of mean 0 and standard deviation 1."""
        return self._draw(Draw((self.num_envs, *shape), None))

    def give(self, numbers: Sequence[tuple[Draw, Tensor]]) -> None:
        """What the next draws are, in their order, instead of new ones, each with what was asked for; see `asks`."""
        self._given = iter(numbers)

    def asks(self, work: Callable[[], object]) -> tuple[Draw, ...]:
        """What `work` draws."""
        asked: list[Draw] = []
        self._asked = asked
        try:
            work()
        finally:
            self._asked = None
        return tuple(asked)

    def _draw(self, draw: Draw) -> Tensor:
        if self._asked is not None:
            self._asked.append(draw)
        given = next(self._given, None)
        if given is None:
            return draw.make(self.generator)
        asked, numbers = given
        if asked != draw:
            caller = traceback.extract_stack(limit=3)[0]
            raise OtherDraw(f"{caller.name}() asks for {draw} where an earlier step has asked for {asked}")
        return numbers
