"""Exports of policies with a memory, with masks, and with both, against the policy over whole episodes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

from erlcli.cli.export import report
from erlcli.core.actions import ActionMap
from erlcli.core.types import Box, Discrete, EnvSpec, MultiDiscrete
from erlcli.engine.load_policy import load_policy
from erlcli.export.exporter import Exported, export
from erlcli.export.formats import FORMATS, destination
from erlcli.export.program import compute
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

MakeRun = Callable[..., RunLayout]
OBS = Box((3,), "float32", (-float("inf"),) * 3, (float("inf"),) * 3)
TORQUE = Box((2,), "float32", (-2.0, -1.0), (2.0, 3.0))
CASES = {
    "lstm": (TORQUE, 0, ("network.recurrent=lstm", "normalize.obs=true")),
    "gru_masked": (Discrete(5, start=2), 5, ("network.recurrent=gru",)),
    "masked": (MultiDiscrete((2, 3), (2,)), 5, ("normalize.obs=true",)),
}


Arrays = dict[str, np.ndarray]


def opened(exported: Exported) -> Callable[[Arrays], Arrays]:
    """What runs the file, in its own runtime."""
    path, names = exported.files[0], [port.name for port in exported.outputs]
    if exported.form.name == "onnx":
        session = onnxruntime.InferenceSession(str(path))
        return lambda given: dict(zip(names, session.run(names, given), strict=True))
    if exported.form.name == "torch":
        module = torch.export.load(path).module()

        def run(given: Arrays) -> Arrays:
            tensors = {name: torch.from_numpy(x) for name, x in given.items()}
            found = module(tensors.pop("obs"), **tensors)
            return dict(zip(names, [x.numpy() for x in (found if isinstance(found, tuple) else (found,))], strict=True))

        return run
    weights, program = load_file(path), json.loads(exported.files[1].read_text())["program"]
    return lambda given: {k: v for k, v in compute(program, {**weights, **given}).items() if k in names}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_a_file_acts_like_the_policy_over_100_steps_from_a_reset(
    run_builder: MakeRun, tmp_path: Path, case: str, form: str
) -> None:
    action, width, overrides = CASES[case]
    layout = run_builder(tmp_path / "run", OBS, action, *overrides, mask=width)
    exported = export(layout, load_policy(layout), *destination(layout.root / "policy", form, None))
    policy, rng, batch = load_policy(layout).policy, np.random.default_rng(0), 2
    to_env, state = ActionMap(action), policy.initial_state(batch, torch.device("cpu"))
    run_file = opened(exported)
    given_state = np.zeros((batch, policy.state_size), np.float32)
    for _ in range(100):
        given = {"obs": rng.normal(size=(batch, 3)).astype(np.float32) * 3}
        mask = None
        if width:
            given["action_mask"] = rng.random((batch, width)) < 0.6
            given["action_mask"][:, [0, 2]] = True
            mask = torch.from_numpy(given["action_mask"])
        if state is not None:
            given["state"] = given_state
        with torch.no_grad():
            chosen, state = policy.step_greedy(torch.from_numpy(given["obs"]), mask, state)
        found = run_file(given)
        np.testing.assert_allclose(found["action"], to_env(chosen).numpy(), atol=1e-4)
        if state is not None:
            given_state = found["next_state"]
            np.testing.assert_allclose(given_state, state.numpy(), atol=1e-4)
    text = "\n".join(report(exported))
    assert ("next_state" in text) == (state is not None) and ("action_mask" in text) == (width > 0)
    assert [port["name"] for port in exported.to_json()["inputs"]] == list(given)


def test_old_runs_say_nothing_of_masks(run_builder: MakeRun, tmp_path: Path) -> None:
    layout = run_builder(tmp_path / "run", OBS, TORQUE)
    spec = json.loads(layout.spec.read_text())
    del spec["mask"]
    write_json(layout.spec, spec)
    assert load_policy(layout).spec == EnvSpec(OBS, TORQUE, 1)
