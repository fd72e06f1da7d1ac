"""The module that every format exports: raw observations in, the environment's own actions out.

A policy that obeys masks takes one more input, one with a memory takes its state and gives the next.

Dimension letters: B batch, C choices, S numbers of a state.
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
from erlcli.engine.load_policy import LoadedPolicy
from erlcli.runs.layout import RunLayout

INPUT, OUTPUT = "obs", "action"
MASK, STATE, NEXT_STATE = "action_mask", "state", "next_state"


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

    def forward(
        self, obs: Tensor, action_mask: Tensor | None = None, state: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Act, from what `inputs` says, which is the observations alone for most policies.

        Args:
            obs: (B, *obs) of the env's dtype.
            action_mask: (B, C) bool, the legal choices.
            state: (B, S), what the policy has returned beside its last action; zeros where an episode begins.

        Returns:
            Actions (B, *action) in the env's units and dtype; with a state the next one beside them.
        """
        if self.policy.plain:
            action: Tensor = self.action_map(self.policy.act_greedy(obs))
            return action
        chosen, following = self.policy.step_greedy(obs, action_mask, state)
        action = self.action_map(chosen)
        return action if following is None else (action, following)


@dataclass(frozen=True)
class Port:
    """An input or output of an exported file.

    Attributes:
        name: `obs`, `action`, or one of those of policies with masks or a memory.
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


def inputs(policy: Policy, spec: EnvSpec) -> list[Port]:
    """What a policy for these spaces takes, observations first."""
    ports = [Port(INPUT, spec.obs.dtype, spec.obs.shape)]
    if policy.masked:
        ports.append(Port(MASK, "bool", (spec.mask,)))
    if policy.state_size:
        ports.append(Port(STATE, "float32", (policy.state_size,)))
    return ports


def outputs(policy: Policy, spec: EnvSpec) -> list[Port]:
    """What a policy for these spaces gives, actions first."""
    mapped = ActionMap(spec.action)
    ports = [Port(OUTPUT, str(mapped.dtype).removeprefix("torch."), mapped.shape)]
    if policy.state_size:
        ports.append(Port(NEXT_STATE, "float32", (policy.state_size,)))
    return ports


def examples(policy: Policy, spec: EnvSpec, batch: int = 3) -> dict[str, Tensor]:
    """Inputs to trace with by name, (B, ...): neither 0 nor 1 of them, which exporters take for constants."""
    return {
        port.name: torch.zeros(batch, *port.shape, dtype=getattr(torch, port.dtype)) for port in inputs(policy, spec)
    }


def facts(layout: RunLayout, loaded: LoadedPolicy) -> dict[str, Any]:
    """What every file says about itself: JSON values, no paths of this machine."""
    recipe, wanted = loaded.recipe, ("steps", "version", "return_mean", "return_std", "episodes")
    return {
        "made_by": f"erlcli {erlcli.__version__}",
        "env": recipe.env.id,
        "algorithm": recipe.algorithm.name,
        "run": layout.root.resolve().name,
        "seed": recipe.train.seed,
        **{name: loaded.facts[name] for name in wanted if loaded.facts.get(name) is not None},
        "inputs": [port.to_json() for port in inputs(loaded.policy, loaded.spec)],
        "outputs": [port.to_json() for port in outputs(loaded.policy, loaded.spec)],
        "spaces": loaded.spec.to_json(),
        "network": recipe.network.model_dump(mode="json"),
        "normalize": recipe.normalize.model_dump(mode="json"),
    }
