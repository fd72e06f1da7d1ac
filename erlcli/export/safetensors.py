"""Weights as safetensors, and beside them a JSON file that says all there is to compute.

`policy.json` holds what `greedy.facts` says (env, algorithm, steps, `inputs`, `outputs`, `spaces` with bounds as text,
since JSON has no infinity, `network` and `normalize` as in the recipe), and:

* `format`: `erl-policy`; `format_version`: 1.
* `weights`: `file`, `bytes` and `sha256` of the safetensors file that belongs to it.
* `program`: the computation from `obs` to `action`, a list of steps in order. A step is an object with `op`, `out` (the
  name of its result) and the operation's fields; a field that is text names an earlier result, the input `obs`, or a
  tensor in the safetensors file (except `dtype` and `approximate`, which are words). The result called `action` is the
  action. A policy that obeys masks has an input `action_mask` too; one with a memory an input `state`, zeros where an
  episode begins, and a result `next_state`, which is the `state` of the next step.
* `operations`: what each operation of the program computes, in words; as code they are in `numpy_ops` of this package,
  a line of numpy each.

For a policy with normalised observations and one hidden layer the program reads

    {"op": "sub", "x": "obs", "y": "policy.normalizer.shift", "out": "sub"}
    {"op": "mul", "x": "sub", "y": "policy.normalizer.scale", "out": "mul"}
    {"op": "clamp", "x": "mul", "min": -10.0, "max": 10.0, "out": "clamp"}
    {"op": "linear", "x": "clamp", "weight": "policy.network.0.weight", "bias": ..., "out": "linear"}
    {"op": "tanh", "x": "linear", "out": "tanh"}
    {"op": "linear", "x": "tanh", "weight": "policy.network.2.weight", "bias": ..., "out": "linear_1"}
    {"op": "addcmul", "x": "action_map.offset", "a": "linear_1", "b": "action_map.scale", "out": "addcmul"}
    {"op": "clamp", "x": "addcmul", "min": "action_map.low", "max": "action_map.high", "out": "action"}

The program is not written by hand for each algorithm but read off the traced policy, so it can't leave anything out.
The safetensors file carries the same JSON in its metadata under `erl` (without `weights`), so that it is of use alone.
Parity is checked by running the two files with numpy.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

from erlcli.core.types import EnvSpec
from erlcli.errors import RecipeError
from erlcli.export.greedy import INPUT, NEXT_STATE, OUTPUT, GreedyPolicy, outputs
from erlcli.export.numpy_ops import OPS
from erlcli.export.parity import Array, Outputs, Runtime
from erlcli.export.program import compute, translate
from erlcli.export.torch_export import trace

FORMAT, FORMAT_VERSION = "erl-policy", 1


def write(greedy: GreedyPolicy, spec: EnvSpec, facts: dict[str, Any], path: Path) -> None:
    """Write the weights to `path`, and the JSON file beside them.

    Raises:
        RecipeError: the policy needs an operation that programs don't have.
        OSError: a file can't be written.
    """
    from safetensors.torch import save_file

    if spec.obs.parts:
        raise RecipeError(
            "--format safetensors: programs have one input",
            expected="an observation that is one array",
            found="the parts " + ", ".join(part.name for part in spec.obs.parts),
            remedy="--format onnx or --format torch",
        )
    program, tensors = translate(trace(greedy, spec), [port.name for port in outputs(greedy.policy, spec)])
    operations = {op: inspect.getdoc(OPS[op]) for op in sorted({step["op"] for step in program})}
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **facts,
        "operations": operations,
        "program": program,
    }
    save_file(tensors, path, {"erl": json.dumps(document, allow_nan=False)})
    data = path.read_bytes()
    weights = {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    json_beside(path).write_text(_pretty({**document, "weights": weights}))
    path.chmod(json_beside(path).stat().st_mode)  # safetensors makes files that only their owner may read


def json_beside(path: Path) -> Path:
    """The JSON file that belongs to a weights file."""
    return path.with_suffix(".json")


def open_file(path: Path, spec: EnvSpec) -> Runtime:
    """What computes the program of the JSON file with the weights, in numpy.

    Raises:
        ValueError: the two files don't belong together.
    """
    from safetensors.numpy import load_file

    document = json.loads(json_beside(path).read_text())
    if hashlib.sha256(path.read_bytes()).hexdigest() != document["weights"]["sha256"]:
        raise ValueError(f"{json_beside(path)} is of another weights file")
    tensors, program = load_file(path), document["program"]
    chooses = [step["x"] for step in program if step["op"] == "argmax"]

    def act(obs: Array, **others: Array) -> Outputs:
        values = compute(program, {**tensors, INPUT: obs, **others})
        return Outputs(values[OUTPUT], values[chooses[-1]] if chooses else None, values.get(NEXT_STATE))

    return act


def _pretty(document: dict[str, Any]) -> str:
    """JSON with an entry a line, and a step of the program a line."""

    def entry(value: Any) -> str:  # noqa: ANN401 - any JSON value
        if isinstance(value, list):
            return "[\n    " + ",\n    ".join(json.dumps(part, allow_nan=False) for part in value) + "\n  ]"
        return json.dumps(value, allow_nan=False)

    lines = [f"{json.dumps(name)}: {entry(value)}" for name, value in document.items()]
    return "{\n  " + ",\n  ".join(lines) + "\n}\n"
