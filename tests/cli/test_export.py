import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from erlcli.cli.export import export
from erlcli.core.packing import packed
from erlcli.core.types import Box, Discrete, EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.plan import resolve
from erlcli.errors import DamagedError, ErlError, RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

RECIPE = """
[train]
total_steps = 4096
[env]
id = "CartPole-v1"
num_envs = 2
[network]
hidden = [8]
[algorithm]
name = "ppo"
rollout_length = 16
batch_size = 8
"""
SPEC = EnvSpec(Box((4,), "float32", (-1.0,) * 4, (1.0,) * 4), Discrete(2), 2, 500)

app = typer.Typer()
app.command()(export)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a restart point at 32 steps and no best."""
    return made(tmp_path / "run", SPEC).root


def made(root: Path, spec: EnvSpec) -> RunLayout:
    """See `run`."""
    layout = RunLayout(root)
    layout.create()
    layout.recipe.write_text(RECIPE)
    recipe = resolve(load(layout.recipe), "gymnasium")
    layout.recipe.write_text(dump(recipe))
    write_json(layout.spec, spec.to_json())
    algorithm = build.algorithm(recipe, spec, torch.device("cpu"))
    state = {"steps": 32, "version": 1, "episodes": {}}
    saved = Checkpoint(algorithm.policy.state_dict(), algorithm.state_dict(), state)
    checkpoint.save(layout.checkpoints / checkpoint.name_of(32), saved)
    return layout


def crown(run: Path) -> None:
    policy = checkpoint.load(run / "checkpoints" / checkpoint.name_of(32)).policy
    state = {"steps": 12_800, "version": 1, "return_mean": 481.25, "episodes": 10}
    checkpoint.set_best(RunLayout(run), policy, state)


def refused(*arguments: object) -> ErlError:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert isinstance(result.exception, ErlError), result.output
    assert result.stdout == ""
    return result.exception


@pytest.mark.parametrize("form", ["onnx", "torch", "safetensors"])
def test_report_names_file_error_and_use_and_nothing_else_is_printed(
    run: Path, form: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    crown(run)
    monkeypatch.chdir(run.parent)
    export([Path("run")], form=form)
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    suffix = {"onnx": "onnx", "torch": "pt2", "safetensors": "safetensors"}[form]
    assert lines[0] == f"exported run/export/policy.{suffix}"
    assert (run / "export" / f"policy.{suffix}").is_file()
    assert "from     checkpoint best, 12.8k steps, return 481.2" in lines
    assert any(line.startswith("parity   largest error ") and line.endswith("0 actions differ") for line in lines)
    assert any("over 1,000 observations" in line for line in lines)
    assert "input    obs: float32 (batch, 4), as the env gives it, cast to float32" in lines
    assert "output   action: int64 (batch), as the env takes it" in lines
    assert lines[-4] == "use it"
    assert all(len(line) <= 80 for line in lines)


def test_report_names_the_parts_of_a_dict(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Box((4,), "float32", (0.0,) * 4, (1.0,) * 4)
    view = Box((7, 7, 3), "uint8", (0.0,) * 147, (10.0,) * 147)
    layout = made(tmp_path / "run", EnvSpec(packed([("where", where), ("view", view)]), Discrete(2), 2, 500))
    monkeypatch.chdir(tmp_path)
    export([Path("run")], checkpoint="last")
    lines = capfd.readouterr().out.splitlines()
    place = lines.index("input    where: float32 (batch, 4)")
    assert lines[place + 1 : place + 4] == [
        "         view: uint8 (batch, 7, 7, 3)",
        "         parts by their names, those that are no images flattened:",
        "         gymnasium.spaces.flatten, choices as one-hot vectors",
    ]
    assert '  where = numpy.array([flatten(env.observation_space["where"], x) for x in where])' in lines
    assert not any(line.startswith("  view =") for line in lines)
    assert '{"where": where.astype("float32"), "view": view}' in lines[-1]
    assert (layout.root / "export" / "policy.onnx").is_file()


def test_report_says_what_is_done_to_choices(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_json(RunLayout(run).spec, replace(SPEC, flattened=True).to_json())
    export([run], checkpoint="last")
    lines = capfd.readouterr().out.splitlines()
    place = lines.index("input    obs: float32 (batch, 4), after flattening, cast to float32")
    assert lines[place + 1] == "         flattening: gymnasium.spaces.flatten, choices as one-hot vectors"
    assert "  obs = numpy.array([flatten(env.observation_space, x) for x in obs])" in lines
    assert all(len(line) <= 80 for line in lines if not line.startswith(("exported", "  policy")))


def test_wrappers_are_counted(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layout = RunLayout(run)
    wrapper = "gymnasium.wrappers:RecordEpisodeStatistics"
    for wrappers, said in (([wrapper], "1 wrapper"), ([wrapper] * 2, "2 wrappers")):
        layout.recipe.write_text(dump(load(layout.recipe, [f"env.wrappers={json.dumps(wrappers)}"])))
        export([run], checkpoint="last")
        assert f"float32 (batch, 4), after its {said}, cast to float32" in capfd.readouterr().out


def test_json_is_one_value_and_all_there_is(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "elsewhere" / "agent.onnx"
    export([run], out=out, checkpoint="last", json_output=True)
    stdout, stderr = capfd.readouterr()
    assert stderr == ""
    row = json.loads(stdout)
    assert row.pop("bytes") == out.stat().st_size
    assert 0.0 <= row.pop("max_error") < 1e-5
    assert row == {
        "file": str(out),
        "files": [str(out)],
        "format": "onnx",
        "compared": "scores",
        "differing_actions": 0,
        "observations": 1000,
        "checkpoint": "last",
        "checkpoint_path": str(run / "checkpoints" / "000000000032"),
        "steps": 32,
        "ensemble": None,
        "members": None,
        "inputs": [{"name": "obs", "dtype": "float32", "shape": ["batch", 4]}],
        "outputs": [{"name": "action", "dtype": "int64", "shape": ["batch"]}],
    }


def test_best_is_not_replaced_by_last(run: Path) -> None:
    error = refused(run)
    assert isinstance(error, RecipeError)
    assert "--checkpoint last" in str(error)
    assert not (run / "export").exists()


def test_damaged_checkpoint_is_exit_6(run: Path) -> None:
    (run / "checkpoints" / "000000000032" / "policy.safetensors").write_bytes(b"?")
    error = refused(run, "--checkpoint", "32", "--format", "torch")
    assert isinstance(error, DamagedError)
    assert error.exit_code == 6


def test_no_run_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        error = refused(path)
        assert isinstance(error, RecipeError)
        assert error.message == f"{path}: not a run directory"


def test_sigterm_leaves_nothing_half_made(run: Path) -> None:
    code = (
        "import os, signal; from erlcli.export import exporter; from erlcli.cli.app import app\n"
        "exporter.parity.check = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"app(['export', {str(run)!r}, '--checkpoint', 'last', '--format', 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert list((run / "export").iterdir()) == []


def test_a_checkpoint_that_is_named_is_not_chosen_again(run: Path) -> None:
    error = refused(run / "checkpoints" / "000000000032", "--checkpoint", "last")
    assert error.exit_code == 2
    assert "--checkpoint last" in error.message


def test_unknown_format_is_exit_2(run: Path) -> None:
    error = refused(run, "--format", "tensorflow", "--checkpoint", "last")
    assert error.exit_code == 2
    assert error.expected == "onnx, torch, safetensors"


def test_unwritable_place_is_exit_2(run: Path) -> None:
    error = refused(run, "--checkpoint", "last", "--format", "torch", "--out", run / "recipe.toml" / "policy.pt2")
    assert error.exit_code == 2
    assert "recipe.toml" in str(error)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, erlcli.cli.export; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pydantic', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
