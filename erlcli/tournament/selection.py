"""Who becomes a parent. Pure functions of scores and a source of draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from erlcli.recipe.tournament import SelectionSection


def z_scores(scores: Sequence[float]) -> list[float]:
    """Scores to mean 0 and std 1 (of the population); all 0 where they are equal."""
    largest = max(map(abs, scores)) or 1.0  # returns may be of any size, and their squares must not overflow
    scaled = [score / largest for score in scores]
    mean = math.fsum(scaled) / len(scaled)
    std = math.sqrt(math.fsum((score - mean) ** 2 for score in scaled) / len(scaled))
    return [(score - mean) / std if std > 1e-12 else 0.0 for score in scaled]


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """Probabilities in proportion to exp(z / temperature)."""
    logits = [z / temperature for z in z_scores(scores)]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def probabilities(scores: Sequence[float], section: SelectionSection) -> list[float]:
    """Probability of each candidate to be chosen, in the order of `scores`; at least one.

    `tournament` draws `size` candidates with replacement and takes the best: with r candidates that are at most as
    good, of n, that is (r/n)^size - ((r-e)/n)^size, shared by the e that are equal. `truncation` takes one of the best
    ceil(share * n), all alike; who is equal to the last of them shares its place.
    """
    if section.kind == "softmax":
        return softmax(scores, section.temperature)
    count = len(scores)
    if section.kind == "tournament":
        found = []
        for score in scores:
            equal = sum(other == score for other in scores)
            at_most = sum(other <= score for other in scores)
            share = (at_most / count) ** section.size - ((at_most - equal) / count) ** section.size
            found.append(share / equal)
        return found
    places = math.ceil(section.share * count - 1e-9)
    last = sorted(scores, reverse=True)[places - 1]
    above = sum(score > last for score in scores)
    equal = sum(score == last for score in scores)
    return [1 / places if s > last else (places - above) / (equal * places) if s == last else 0.0 for s in scores]


def draw(weights: Sequence[float], random: Random) -> int:
    """An index, with the probabilities `weights`."""
    point, passed = random.random() * math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if point < passed:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)  # rounding at the very end
