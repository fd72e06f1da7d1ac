"""ONNX files: one graph, input `obs`, output `action`, the batch dimension free; see `greedy` for further ones.

The model's metadata hold what `greedy.facts` says, one entry a fact, anything but text as JSON. Parity is checked with
onnxruntime.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from erlcli.core.types import EnvSpec
from erlcli.export.greedy import INPUT, NEXT_STATE, OUTPUT, GreedyPolicy, example, inputs, outputs, taken_apart
from erlcli.export.parity import Array, Outputs, Runtime

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write(greedy: GreedyPolicy, spec: EnvSpec, facts: dict[str, Any], path: Path) -> None:
    """Write the file.

    Raises:
        Exception: torch's exporter can't express the policy; of many types.
        OSError: the file can't be written.
    """
    given = example(greedy.policy, spec)
    program = torch.onnx.export(
        greedy,
        (),  # a dict that comes last here would be taken for keywords
        kwargs={INPUT: given.obs, **given.others},
        dynamo=True,
        input_names=[port.name for port in inputs(greedy.policy, spec)],
        output_names=[port.name for port in outputs(greedy.policy, spec)],
        dynamic_shapes=given.shapes,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    model = program.model
    given_names = {port.name for port in inputs(greedy.policy, spec)}
    for node in model.graph:
        node.metadata_props.clear()  # stack traces, with paths of this machine
        for value in node.outputs:
            if value.name in given_names:  # a part of an observation may be called like an operation
                value.name = f"{value.name}.within"
    model.metadata_props.clear()
    model.metadata_props.update({k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()})
    program.save(path, external_data=False)


def open_file(path: Path, spec: EnvSpec) -> Runtime:
    """What runs the file."""
    actions = _session(str(path))
    scores = _session(_with_scores(path))

    names = [port.name for port in actions.get_outputs()]

    def act(obs: Array, **others: Array) -> Outputs:
        given = {**taken_apart(spec, obs), **others}
        found = dict(zip(names, actions.run(names, given), strict=True))
        chosen_from = scores.run(None, given)[-1] if scores is not None else None
        return Outputs(found[OUTPUT], chosen_from, found.get(NEXT_STATE))

    return act


def _session(model: str | bytes | None) -> Any:  # noqa: ANN401 - onnxruntime has no types
    import onnxruntime

    if model is None:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _with_scores(path: Path) -> bytes | None:
    """The file with the input of its last ArgMax as one more output; None where it has no ArgMax."""
    import onnx

    model = onnx.load(path)
    inputs = [node.input[0] for node in model.graph.node if node.op_type == "ArgMax"]
    if not inputs:
        return None
    model.graph.output.append(onnx.helper.make_tensor_value_info(inputs[-1], onnx.TensorProto.FLOAT, None))
    serialized: bytes = model.SerializeToString()
    return serialized
