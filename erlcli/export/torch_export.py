"""`torch.export` programs (.pt2): `torch.export.load(FILE).module()` maps observations to actions.

Further inputs, `action_mask` and `state`, are keywords; a policy with a memory gives actions and the next state.

The archive's extra file `erl.json` holds what `greedy.facts` says. Parity is checked by loading the file again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from erlcli.core.types import EnvSpec
from erlcli.export.greedy import GreedyPolicy, example
from erlcli.export.parity import Runtime, torch_runtime

EXTRA_FILE = "erl.json"


def trace(greedy: GreedyPolicy, spec: EnvSpec) -> torch.export.ExportedProgram:
    """The policy as a graph of ATen operations for any batch size.

    Raises:
        Exception: torch can't trace it; of many types.
    """
    with torch.no_grad():
        given = example(greedy.policy, spec)
        # Keywords stay keywords: only obs may be given by position in what comes out.
        program = torch.export.export(greedy, (given.obs,), given.others, dynamic_shapes=given.shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # has paths of this machine
    return program


def write(greedy: GreedyPolicy, spec: EnvSpec, facts: dict[str, Any], path: Path) -> None:
    """Write the file.

    Raises:
        Exception: torch can't trace the policy or write the file; of many types.
    """
    torch.export.save(trace(greedy, spec), path, extra_files={EXTRA_FILE: json.dumps(facts)})


def open_file(path: Path, spec: EnvSpec) -> Runtime:
    """What runs the file."""
    return torch_runtime(torch.export.load(path).module(), spec)
