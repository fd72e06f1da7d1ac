"""Whether a replay fits in memory: asked before it is made, since its pages are taken only as training goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from erlcli.algorithms.config.off_policy import OffPolicyConfig
from erlcli.core import cgroup
from erlcli.core.policy import Policy
from erlcli.core.replay_storage import required_bytes
from erlcli.core.types import EnvSpec
from erlcli.errors import RecipeError
from erlcli.recipe.load import AnyRecipe

SPARE = 0.1  # share of what is free that stays for networks, rollouts and last observations


@dataclass(frozen=True)
class ReplayNeed:
    """What a recipe's replay takes.

    Attributes:
        transitions: that it holds.
        bytes: of memory.
        storage: where.
    """

    transitions: int
    bytes: int
    storage: torch.device

    @staticmethod
    def of(recipe: AnyRecipe, spec: EnvSpec, policy: Policy, device: torch.device) -> ReplayNeed | None:
        """The need of a recipe, or None where it has no replay.

        Args:
            recipe: of the run.
            spec: spaces of the environment.
            policy: of the recipe, whose actions are stored.
            device: of the learner.
        """
        config, num_envs = recipe.algorithm, recipe.envs_per_learner
        if not isinstance(config, OffPolicyConfig):
            return None
        needed = required_bytes(
            spec.obs,
            policy.action_shape,
            policy.action_dtype,
            num_envs=num_envs,
            capacity=config.replay.capacity,
            prioritized=config.replay.prioritized,
        )
        storage = device if config.replay.device == "learner" else torch.device("cpu")
        return ReplayNeed(config.replay.capacity // num_envs * num_envs, needed, storage)

    def __str__(self) -> str:
        where = "host memory" if self.storage.type == "cpu" else f"the memory of {self.storage}"
        return f"{self.transitions:,} transitions, {_text(self.bytes)} of {where}"

    def check(self) -> None:
        """Compare it with what is free.

        Raises:
            RecipeError: it does not fit.
        """
        free = int(free_bytes(self.storage) * (1 - SPARE))
        if self.bytes <= free:
            return
        other = ', or algorithm.replay.device = "cpu"' if self.storage.type != "cpu" else ""
        raise RecipeError(
            "algorithm.replay.capacity: the replay does not fit in memory",
            expected=f"at most {_text(free)}, about {self.transitions * free // self.bytes:,} transitions",
            found=str(self),
            remedy=f"lower algorithm.replay.capacity{other}",
            details={"oom": self.storage.type == "cuda"},  # others may have a share of it
        )


def free_bytes(device: torch.device, root: Path = cgroup.ROOT, own: Path = cgroup.OWN) -> int:
    """Memory that can be taken on a device; on the CPU within the limits of a container or a job."""
    if device.type == "cuda":
        # What this process's allocator keeps of an earlier learner is free for the next one.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    free = int(psutil.virtual_memory().available)
    for folder, limit, used in cgroup.memory(root, own):
        if limit is None:
            continue
        try:
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        cached = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))  # files, given up when needed
        free = min(free, max(0, limit - used + cached))
    return free


def _text(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
