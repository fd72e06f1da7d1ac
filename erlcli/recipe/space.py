"""Search spaces: typed distributions over the keys of a recipe, drawn from, mutated and crossed. Free of torch.

Settings are a flat table, dotted key to value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from erlcli.algorithms import registry
from erlcli.errors import RecipeError
from erlcli.recipe.distributions import Choice, Distribution, Int, LogUniform, Uniform, is_number
from erlcli.recipe.founders import Turn
from erlcli.recipe.words import found, nearest, shorten, wrap

Settings = dict[str, Any]
NAME = "algorithm.name"
# A child takes its parent's tensors over, so what their shapes or meaning depend on is drawn for founders alone: these,
# and what an algorithm's configuration says is `fixed`.
STRUCTURAL = (NAME, "env.", "network.", "normalize.obs", "normalize.reward")
FIXED = ("train.", "eval.", "checkpoint.", "log.", "engine.", "env.id", "env.backend", "tournament.")
KINDS = ("uniform", "loguniform", "int", "choice", "bool")


def is_structural(key: str, algorithm: str) -> bool:
    """Whether tensors of a run depend on `key`, so that it stays within a lineage; `algorithm` is that of the run."""
    config = registry.config_of(algorithm)
    fixed = () if config is None else tuple(f"algorithm.{name}" for name in config.fixed)
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in (*STRUCTURAL, *fixed))


@dataclass(frozen=True)
class Mutation:
    """How a child's settings come from its parent's.

    Attributes:
        factors: largest perturbation down and up, as in `Distribution.perturb`.
        probability: of each key to be changed.
        resample: share of the changes that are drawn anew from the whole distribution.
        crossover: probability that a child takes about half of its keys from a second parent.
    """

    factors: tuple[float, float] = (0.8, 1.25)
    probability: float = 0.5
    resample: float = 0.1
    crossover: float = 0.0


@dataclass(frozen=True)
class Space:
    """All searched keys.

    Attributes:
        common: keys of every member.
        subtrees: keys that hold for one algorithm alone, by its name.
        algorithm: of the recipe, where `algorithm.name` is not searched.
    """

    common: Mapping[str, Distribution]
    subtrees: Mapping[str, Mapping[str, Distribution]]
    algorithm: str

    @property
    def algorithms(self) -> list[str]:
        """Those that members may have."""
        name = self.common.get(NAME)
        return [self.algorithm] if name is None else [str(value) for value in name.extremes()]

    def keys(self, algorithm: str) -> dict[str, Distribution]:
        """What is searched for an algorithm, `algorithm.name` left out."""
        merged = {**self.common, **self.subtrees.get(algorithm, {})}
        merged.pop(NAME, None)
        return merged

    def all_keys(self) -> set[str]:
        """Every key that is searched for any algorithm, `algorithm.name` included."""
        return {*self.common, *(key for subtree in self.subtrees.values() for key in subtree)}

    def algorithm_of(self, settings: Mapping[str, Any]) -> str:
        """The algorithm of a member."""
        return str(settings.get(NAME, self.algorithm))

    def sample(self, random: Random, turn: Turn | None = None) -> Settings:
        """Settings of a founder.

        Args:
            random: of the draws.
            turn: which of several founders it is, that share the space among them; algorithms come in turn, too.
        """
        settings: Settings = {}
        names = self.algorithms
        if NAME in self.common:
            settings[NAME] = self.common[NAME].sample(random) if turn is None else names[turn.number % len(names)]
        for key, distribution in self.keys(self.algorithm_of(settings)).items():
            settings[key] = distribution.sample(random if turn is None else turn.draws(key, len(names), random))
        return settings

    def mutate(self, settings: Mapping[str, Any], random: Random, mutation: Mutation) -> Settings:
        """Settings of a child with its parent's tensors: structural keys stay."""
        child, algorithm = dict(settings), self.algorithm_of(settings)
        for key, distribution in self.keys(algorithm).items():
            if is_structural(key, algorithm) or random.random() >= mutation.probability:
                continue
            if key not in child or random.random() < mutation.resample:
                child[key] = distribution.sample(random)
            else:
                child[key] = distribution.perturb(child[key], random, mutation.factors)
        return child

    def cross(self, first: Mapping[str, Any], second: Mapping[str, Any], random: Random) -> Settings:
        """The first's settings with about half of the keys from the second, where both have the same algorithm."""
        child, algorithm = dict(first), self.algorithm_of(first)
        if algorithm == self.algorithm_of(second):
            for key in self.keys(algorithm):
                if not is_structural(key, algorithm) and key in second and random.random() < 0.5:
                    child[key] = second[key]
        return child


