"""Runs that belong together: seeds of one recipe, or all that one algorithm did."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from erlcli.recipe.load import read_toml
from erlcli.runs.view import RunView


@dataclass(frozen=True)
class Group:
    """Runs that are taken as one thing.

    Attributes:
        name: for people; other groups of the same list have other names.
        views: refreshed, at least one.
    """

    name: str
    views: list[RunView]


def by_recipe(views: Sequence[RunView]) -> list[Group]:
    """Runs by recipe, whatever its seed and device, in the order of the first of each."""
    members: dict[str, list[RunView]] = {}
    for view in views:
        recipe = read_toml(view.layout.recipe)
        train = {key: value for key, value in recipe.get("train", {}).items() if key not in ("seed", "device")}
        members.setdefault(json.dumps({**recipe, "train": train}, sort_keys=True, default=str), []).append(view)
    groups = list(members.values())
    names = [_name(group) for group in groups]
    taken = Counter(names)
    unique = labels([group[0] for group in groups])
    return [
        Group(name if taken[name] == 1 else first, group)
        for name, first, group in zip(names, unique, groups, strict=True)
    ]


def by_algorithm(views: Sequence[RunView]) -> list[Group]:
    """Runs by algorithm, in whatever environments, in the order of the first of each."""
    members: dict[str, list[RunView]] = {}
    for view in views:
        members.setdefault(view.algorithm or "unknown", []).append(view)
    return [Group(name, group) for name, group in members.items()]


def labels(views: Sequence[RunView]) -> list[str]:
    """Names of the runs; as much of their paths as it takes to tell them apart."""
    paths = [view.layout.root.absolute() for view in views]
    parts = 1
    while parts < max((len(path.parts) for path in paths), default=0):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
        parts += 1
    return [str(path) for path in paths]


def env_name(env: str) -> str:
    """An environment's id, short: of one from a file, the file's name will do."""
    return env.rpartition("/")[2]


def _name(group: list[RunView]) -> str:
    """What the names of its runs begin with, or what they train."""
    names = labels(group)
    if len(group) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in alike).rstrip("-_./")
    return shared if len(shared) > 2 else f"{env_name(group[0].env)} {group[0].algorithm}".strip()
