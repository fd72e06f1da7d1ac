"""Every format against the policy and the env's action map, for every kind of space."""

import json
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

import erlcli
from erlcli.cli.export import usage
from erlcli.core.actions import ActionMap
from erlcli.core.types import ActionSpace, Box, Discrete, MultiDiscrete
from erlcli.engine.load_policy import load_policy
from erlcli.errors import ErlError, RecipeError
from erlcli.export import safetensors, torch_export
from erlcli.export.exporter import Exported, export
from erlcli.export.formats import FORMATS, destination
from erlcli.export.greedy import GreedyPolicy
from erlcli.export.program import compute
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

INF = float("inf")
MakeRun = Callable[..., RunLayout]
Exports = Callable[[str, str], tuple[RunLayout, Exported]]


def box(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32") -> Box:
    size = int(np.prod(shape))
    return Box(shape, dtype, (low,) * size, (high,) * size)


MLP = 'network.encoder="mlp"'  # pixels without convolutions, which safetensors has no operation for


@dataclass(frozen=True)
class Case:
    obs: Box
    action: ActionSpace
    overrides: tuple[str, ...] = ()


TORQUE = box((2,), -2.0, 5.0)
CASES = {
    "box_normalized": Case(box((3,), -INF, INF), TORQUE, ("normalize.obs=true", "normalize.obs_clip=5.0")),
    "squash_2d_obs": Case(
        box((2, 3), -1.0, 1.0),
        Box((2, 2), "float64", (-2.0, -1.0, 0.0, 0.1), (5.0, 1.0, 1e-3, 0.7)),
        ("algorithm.squash=true", "network.activation=gelu", "network.layer_norm=true"),
    ),
    "half_bounded": Case(box((), -INF, INF), Box((2,), "float32", (-INF, -3.0), (0.25, 3.0))),
    "discrete_start": Case(box((4, 4), 0, 255, "uint8"), Discrete(3, start=3), ("normalize.obs=true", MLP)),
    "multi_discrete_2d": Case(
        box((5,), -INF, INF),
        MultiDiscrete((2, 3, 4, 2), (2, 2), "int32", (1, 0, 0, 5)),
        ("normalize.obs=true", "network.activation=elu"),
    ),
    "images": Case(box((2, 6, 6), 0, 255, "uint8"), TORQUE, ("network.activation=silu", MLP)),
}


def run_file(exported: Exported, obs: np.ndarray) -> np.ndarray:
    """The file in its own runtime, without anything of erl but the numpy operations."""
    path = exported.files[0]
    if exported.form.name == "onnx":
        return onnxruntime.InferenceSession(str(path)).run(["action"], {"obs": obs})[0]
    if exported.form.name == "torch":
        return torch.export.load(path).module()(torch.from_numpy(obs)).numpy()
    document = json.loads(exported.files[1].read_text())
    return compute(document["program"], {**load_file(path), "obs": obs})["action"]


def export_as(layout: RunLayout, name: str, out: Path | None = None) -> Exported:
    return export(layout, load_policy(layout), *destination(layout.root / "export" / "policy", name, out))


@pytest.fixture(scope="module")
def exports(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """`exports(case, format)`: the run and what came of it, made once for all tests that only read it."""

    @cache
    def run_of(name: str) -> RunLayout:
        case = CASES[name]
        return run_builder(tmp_path_factory.mktemp(name) / "run", case.obs, case.action, *case.overrides)

    @cache
    def exported(name: str, form: str) -> tuple[RunLayout, Exported]:
        return run_of(name), export_as(run_of(name), form)

    return exported


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMATS)
def test_file_acts_like_the_policy_in_the_env(exports: Exports, form: str, name: str) -> None:
    case = CASES[name]
    layout, exported = exports(name, form)
    assert exported.files[0] == layout.root / "export" / f"policy{FORMATS[form].suffix}"
    policy, env_map = load_policy(layout).policy, ActionMap(case.action)
    rng = np.random.default_rng(5)
    seen: set[bytes] = set()
    for batch in (1, 2, 5, 200):
        obs = rng.normal(4.0, 20.0, (batch, *case.obs.shape))
        obs = np.clip(np.rint(obs * 8) if case.obs.dtype == "uint8" else obs, case.obs.low[0], case.obs.high[0])
        obs = obs.astype(case.obs.dtype)
        with torch.no_grad():
            wanted = env_map(policy.act_greedy(torch.from_numpy(obs))).numpy()
        found = run_file(exported, obs)
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        if isinstance(case.action, Box):
            np.testing.assert_allclose(found, wanted, atol=3e-4)
            assert (found >= np.reshape(case.action.low, case.action.shape).astype(found.dtype)).all()
            assert (found <= np.reshape(case.action.high, case.action.shape).astype(found.dtype)).all()
        else:
            np.testing.assert_array_equal(found, wanted)
        seen |= {row.tobytes() for row in found}
    assert len(seen) > 1  # or anything would pass
    parity = exported.parity
    assert parity.observations == 1000
    assert parity.max_error < 1e-3
    assert parity.compared == ("actions" if isinstance(case.action, Box) else "scores")
    assert parity.differing_actions == (None if isinstance(case.action, Box) else 0)


def test_greedy_policy_by_hand(make_run: MakeRun) -> None:
    """Normaliser, clipping, network, scale and offset written out in numpy, from the checkpoint's own tensors."""
    layout = make_run(
        box((3,), -INF, INF), TORQUE, "normalize.obs=true", "normalize.obs_clip=1.5", "network.hidden=[4]"
    )
    loaded = load_policy(layout)
    state = {name: tensor.double().numpy() for name, tensor in loaded.policy.state_dict().items()}
    obs = np.asarray([[4.0, 0.5, -20.0], [3.0, 300.0, 4.0]])
    mean, var = state["normalizer.moments.mean"], state["normalizer.moments.var"]
    assert (var > 0.1).all() and (np.abs(mean) > 1.0).all()
    normal = np.clip((obs - mean) / np.sqrt(var + 1e-8), -1.5, 1.5)
    assert normal[1, 1] == 1.5
    hidden = np.tanh(normal @ state["network.0.weight"].T + state["network.0.bias"])
    action = hidden @ state["network.2.weight"].T + state["network.2.bias"]
    wanted = np.clip(1.5 + 3.5 * action, -2.0, 5.0)
    greedy = GreedyPolicy(loaded.policy, loaded.spec.action)
    np.testing.assert_allclose(greedy(torch.from_numpy(obs).float()).numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("form", FORMATS)
def test_the_lines_that_are_printed_work(exports: Exports, form: str) -> None:
    _, exported = exports("box_normalized", form)
    obs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    names: dict = {"obs": obs}
    lines = usage(exported)
    assert len(lines) == 3
    exec("\n".join(lines), names)
    if form == "safetensors":
        assert set(names["tensors"]) >= {"policy.network.0.weight"}
        assert names["program"][-1]["out"] == "action"
    else:
        np.testing.assert_array_equal(names["action"], run_file(exported, obs))


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_the_lines_that_are_printed_take_the_floats_of_the_env(exports: Exports, form: str) -> None:
    _, exported = exports("box_normalized", form)
    obs = np.linspace(-1.0, 1.0, 12).reshape(4, 3)
    names: dict = {"obs": obs}
    exec("\n".join(usage(exported)), names)
    assert obs.dtype == np.float64
    np.testing.assert_array_equal(names["action"], run_file(exported, obs.astype(np.float32)))


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_the_lines_that_are_printed_flatten_choices(make_run: MakeRun, form: str) -> None:
    env = gymnasium.make("FrozenLake-v1")
    layout = make_run(box((16,), 0.0, 1.0), Discrete(4))
    write_json(layout.spec, replace(load_policy(layout).spec, flattened=True).to_json())
    exported = export_as(layout, form)
    names: dict = {"obs": [0, 5, 15], "env": env}
    exec("\n".join(usage(exported)), names)
    one_hot = np.eye(16, dtype=np.float32)[[0, 5, 15]]
    np.testing.assert_array_equal(names["action"], run_file(exported, one_hot))


@pytest.mark.parametrize("form", FORMATS)
def test_files_say_what_they_are_and_nothing_about_this_machine(exports: Exports, form: str) -> None:
    layout, exported = exports("box_normalized", form)
    path = exported.files[0]
    if form == "onnx":
        facts = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
        facts = {k: v if k in ("env", "algorithm", "run", "made_by") else json.loads(v) for k, v in facts.items()}
        contents = [path.read_bytes()]
    elif form == "torch":
        extra = {torch_export.EXTRA_FILE: ""}
        torch.export.load(path, extra_files=extra)
        facts = json.loads(extra[torch_export.EXTRA_FILE])
        with zipfile.ZipFile(path) as archive:
            contents = [archive.read(name) for name in archive.namelist()]
    else:
        facts = json.loads(exported.files[1].read_text())
        contents = [file.read_bytes() for file in exported.files]
    assert facts["env"] == "CartPole-v1"
    assert (facts["preprocessing"]["frame_stack"], facts["preprocessing"]["wrappers"]) == (1, [])
    assert facts["algorithm"] == "ppo"
    assert facts["made_by"] == f"erlcli {erlcli.__version__}"
    assert (facts["run"], facts["steps"], facts["return_mean"], facts["episodes"]) == ("run", 64, 12.5, 10)
    assert facts["inputs"] == [{"name": "obs", "dtype": "float32", "shape": ["batch", 3]}]
    assert facts["outputs"] == [{"name": "action", "dtype": "float32", "shape": ["batch", 2]}]
    assert facts["spaces"] == load_policy(layout).spec.to_json()
    source_tree = str(Path(erlcli.__file__).parent).encode()
    for content in contents:
        assert source_tree not in content
        assert str(layout.root.parent).encode() not in content


def test_onnx_graph_has_named_ports_and_a_free_batch(exports: Exports) -> None:
    _, exported = exports("discrete_start", "onnx")
    model = onnx.load(exported.files[0])
    onnx.checker.check_model(model, full_check=True)
    (port,), (result,) = model.graph.input, model.graph.output
    assert (port.name, result.name) == ("obs", "action")
    assert port.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_value or d.dim_param for d in port.type.tensor_type.shape.dim] == ["batch", 4, 4]
    assert [d.dim_value or d.dim_param for d in result.type.tensor_type.shape.dim] == ["batch"]
    assert model.opset_import[0].version >= 18


def test_safetensors_document_is_whole(make_run: MakeRun) -> None:
    exported = export_as(make_run(box((3,), -INF, INF), TORQUE, "normalize.obs=true"), "safetensors")
    document = json.loads(exported.files[1].read_text())
    assert exported.files[1].name == "policy.json"
    assert (document["format"], document["format_version"]) == ("erl-policy", 1)
    network = {"hidden": [24, 16], "activation": "tanh", "layer_norm": False}
    assert document["network"].items() >= network.items()
    assert document["normalize"]["obs_clip"] == 10.0
    ops = [step["op"] for step in document["program"]]
    assert ops == ["sub", "mul", "clamp", "linear", "tanh", "linear", "tanh", "linear", "addcmul", "clamp"]
    assert set(document["operations"]) == set(ops)
    tensors = load_file(exported.files[0])
    named = {
        v for step in document["program"] for k, v in step.items() if isinstance(v, str) and k not in ("op", "out")
    }
    assert set(tensors) <= named <= set(tensors) | {"obs"} | {step["out"] for step in document["program"]}
    with pytest.raises(ValueError, match="another weights file"):
        exported.files[0].write_bytes(exported.files[0].read_bytes() + b" ")
        safetensors.open_file(exported.files[0], load_policy(RunLayout(exported.files[0].parent.parent)).spec)


@pytest.mark.parametrize("form", FORMATS)
def test_anyone_may_read_the_files(exports: Exports, tmp_path: Path, form: str) -> None:
    _, exported = exports("box_normalized", form)
    plain = tmp_path / "plain"
    plain.touch()
    assert {file.stat().st_mode for file in exported.files} == {plain.stat().st_mode}
    assert exported.size_bytes == sum(file.stat().st_size for file in exported.files)


def tampered(form: str):
    """The format with a writer that forgets the action map."""

    def write(greedy, spec, facts, path) -> None:
        forgetful = GreedyPolicy(greedy.policy, box((2,), -1.0, 1.0))
        FORMATS[form].write(forgetful, spec, facts, path)

    return replace(FORMATS[form], write=write)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_acts_otherwise_is_not_kept(make_run: MakeRun, form: str) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)
    path = layout.root / "new" / f"policy{FORMATS[form].suffix}"
    path.parent.mkdir()
    path.write_bytes(b"an earlier one")
    with pytest.raises(ErlError, match="does not act like the policy") as caught:
        export(layout, load_policy(layout), tampered(form), path)
    assert caught.value.exit_code == 1
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == {path.name: b"an earlier one"}