def parse(tables: Mapping[str, Any], algorithm: str, algorithms: Sequence[str], source: str) -> Space:
    """The `[tournament.search]` tables.

    Keys may be quoted (`"algorithm.gamma" = {...}`) or nested (`[tournament.search.algorithm]`). A table named like an
    algorithm is its subtree, where a plain value is one that all its members have.

    Args:
        tables: raw.
        algorithm: of the recipe.
        algorithms: names of those that are registered.
        source: names the recipe in messages.

    Raises:
        RecipeError: a distribution or key that can't be used.
    """
    common: dict[str, Distribution] = {}
    subtrees: dict[str, dict[str, Distribution]] = {}
    for key, value in tables.items():
        if key in algorithms and isinstance(value, dict) and "kind" not in value:
            subtrees[key] = _flatten(value, (key,), source)
        else:
            common |= _flatten({key: value}, (), source)
    space = Space(common, subtrees, algorithm)
    for name in space.algorithms:
        if name not in algorithms:
            close = nearest(name, algorithms)
            raise _refusal(source, NAME, "no such algorithm", ", ".join(algorithms), found(name),
                           f"did you mean {close}?" if close else "take one of those")  # fmt: skip
    for name in subtrees:
        if name not in space.algorithms:
            raise _refusal(source, name, "a subtree of an algorithm that no member has", ", ".join(space.algorithms),
                           name, f'add "{NAME}" = {{ kind = "choice", values = [...] }}, or remove it')  # fmt: skip
    return space


def _flatten(tables: Mapping[str, Any], within: tuple[str, ...], source: str) -> dict[str, Distribution]:
    """Dotted keys and their distributions; `within` is the algorithm of a subtree."""
    flat: dict[str, Distribution] = {}
    waiting: list[tuple[str, Any]] = list(tables.items())
    while waiting:
        key, value = waiting.pop(0)
        if isinstance(value, dict) and "kind" not in value:
            waiting[:0] = [(f"{key}.{inner}", item) for inner, item in value.items()]
            continue
        place = ".".join((*within, key))
        if key.startswith(FIXED) or "." not in key or (within and key == NAME):
            raise _refusal(source, place, "can't be searched", "a key of what a member is and learns with",
                           key, "members have to be comparable; set it in the recipe itself")  # fmt: skip
        if isinstance(value, dict):
            flat[key] = _distribution(value, place, source)
        elif within:
            flat[key] = Choice((value,))
        else:
            raise _refusal(source, place, "no distribution", "a table such as " + _EXAMPLES["uniform"], found(value),
                           "set plain values in the recipe's own sections")  # fmt: skip
    return flat


_EXAMPLES = {
    "uniform": '{ kind = "uniform", low = 0.9, high = 0.999 }',
    "loguniform": '{ kind = "loguniform", low = 1e-5, high = 1e-2 }',
    "int": '{ kind = "int", low = 1, high = 20 }',
    "choice": '{ kind = "choice", values = [64, 128, 256] }',
    "bool": '{ kind = "bool" }',
}


def _distribution(table: Mapping[str, Any], place: str, source: str) -> Distribution:
    kind = table.get("kind")
    if kind not in KINDS:
        close = nearest(str(kind), KINDS)
        raise _refusal(source, f"{place}.kind", "no such distribution", ", ".join(KINDS), found(kind),
                       f"did you mean {close}?" if close else "take one of those")  # fmt: skip
    names = {"bool": set(), "choice": {"values"}, "int": {"low", "high", "log"}}.get(kind, {"low", "high"})
    given = set(table) - {"kind"}
    problem = f"{', '.join(sorted(given - names))} is unknown" if given - names else None
    if missing := names - given - {"log"}:
        problem = f"{' and '.join(sorted(missing, reverse=True))} is missing"
    if problem is None:
        if kind == "bool":
            return Choice((False, True))
        if kind == "choice":
            values = table["values"]
            if isinstance(values, list) and values:
                return Choice(tuple(values))
            problem = "values is no list with anything in it"
        else:
            made = _range(kind, table["low"], table["high"], table.get("log", False))
            if isinstance(made, Distribution):
                return made
            problem = made
    raise _refusal(source, place, "not a distribution", _EXAMPLES[kind], problem, "write it like that")


def _range(kind: str, low: Any, high: Any, log: Any) -> Distribution | str:  # noqa: ANN401 - any TOML values
    """The distribution between two bounds, or what is wrong with them."""
    if not (is_number(low) and is_number(high)) or not math.isfinite(low) or not math.isfinite(high):
        return "low and high are no numbers"
    if low > high:
        return f"low = {low} is above high = {high}"
    if kind == "int":
        if not (isinstance(low, int) and isinstance(high, int)) or not isinstance(log, bool):
            return "low and high are no whole numbers, or log is neither true nor false"
        return Int(low, high, log) if low > 0 or not log else f"log = true with low = {low}, which is not above 0"
    if kind == "loguniform":
        return LogUniform(float(low), float(high)) if low > 0 else f"low = {low}, which is not above 0"
    return Uniform(float(low), float(high))


def _refusal(source: str, place: str, what: str, expected: str, value: str, remedy: str) -> RecipeError:
    return RecipeError(
        f"{source}: tournament.search.{shorten(place)}: {what}",
        expected=wrap(expected),
        found=value,
        remedy=wrap(remedy),
    )
