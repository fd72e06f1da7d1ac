"""What environments are installed. Imports gymnasium, never torch or the environments themselves."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium

from erlcli.envs import families, novel, torch_find
from erlcli.envs.config import ENVPOOL_IDS

# Package of the entry point -> (family, module that has to be importable, what installs it).
_FAMILIES = {
    "gymnasium.envs.classic_control": ("Classic control", "gymnasium", "gymnasium"),
    "gymnasium.envs.box2d": ("Box2D", "Box2D", "gymnasium[box2d]"),
    "gymnasium.envs.mujoco": ("MuJoCo", "mujoco", "gymnasium[mujoco]"),
    "gymnasium.envs.toy_text": ("Toy text", "gymnasium", "gymnasium"),
    "gymnasium.envs.phys2d": ("phys2d", "jax", "jax"),
    "gymnasium.envs.tabular": ("tabular", "jax", "jax"),
    "erlcli.envs.torch_single": ("Tensors, all copies stepped at once", "torch", "torch"),
    "erlcli.envs": ("Partial observation", "gymnasium", "gymnasium"),
}
# Gymnasium registers names that only say where an environment went.
_FAMILIES |= {f.module: (f.title, f.module, f"erlcli[{f.extra}]") for f in families.FAMILIES}
_MOVED = {"_raise_mujoco_py_error": ("MuJoCo", "gymnasium-robotics"), "_raise_shimmy_error": ("Shimmy", "shimmy")}


@dataclass(frozen=True)
class Entry:
    """One registered environment.

    Attributes:
        id: for `env.id`.
        family: heading in a list.
        max_episode_steps: time limit, or None.
        reward_threshold: return from which on it counts as solved, or None.
        envpool: whether envpool steps it just as gymnasium does, wherever it is installed; games with [env.atari].
        needs: what has to be installed first; None where it is.
        newest: whether there is no later version of it.
    """

    id: str
    family: str
    max_episode_steps: int | None
    reward_threshold: float | None
    envpool: bool
    needs: str | None
    newest: bool

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def catalogue(search: str = "") -> list[Entry]:
    """The registered environments whose id holds `search`, whatever its case; by family, then id."""
    novel.register()
    torch_find.register()
    families.register_installed()
    latest: dict[str, int] = {}
    for env_id in gymnasium.registry:
        name, version = _version(env_id)
        latest[name] = max(version, latest.get(name, -1))
    entries = []
    for env_id, spec in gymnasium.registry.items():
        if search.lower() not in env_id.lower():
            continue
        family, needs = _family(spec.namespace, spec.entry_point)
        name, version = _version(env_id)
        entries.append(
            Entry(
                env_id,
                family,
                spec.max_episode_steps,
                float(spec.reward_threshold) if spec.reward_threshold is not None else None,
                env_id in ENVPOOL_IDS or env_id.startswith("ALE/"),
                needs,
                version == latest[name],
            )
        )
    return sorted(entries, key=lambda entry: (entry.family.lower(), entry.id.lower()))


def _version(env_id: str) -> tuple[str, int]:
    """`CartPole-v1` as (`CartPole`, 1); -1 where there is no version."""
    match = re.fullmatch(r"(.+)-v(\d+)", env_id)
    return (match[1], int(match[2])) if match else (env_id, -1)


def _family(namespace: str | None, entry: str | Callable[..., Any] | None) -> tuple[str, str | None]:
    """Heading, and what is missing."""
    if callable(entry):
        moved = _MOVED.get(getattr(entry, "__name__", ""))
        if moved is not None:
            return moved
        module = str(getattr(entry, "__module__", "other"))
    else:
        module = str(entry).partition(":")[0]
    for package, (family, wanted, install) in _FAMILIES.items():
        if f"{module}.".startswith(f"{package}."):
            return family, None if _importable(wanted) else install
    top = module.partition(".")[0]
    return namespace or top, None if _importable(top) else top


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that was made by hand, such as __main__
        return True
