"""The module that every format exports: raw observations in, the environment's own actions out.

Dimension letters: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import erlcli
from erlcli.core.actions import ActionMap
from erlcli.core.policy import Policy
from erlcli.core.types import ActionSpace, EnvSpec
from erlcli.engine.ensemble import algorithms_of
from erlcli.engine.load_policy import LoadedPolicy
from erlcli.runs.layout import RunLayout

INPUT, OUTPUT = "obs", "action"


class GreedyPolicy(nn.Module):
    """Everything between an observation and an action, so that nothing is left for the user to forget.

    Normaliser, network, mode or squashing are the policy's; scaling, clipping, start and shape are `ActionMap`'s, the
    very module that the environments use.

    Args:
        policy: acts greedily; it is frozen.
        action: the environment's action space.
    """

    def __init__(self, policy: Policy, action: ActionSpace) -> None:
        super().__init__()
        self.policy = policy
        self.action_map = ActionMap(action)
        self.requires_grad_(False)
        self.eval()

    def forward(self, obs: Tensor) -> Tensor:
        """Observations (B, *obs) of the env's dtype to actions (B, *action) in the env's units and dtype."""
        action: Tensor = self.action_map(self.policy.act_greedy(obs))
        return action


@dataclass(frozen=True)
class Port:
    """An input or output of an exported file.

    Attributes:
        name: `obs` or `action`.
        dtype: numpy name.
        shape: without the batch dimension, which comes first and is free.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """For `erl export --json` and the JSON beside safetensors."""
        return {"name": self.name, "dtype": self.dtype, "shape": ["batch", *self.shape]}

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(['batch', *map(str, self.shape)])})"


def ports(spec: EnvSpec) -> tuple[Port, Port]:
    """Input and output of a policy for these spaces."""
    mapped = ActionMap(spec.action)
    return (
        Port(INPUT, spec.obs.dtype, spec.obs.shape),
        Port(OUTPUT, str(mapped.dtype).removeprefix("torch."), mapped.shape),
    )


def example(spec: EnvSpec, batch: int = 3) -> Tensor:
    """Observations to trace with, (B, *obs): neither 0 nor 1 of them, which exporters take for constants."""
    return torch.zeros(batch, *spec.obs.shape, dtype=getattr(torch, spec.obs.dtype))


def facts(layout: RunLayout, loaded: LoadedPolicy) -> dict[str, Any]:
    """What every file says about itself: JSON values, no paths of this machine."""
    recipe, wanted = loaded.recipe, ("steps", "version", "return_mean", "return_std", "episodes")
    members = loaded.facts.get("members")
    alone: dict[str, Any] = {
        "seed": recipe.train.seed,
        "network": recipe.network.model_dump(mode="json"),
        "normalize": recipe.normalize.model_dump(mode="json"),
    }
    together: dict[str, Any] = {
        "ensemble": loaded.facts.get("ensemble"),
        "members": [{k: v for k, v in one.items() if not k.startswith("checkpoint")} for one in members or ()],
    }
    return {
        "made_by": f"erlcli {erlcli.__version__}",
        "env": recipe.env.id,
        "algorithm": algorithms_of(loaded),
        "run": layout.root.resolve().name,
        **{name: loaded.facts[name] for name in wanted if loaded.facts.get(name) is not None},
        "input": ports(loaded.spec)[0].to_json(),
        "output": ports(loaded.spec)[1].to_json(),
        "spaces": loaded.spec.to_json(),
        **(alone if members is None else together),
    }