def test_an_earlier_file_is_replaced_in_one_step(make_run: MakeRun) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)
    path = export_as(layout, "torch").files[0]
    path.write_bytes(b"earlier")
    held = path.open("rb")  # a reader of the earlier file keeps it
    export_as(layout, "torch")
    assert held.read() == b"earlier"
    held.close()
    assert torch.export.load(path) is not None


def test_failure_of_an_exporter_is_explained_and_logged(make_run: MakeRun) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)

    def write(greedy, spec, facts, path) -> None:
        print("chatter of the exporter")
        path.write_bytes(b"half a fi")
        raise RuntimeError("unsupported operator\nand a page of details")

    form = replace(FORMATS["torch"], write=write)
    with pytest.raises(ErlError) as caught:
        export(layout, load_policy(layout), form, layout.root / "out.pt2")
    assert caught.value.exit_code == 1
    assert caught.value.found == "RuntimeError: unsupported operator"
    log = layout.output("export").read_text()
    assert "chatter of the exporter" in log
    assert "and a page of details" in log
    assert not (layout.root / "out.pt2").exists()
    assert not list(layout.root.glob(".export-*"))


def test_a_full_disk_is_named(make_run: MakeRun) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)

    def write(greedy, spec, facts, path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(ErlError, match="No space left on device") as caught:
        export(layout, load_policy(layout), replace(FORMATS["torch"], write=write), layout.root / "out.pt2")
    assert "free space" in caught.value.remedy


def test_the_description_of_something_else_is_not_overwritten(make_run: MakeRun) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)
    mine = layout.root / "mine.json"
    mine.write_text('{"my": "data"}')
    with pytest.raises(RecipeError, match="in the way"):
        export_as(layout, "safetensors", layout.root / "mine.safetensors")
    assert mine.read_text() == '{"my": "data"}'
    again = export_as(layout, "safetensors", layout.root / "other.safetensors")
    assert export_as(layout, "safetensors", again.files[0]).files == again.files  # its own it may replace


