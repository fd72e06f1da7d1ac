"""Envpool without the families of environments that nobody asked for.

`import envpool` registers all of its seventeen families, and one of them draws with matplotlib: more than a second of
every process that steps environments. Families are registered one by one until one has the id that is wanted, and the
module that registers all of them comes last.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

ENTRY = "envpool.entry"
FAMILIES = ("classic_control", "box2d", "mujoco.gym", "atari")  # those of `config.ENVPOOL_IDS`, and games


def load() -> Any:  # noqa: ANN401 - a module without types
    """The package, which knows no environment until `knows` is asked for it.

    Raises:
        ImportError: it is not installed, or can't be imported here.
    """
    if "envpool" not in sys.modules:
        sys.modules[ENTRY] = ModuleType(ENTRY)
        try:
            envpool = importlib.import_module("envpool")
        finally:
            del sys.modules[ENTRY]
        if hasattr(envpool, "entry"):
            del envpool.entry
    return importlib.import_module("envpool")


def knows(envpool: Any, env_id: str) -> bool:  # noqa: ANN401
    """Whether it has an environment, which can be made from then on."""
    for module in (*(f"envpool.{family}.registration" for family in FAMILIES), ENTRY):
        if env_id in envpool.list_all_envs():
            return True
        with contextlib.suppress(ModuleNotFoundError):  # a version that has a family elsewhere: the last one has all
            importlib.import_module(module)
    return env_id in envpool.list_all_envs()
