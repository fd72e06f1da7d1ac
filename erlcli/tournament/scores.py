"""What is known of a member's weights: all episodes that were ever played with them, taken together."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z95 = 1.959964  # of a normal distribution: 95 % lie within so many standard deviations


@dataclass(frozen=True)
class Sample:
    """Returns of episodes.

    Attributes:
        mean: of the returns.
        std: of the returns, as of a population.
        episodes: how many there are.
    """

    mean: float
    std: float
    episodes: int

    def __add__(self, other: Sample) -> Sample:
        """Both together: moments add up, weighted by the episodes."""
        episodes = self.episodes + other.episodes
        share = other.episodes / episodes
        shift = other.mean - self.mean
        squares = (1 - share) * self.std**2 + share * other.std**2 + share * (1 - share) * shift**2
        return Sample(self.mean + share * shift, math.sqrt(squares), episodes)

    @property
    def ci(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean, by the normal approximation."""
        half = Z95 * self.std / math.sqrt(self.episodes)
        return self.mean - half, self.mean + half