def test_destination() -> None:
    policy = Path("run/export/policy")
    assert destination(policy, None, None) == (FORMATS["onnx"], Path("run/export/policy.onnx"))
    assert destination(policy, None, Path("a.pt2")) == (FORMATS["torch"], Path("a.pt2"))
    assert destination(policy, "safetensors", Path("b.safetensors"))[0] is FORMATS["safetensors"]
    for name, out, message, remedy in (
        ("onx", None, "no such format", "did you mean onnx?"),
        ("onnx", Path("a.pt2"), "not an ending", "a.onnx"),
        (None, Path("a.bin"), "not an ending", "a.onnx"),
        ("torch", Path("folder"), "not an ending", "folder.pt2"),
    ):
        with pytest.raises(RecipeError, match=re.escape(message)) as caught:
            destination(policy, name, out)
        assert remedy in caught.value.remedy
        assert caught.value.exit_code == 2


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Path("run/export/policy")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(RecipeError) as caught:
        destination(policy, "onnx", None)
    assert caught.value.found == "no onnxscript"
    assert "pip install 'erlcli[export]'" in caught.value.remedy
    assert destination(policy, "torch", None)[0].name == "torch"


@pytest.mark.parametrize("out", ["file/policy.pt2", "taken.pt2"])
def test_places_that_cannot_be_written(make_run: MakeRun, tmp_path: Path, out: str) -> None:
    layout = make_run(box((3,), -1.0, 1.0), TORQUE)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "taken.pt2").mkdir()
    with pytest.raises(RecipeError, match=re.escape(f"--out {tmp_path / out}")) as caught:
        export_as(layout, "torch", tmp_path / out)
    assert caught.value.exit_code == 2
