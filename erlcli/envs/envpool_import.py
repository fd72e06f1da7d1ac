"""Envpool without the families of environments that nobody asked for.

`import envpool` registers all of its seventeen families, and one of them draws with matplotlib: more than a second of
every process that steps environments. The module that does so is kept out until an id is wanted that those registered
here don't have.
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
    """The package, with these families.

    Raises:
        ImportError: it is not installed, or can't be imported here.
    """
    if "envpool" not in sys.modules:
        sys.modules[ENTRY] = ModuleType(ENTRY)
        try:
            envpool = importlib.import_module("envpool")
            for family in FAMILIES:
                with contextlib.suppress(ModuleNotFoundError):  # a version that has it elsewhere: see `knows`
                    importlib.import_module(f"envpool.{family}.registration")
        finally:
            del sys.modules[ENTRY]
        if hasattr(envpool, "entry"):
            del envpool.entry
    return importlib.import_module("envpool")


def knows(envpool: Any, env_id: str) -> bool:  # noqa: ANN401
    """Whether it has an environment, among all of its families."""
    if env_id not in envpool.list_all_envs():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(ENTRY)
    return env_id in envpool.list_all_envs()
