"""Policies of images, and of images beside numbers, in files that take bytes."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces

from erlcli.cli.export import usage
from erlcli.core.packing import packed
from erlcli.core.types import Box, Discrete
from erlcli.engine.load_policy import load_policy
from erlcli.errors import RecipeError
from erlcli.export.exporter import export
from erlcli.export.formats import FORMATS

INF = float("inf")
NUMBER = Box((1,), "float32", (-2.0,), (2.0,))


def image(shape):
    size = int(np.prod(shape))
    return Box(shape, "uint8", (0.0,) * size, (255.0,) * size)


def parts():
    vector = Box((3,), "float32", (-INF,) * 3, (INF,) * 3)
    return packed([("camera", image((9, 9, 3))), ("pose", vector), ("map", image((5, 6)))])


CASES = {
    "nature": ("ppo", image((4, 40, 36)), Discrete(3), ()),
    "impala": ("ppo", image((20, 20, 3)), Discrete(3), ('network.encoder="impala_cnn"',)),
    "stacked": ("dqn", image((2, 12, 12, 3)), Discrete(3), ()),
    "parts": ("ppo", parts(), Discrete(3), ()),
    "normalised": ("ppo", parts(), NUMBER, ("normalize.obs=true",)),
    "pixels": ("sac", parts(), NUMBER, ('network.encoder="mlp"',)),
    "memory": ("ppo", parts(), Discrete(3), ('network.recurrent="gru"',)),
}
OFF_POLICY = ("algorithm.replay.capacity=64",)


@pytest.mark.parametrize("form", ["onnx", "torch"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_file_acts_like_the_policy(case, form, run_builder, tmp_path):
    name, obs, action, overrides = CASES[case]
    on_policy = name == "ppo"
    overrides = (f'algorithm.name="{name}"', *overrides, *(() if on_policy else OFF_POLICY))
    layout = run_builder(tmp_path / "run", obs, action, *overrides)
    exported = export(layout, load_policy(layout), FORMATS[form], tmp_path / f"policy{FORMATS[form].suffix}")
    assert exported.parity.observations == 1000
    if form != "onnx":
        return
    onnx.checker.check_model(str(exported.files[0]))
    session = onnxruntime.InferenceSession(str(exported.files[0]), providers=["CPUExecutionProvider"])
    found = {port.name: (port.type, port.shape[1:]) for port in session.get_inputs()}
    if not obs.parts:
        assert found["obs"] == ("tensor(uint8)", list(obs.shape))
    else:
        assert found["camera"] == ("tensor(uint8)", [9, 9, 3])
        assert found["pose"] == ("tensor(float)", [3])
        assert found["map"] == ("tensor(uint8)", [5, 6])


def test_a_program_has_no_parts_and_no_convolutions(run_builder, tmp_path):
    for number, obs in enumerate((parts(), image((12, 12, 1)))):
        layout = run_builder(tmp_path / f"run{number}", obs, Discrete(3))
        with pytest.raises(RecipeError, match="safetensors") as caught:
            export(layout, load_policy(layout), FORMATS["safetensors"], tmp_path / "policy.safetensors")
        assert "onnx" in str(caught.value)
    assert caught.value.found == "convolutions of images"


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_parts_may_have_any_name(form, run_builder, tmp_path):
    """Also those of operations, and of what else a file takes and gives."""
    names = ("view", "relu", "pose.x", "action", "state", "0", "class", "2d")
    obs = packed([(name, NUMBER) for name in names] + [("conv2d", image((7, 7, 3)))])
    layout = run_builder(tmp_path / "run", obs, NUMBER, 'network.recurrent="gru"')
    exported = export(layout, load_policy(layout), FORMATS[form], tmp_path / f"policy{FORMATS[form].suffix}")
    given = ["view", "relu", "pose.x", "obs_action", "obs_state", "0", "class", "2d", "conv2d", "state"]
    assert [port.name for port in exported.inputs] == given
    assert exported.parity.observations == 1000
    variables = {"pose.x": "pose_x", "0": "obs_0", "class": "obs_class", "2d": "obs_2d"}
    arrays = {variables.get(p.name, p.name): np.zeros((4, *p.shape), p.dtype) for p in exported.inputs}
    arrays["obs_class"] = arrays["obs_class"].astype(np.float64)  # as most envs have it
    arrays["env"] = SimpleNamespace(observation_space=defaultdict(lambda: spaces.Box(-1.0, 1.0, NUMBER.shape)))
    exec("\n".join(usage(exported)), arrays)  # the lines that are printed
    assert arrays["action"].shape == (4, 1) and arrays["next_state"].shape == arrays["state"].shape
    if form == "onnx":
        onnx.checker.check_model(str(exported.files[0]))
        session = onnxruntime.InferenceSession(str(exported.files[0]), providers=["CPUExecutionProvider"])
        assert [port.name for port in session.get_inputs()] == given
