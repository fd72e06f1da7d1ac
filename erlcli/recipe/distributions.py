"""Values that a searched key may take: drawn, and moved by a little. Free of torch.

Every operation keeps a value's type and bounds. Draws come from a `random.Random` and use nothing of it but `random()`,
whose numbers are the same in every Python.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Any


class Distribution(ABC):
    """Values that one key may take."""

    @abstractmethod
    def sample(self, random: Random) -> Any:  # noqa: ANN401 - any TOML value
        """A value."""

    @abstractmethod
    def perturb(self, value: Any, random: Random, factors: tuple[float, float]) -> Any:  # noqa: ANN401
        """A value near `value`.

        Args:
            value: from this distribution; what lies outside is brought within first.
            random: of the draws.
            factors: below and above 1: the largest changes, down and up.
        """

    @abstractmethod
    def extremes(self) -> list[Any]:
        """Values that a recipe has to accept if it accepts all."""


@dataclass(frozen=True)
class Uniform(Distribution):
    """Floats in [low, high]. A perturbation moves by a share of the range, so that 0.99 and 0.01 are moved alike."""

    low: float
    high: float

    def sample(self, random: Random) -> float:
        """See `Distribution.sample`."""
        return _within(self.low + random.random() * (self.high - self.low), self.low, self.high)

    def perturb(self, value: Any, random: Random, factors: tuple[float, float]) -> float:  # noqa: ANN401
        """See `Distribution.perturb`."""
        return reflect(float(value) + log_factor(random, factors) * (self.high - self.low), self.low, self.high)

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [self.low, self.high]


@dataclass(frozen=True)
class LogUniform(Distribution):
    """Floats in [low, high], low > 0, each order of magnitude alike. A perturbation multiplies."""

    low: float
    high: float

    def sample(self, random: Random) -> float:
        """See `Distribution.sample`."""
        low, high = math.log(self.low), math.log(self.high)
        return _within(math.exp(low + random.random() * (high - low)), self.low, self.high)

    def perturb(self, value: Any, random: Random, factors: tuple[float, float]) -> float:  # noqa: ANN401
        """See `Distribution.perturb`."""
        moved = math.log(_within(float(value), self.low, self.high)) + log_factor(random, factors)
        return _within(math.exp(reflect(moved, math.log(self.low), math.log(self.high))), self.low, self.high)

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Int(Distribution):
    """Whole numbers in [low, high]; with `log` each order of magnitude alike, and a perturbation multiplies.

    Fractions are rounded up or down by chance, in proportion: cutting them off would drift towards `low`, and rounding
    to the nearest would never leave a small number.
    """

    low: int
    high: int
    log: bool = False

    def sample(self, random: Random) -> int:
        """See `Distribution.sample`."""
        if not self.log:
            return min(self.low + int(random.random() * (self.high - self.low + 1)), self.high)
        return self._round(LogUniform(self.low, self.high).sample(random), random)

    def perturb(self, value: Any, random: Random, factors: tuple[float, float]) -> int:  # noqa: ANN401
        """See `Distribution.perturb`."""
        near: Distribution = LogUniform(self.low, self.high) if self.log else Uniform(self.low, self.high)
        return self._round(near.perturb(value, random, factors), random)

    def _round(self, value: float, random: Random) -> int:
        whole = math.floor(value)
        return min(max(whole + (random.random() < value - whole), self.low), self.high)

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Choice(Distribution):
    """One of a list. A perturbation goes to a neighbour among numbers, and anywhere else among other values."""

    values: tuple[Any, ...]

    def sample(self, random: Random) -> Any:  # noqa: ANN401
        """See `Distribution.sample`."""
        return self.values[min(int(random.random() * len(self.values)), len(self.values) - 1)]

    def perturb(self, value: Any, random: Random, factors: tuple[float, float]) -> Any:  # noqa: ANN401
        """See `Distribution.perturb`."""
        if value not in self.values or len(self.values) == 1:
            return self.sample(random)
        if all(is_number(item) for item in self.values):
            ordered = sorted(self.values)
            place = ordered.index(value) + (1 if random.random() < 0.5 else -1)
            return ordered[place] if 0 <= place < len(ordered) else value
        return Choice(tuple(item for item in self.values if item != value)).sample(random)

    def extremes(self) -> list[Any]:
        """See `Distribution.extremes`."""
        return list(self.values)


def log_factor(random: Random, factors: tuple[float, float]) -> float:
    """The logarithm of a factor between `factors`: below and above 0 with the same probability, so its median is 0."""
    end = math.log(factors[1] if random.random() < 0.5 else factors[0])
    return random.random() * end


def reflect(value: float, low: float, high: float) -> float:
    """`value` mirrored at the bounds, so that none of them attracts."""
    span = high - low
    if span <= 0:
        return low
    place = (value - low) % (2 * span)
    return _within(low + min(place, 2 * span - place), low, high)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def is_number(value: object) -> bool:
    """Whether a TOML value is one; a bool is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
