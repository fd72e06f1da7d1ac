"""Environments of other packages: what registers them, and which extra of ours installs it.

Gymnasium knows an id only once the package that has it was imported. Free of torch and gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass

from erlcli.errors import RecipeError


@dataclass(frozen=True)
class Family:
    """Environments of one package.

    Attributes:
        title: heading in a list.
        pattern: what their ids look like.
        module: whose import registers them.
        extra: of `erlcli` that installs it.
    """

    title: str
    pattern: str
    module: str
    extra: str

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def remedy(self) -> str:
        """What installs it."""
        return f"pip install 'erlcli[{self.extra}]'"

    def knows(self, env_id: str) -> bool:
        """Whether an id looks like one of its."""
        return re.match(self.pattern, env_id) is not None


FAMILIES = (
    Family("Atari", r"ALE/", "ale_py", "atari"),
    Family("MiniGrid", r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Family("PyBullet", r"\w+BulletEnv-v\d+$", "pybullet_envs_gymnasium", "pybullet"),
)


def register(env_id: str) -> None:
    """Make gymnasium know an id of these families.

    Raises:
        RecipeError: the package is not installed.
    """
    for family in FAMILIES:
        if family.knows(env_id):
            _import(family, f"env.id {env_id}")


def register_installed() -> None:
    """Make gymnasium know all that is installed of these families."""
    for family in FAMILIES:
        if family.installed:
            _import(family, f"the package {family.module}")


def _import(family: Family, what: str) -> None:
    try:
        importlib.import_module(family.module)
    except ImportError as error:
        raise RecipeError(
            f"{what}: {family.title} environments need another package",
            expected=f"the Python package {family.module}",
            found=str(error),
            remedy=family.remedy,
        ) from None
