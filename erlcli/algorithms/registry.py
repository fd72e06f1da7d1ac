"""Finds algorithms by name. A new one is found by itself: a file in `algorithms/config` is all it takes."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, get_args

from erlcli.algorithms import config
from erlcli.algorithms.config.base import AlgorithmConfig

if TYPE_CHECKING:
    from erlcli.core.algorithm import Algorithm


@cache
def configs() -> dict[str, type[AlgorithmConfig]]:
    """Algorithm name to the model of its recipe section, sorted by name. Imports no torch."""
    found: dict[str, type[AlgorithmConfig]] = {}
    for file in _files():
        found |= _in_file(file)
    return dict(sorted(found.items()))


@cache
def config_of(name: str) -> type[AlgorithmConfig] | None:
    """The model of the recipe section of one algorithm; None where there is none of that name. Imports no torch.

    Most have a file of their own, and importing those of all takes a tenth of a second of each process of a run.
    """
    if name in _files() and name in (found := _in_file(name)):
        return found[name]
    return configs().get(name)


@cache
def _files() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(config.__path__))


def _in_file(file: str) -> dict[str, type[AlgorithmConfig]]:
    module = importlib.import_module(f"{config.__name__}.{file}")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    models = [value for value in classes if issubclass(value, AlgorithmConfig)]
    return {name: model for model in models for name in get_args(model.model_fields["name"].annotation)}


def implementation(name: str) -> type[Algorithm]:
    """The algorithm class of a registered name. Imports torch."""
    model = config_of(name)
    if model is None:
        raise KeyError(name)
    module, _, attribute = model.implementation.partition(":")
    found: type[Algorithm] = getattr(importlib.import_module(module), attribute)
    return found
