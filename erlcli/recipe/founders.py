"""How founders share a search space: chance alone would leave much of it out where they are few.

Each key's range is cut into as many parts of equal probability as there are founders, and each founder gets another
part: a Latin hypercube (McKay, Beckman and Conover, Technometrics 21, 1979). Founders of different algorithms search
different keys, so those of each algorithm share its space among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Turn:
    """Which of several founders one is.

    Attributes:
        number: from 0.
        of: how many there are.
        seed: of the order in which they get the parts.
        shares: whether it keeps to its parts; where nothing in them works, it may have all.
    """

    number: int
    of: int
    seed: int
    shares: bool = True

    def draws(self, key: str, algorithms: int, random: Random) -> Random:
        """What a value of `key` is drawn with.

        Args:
            key: of the recipe.
            algorithms: how many of them the founders have, in turn.
            random: to draw from.
        """
        if not self.shares:
            return random
        count = -(-self.of // algorithms)  # founders of an algorithm; of some of them, one less
        order, shuffle = list(range(count)), Random(f"{self.seed}/{key}/{self.number % algorithms}")
        for last in range(count - 1, 0, -1):  # Fisher-Yates: `Random.shuffle` may change with Python
            other = int(shuffle.random() * (last + 1))
            order[last], order[other] = order[other], order[last]
        place = order[self.number // algorithms]
        return _Part(random, place / count, (place + 1) / count)


class _Part(Random):
    """Another's draws, the first of them brought within a part of [0, 1): it is what decides about a value."""

    def __init__(self, random: Random, low: float, high: float) -> None:
        super().__init__(0)
        self._random, self._low, self._high = random, low, high

    def random(self) -> float:
        """A number in [0, 1)."""
        drawn = self._low + self._random.random() * (self._high - self._low)
        self._low, self._high = 0.0, 1.0
        return drawn
