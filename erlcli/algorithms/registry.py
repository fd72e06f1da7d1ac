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
    for module_info in pkgutil.iter_modules(config.__path__):
        module = importlib.import_module(f"{config.__name__}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, AlgorithmConfig) and value is not AlgorithmConfig:
                for name in get_args(value.model_fields["name"].annotation):
                    found[name] = value
    return dict(sorted(found.items()))


def implementation(name: str) -> type[Algorithm]:
    """The algorithm class of a registered name. Imports torch."""
    module, _, attribute = configs()[name].implementation.partition(":")
    found: type[Algorithm] = getattr(importlib.import_module(module), attribute)
    return found
