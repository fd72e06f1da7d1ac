"""The module that every format exports: raw observations in, the environment's own actions out.

A policy that obeys masks takes one more input, one with a memory takes its state and gives the next.

Dimension letters: B batch, C choices, S numbers of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import erlcli
from erlcli.core.actions import ActionMap
from erlcli.core.policy import Policy
from erlcli.core.types import ActionSpace, EnvSpec
from erlcli.engine.ensemble import algorithms_of
from erlcli.engine.load_policy import LoadedPolicy
from erlcli.recipe.schema import EnvSection
from erlcli.runs.layout import RunLayout

INPUT, OUTPUT = "obs", "action"
MASK, STATE, NEXT_STATE = "action_mask", "state", "next_state"
RESERVED = (OUTPUT, MASK, STATE, NEXT_STATE)


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
        self, obs: Tensor | dict[str, Tensor], action_mask: Tensor | None = None, state: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Act, from what `inputs` says, which is the observations alone for most policies.

        Args:
            obs: (B, *obs) of the env's dtype; of an observation with several parts (B, *part) of each by name.
            action_mask: (B, C) bool, the legal choices.
            state: (B, S), what the policy has returned beside its last action; zeros where an episode begins.

        Returns:
            Actions (B, *action) in the env's units and dtype; with a state the next one beside them.
        """
        if isinstance(obs, dict):
            # Encoders take parts apart or not: what comes out of the file's inputs is never packed into bytes.
            obs = cast(Tensor, joined(obs))
        if self.policy.plain:
            action: Tensor = self.action_map(self.policy.act_greedy(obs))
            return action
        chosen, following = self.policy.step_greedy(obs, action_mask, state)
        action = self.action_map(chosen)
        return action if following is None else (action, following)


def joined(parts: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """What `PartsEncoder.split` gives: the vector parts (B, V) joined, where there are any, then each image."""
    vectors = [part.flatten(1) for part in parts.values() if part.dtype != torch.uint8]
    images = [part for part in parts.values() if part.dtype == torch.uint8]
    return (torch.cat(vectors, dim=-1), *images) if vectors else tuple(images)


def taken_apart(spec: EnvSpec, obs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Packed rows (B, R) by the names of their parts, (B, *part) each; a plain observation under `obs`."""
    if not spec.obs.parts:
        return {INPUT: obs}
    found = {}
    for part in spec.obs.parts:
        dtype = np.dtype(part.space.dtype)
        data = obs[:, part.offset : part.offset + part.space.size * dtype.itemsize]
        found[_port(part.name)] = np.ascontiguousarray(data).view(dtype).reshape(len(obs), *part.space.shape)
    return found


@dataclass(frozen=True)
class Port:
    """An input or output of an exported file.

    Attributes:
        name: `obs` or that of one of its parts, with `obs_` before it where it is one of the others: `action`, or one
            of those of policies with masks or a memory.
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


def _port(part: str) -> str:
    """The name of an observation's part in a file: its own, unless that means something else there."""
    return f"{INPUT}_{part}" if part in RESERVED else part


def inputs(policy: Policy, spec: EnvSpec) -> list[Port]:
    """What a policy for these spaces takes, observations first."""
    ports = [Port(INPUT, spec.obs.dtype, spec.obs.shape)]
    if spec.obs.parts:
        ports = [Port(_port(part.name), part.space.dtype, part.space.shape) for part in spec.obs.parts]
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


@dataclass(frozen=True)
class Example:
    """What a policy is traced with.

    Attributes:
        obs: (B, *obs), or its parts by name.
        others: masks and states by name.
        shapes: the same structure with the dimension that is free, for `torch.export`.
    """

    obs: Tensor | dict[str, Tensor]
    others: dict[str, Tensor]
    shapes: dict[str, Any]


def example(policy: Policy, spec: EnvSpec, batch: int = 3) -> Example:
    """Inputs to trace with: neither 0 nor 1 of them, which exporters take for constants."""
    given = {
        port.name: torch.zeros(batch, *port.shape, dtype=getattr(torch, port.dtype)) for port in inputs(policy, spec)
    }
    free = {0: torch.export.Dim("batch")}
    parts = {name: given.pop(name) for name in (_port(part.name) for part in spec.obs.parts)}
    obs = parts or given.pop(INPUT)
    shapes = {INPUT: dict.fromkeys(parts, free) if parts else free, **dict.fromkeys(given, free)}
    return Example(obs, given, shapes)


def _without_path(reference: str) -> str:
    """A file env's id without the folder, which is of this machine."""
    return reference.rpartition("/")[2] if ".py:" in reference else reference


def _preprocessing(env: EnvSection) -> dict[str, Any]:
    """What is done to an env before the policy sees it, as `[env]` says it."""
    values = env.model_dump(
        mode="json", include={"kwargs", "max_episode_steps", "frame_stack", "action_masks", "atari"}
    )
    wrappers = [
        _without_path(one) if isinstance(one, str) else {"path": _without_path(one.path), "kwargs": one.kwargs}
        for one in env.wrappers
    ]
    return {**values, "wrappers": wrappers}


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
        "env": _without_path(recipe.env.id),
        "preprocessing": _preprocessing(recipe.env),
        "algorithm": algorithms_of(loaded),
        "run": layout.root.resolve().name,
        **{name: loaded.facts[name] for name in wanted if loaded.facts.get(name) is not None},
        "inputs": [port.to_json() for port in inputs(loaded.policy, loaded.spec)],
        "outputs": [port.to_json() for port in outputs(loaded.policy, loaded.spec)],
        "spaces": loaded.spec.to_json(),
        **(alone if members is None else together),
    }
