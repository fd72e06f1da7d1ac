import json
import shutil
from pathlib import Path

import pytest
import torch

from erlcli.core.types import Box, EnvSpec
from erlcli.engine import build, checkpoint, load_policy
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.plan import resolve
from erlcli.errors import DamagedError, RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

RECIPE = """
[train]
total_steps = 4096
[env]
id = "Pendulum-v1"
num_envs = 2
[normalize]
obs = true
[network]
hidden = [8]
[algorithm]
name = "ppo"
rollout_length = 16
batch_size = 8
"""
SPEC = EnvSpec(Box((3,), "float32", (-1.0, -1.0, -8.0), (1.0, 1.0, 8.0)), Box((1,), "float32", (-2.0,), (2.0,)), 2, 200)


def fresh(layout: RunLayout, seed: int):
    """An algorithm whose policy is unlike that of any other seed."""
    algorithm = build.algorithm(load(layout.recipe), SPEC, torch.device("cpu"))
    algorithm.policy.normalizer.update(torch.randn(50, 3, generator=torch.Generator().manual_seed(seed)) * seed)
    return algorithm


def save(layout: RunLayout, steps: int) -> Path:
    algorithm = fresh(layout, steps)
    state = {"steps": steps, "version": steps // 32, "seconds": 1.5, "episodes": {"count": 3}}
    path = layout.checkpoints / checkpoint.name_of(steps)
    checkpoint.save(path, Checkpoint(algorithm.policy.state_dict(), algorithm.state_dict(), state))
    return path


def crown(layout: RunLayout, steps: int) -> Path:
    state = {"steps": steps, "version": 1, "return_mean": -150.0, "episodes": 20}
    return checkpoint.set_best(layout, fresh(layout, steps).policy.state_dict(), state)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run without any checkpoint."""
    made = RunLayout(tmp_path / "run")
    made.create()
    (tmp_path / "source.toml").write_text(RECIPE)
    made.recipe.write_text(dump(resolve(load(tmp_path / "source.toml"), "gymnasium")))
    write_json(made.spec, SPEC.to_json())
    return made


@pytest.fixture
def trained(layout: RunLayout) -> RunLayout:
    """Restart points at 32, 64 and 96 steps, the best at 40, a snapshot at 48."""
    for steps in (32, 64, 96):
        save(layout, steps)
    crown(layout, 40)
    facts = {"steps": "48", "version": "3", "seconds": "2.5"}
    checkpoint.save_snapshot(layout, fresh(layout, 48).policy.state_dict(), 48, facts)
    return layout


@pytest.mark.parametrize(
    ("which", "steps", "source"),
    [
        ("best", 40, "checkpoints/best-000000000040"),
        ("last", 96, "checkpoints/000000000096"),
        ("32", 32, "checkpoints/000000000032"),
        ("0_064", 64, "checkpoints/000000000064"),
        ("40", 40, "checkpoints/best-000000000040"),
        ("48", 48, "snapshots/000000000048.safetensors"),
    ],
)
def test_each_name_gives_its_own_weights(trained: RunLayout, which: str, steps: int, source: str) -> None:
    loaded = load_policy.load_policy(trained, which)
    assert loaded.source == (trained.root / source).resolve()
    assert loaded.facts["steps"] == steps
    assert loaded.facts["checkpoint"] == which
    wanted = fresh(trained, steps).policy.state_dict()
    for name, tensor in loaded.policy.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name


def test_policy_is_ready_to_act_and_comes_with_spec_and_recipe(trained: RunLayout) -> None:
    loaded = load_policy.load_policy(trained)
    assert not loaded.policy.training
    assert (loaded.spec.obs, loaded.spec.action, loaded.spec.max_episode_steps) == (SPEC.obs, SPEC.action, 200)
    assert loaded.recipe.env.id == "Pendulum-v1"
    wanted = fresh(trained, 40).policy
    obs = torch.tensor([[0.5, -0.25, 3.0]])
    assert torch.equal(loaded.policy.act_greedy(obs), wanted.act_greedy(obs))


def test_facts_are_what_was_saved(trained: RunLayout) -> None:
    best = load_policy.load_policy(trained, "best").facts
    assert best == {"checkpoint": "best", "steps": 40, "version": 1, "return_mean": -150.0, "episodes": 20}
    assert load_policy.load_policy(trained, "48").facts["seconds"] == "2.5"
    last = load_policy.load_policy(trained, "last").facts
    assert last == {"checkpoint": "last", "steps": 96, "version": 3, "seconds": 1.5}


def test_paths_of_folder_policy_file_and_snapshot(trained: RunLayout, tmp_path: Path) -> None:
    folder = trained.checkpoints / "000000000064"
    assert load_policy.load_policy(trained, str(folder)).facts["steps"] == 64
    assert load_policy.load_policy(trained, str(trained.checkpoints / "best")).facts["steps"] == 40
    by_file = load_policy.load_policy(trained, str(folder / "policy.safetensors"))
    assert by_file.source == folder.resolve()  # and so verified by its manifest
    copied = shutil.copy(trained.snapshots / "000000000048.safetensors", tmp_path / "mine.safetensors")
    assert load_policy.load_policy(trained, str(copied)).facts["steps"] == 48


def test_best_is_not_replaced_silently_by_last(layout: RunLayout) -> None:
    save(layout, 32)
    with pytest.raises(RecipeError, match="no best policy yet") as caught:
        load_policy.load_policy(layout)
    assert caught.value.found == "32"
    assert "--checkpoint last" in caught.value.remedy


@pytest.mark.parametrize("which", ["best", "last", "32", "elsewhere"])
def test_run_without_checkpoints_says_so(layout: RunLayout, which: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_policy.load_policy(layout, which)
    assert caught.value.found == "no checkpoint at all"
    assert "erl resume" in caught.value.remedy


@pytest.mark.parametrize("which", ["33", "nowhere.safetensors", "newest", "../run", "."])
def test_missing_names_what_there_is(
    trained: RunLayout, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        load_policy.load_policy(trained, which)
    assert caught.value.found == "best, 32, 48, 64, 96"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["policy.safetensors", "learner.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_damage_to_any_file_is_found(trained: RunLayout, name: str, harm: str) -> None:
    path = trained.checkpoints / "000000000096" / name
    if harm == "flip":
        flip(path, -1)
    elif harm == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(DamagedError, match=name) as caught:
        load_policy.load_policy(trained, "last")
    assert caught.value.exit_code == 6
    assert caught.value.remedy == "--checkpoint best (best, 64, 32 are whole)"


def test_damaged_best_offers_the_restart_points(trained: RunLayout) -> None:
    flip(trained.checkpoints / "best" / "policy.safetensors", -1)
    with pytest.raises(DamagedError) as caught:
        load_policy.load_policy(trained)
    assert caught.value.remedy.startswith("--checkpoint 96")


def test_best_link_to_nowhere_is_damage(trained: RunLayout) -> None:
    shutil.rmtree(trained.checkpoints / "best-000000000040")
    with pytest.raises(DamagedError):
        load_policy.load_policy(trained)


def test_torn_snapshot_is_damage(trained: RunLayout) -> None:
    path = trained.snapshots / "000000000048.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedError, match="can't be read"):
        load_policy.load_policy(trained, "48")


def test_pickle_called_safetensors_is_not_executed(trained: RunLayout, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.safetensors"
    torch.save({"a": torch.zeros(1)}, bomb)
    with pytest.raises(DamagedError):
        load_policy.load_policy(trained, str(bomb))


def test_best_that_moves_on_while_it_is_read_is_read_anew(trained: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = checkpoint.verify

    def crowned_meanwhile(path: Path, *, replay: bool) -> None:
        monkeypatch.setattr(checkpoint, "verify", verify)
        crown(trained, 72)  # removes the folder that was found
        verify(path, replay=replay)

    monkeypatch.setattr(checkpoint, "verify", crowned_meanwhile)
    assert load_policy.load_policy(trained).facts["steps"] == 72


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda s: s.pop("network.0.bias"), "no network.0.bias"),
        (lambda s: s.update(extra=torch.zeros(1)), "an unexpected extra"),
        (lambda s: s.update({"network.0.bias": torch.zeros(9)}), "network.0.bias is float32[9] instead of float32[8]"),
        (lambda s: s.update({"network.0.bias": torch.zeros(8, dtype=torch.int64)}), "int64[8] instead of float32[8]"),
        (lambda s: s["network.0.bias"].fill_(float("nan")), "network.0.bias"),
    ],
)
def test_weights_that_do_not_fit_are_damage(trained: RunLayout, change, found: str) -> None:
    weights = {name: tensor.clone() for name, tensor in fresh(trained, 1).policy.state_dict().items()}
    change(weights)
    checkpoint.set_best(trained, weights, {"steps": 100})
    with pytest.raises(DamagedError) as caught:
        load_policy.load_policy(trained)
    assert found in caught.value.found


def test_other_format_is_damage(trained: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(DamagedError, match="another format"):
        load_policy.load_policy(trained)


def test_spec_missing_or_damaged(trained: RunLayout) -> None:
    trained.spec.write_text(json.dumps({"obs": {"kind": "torus"}}))
    with pytest.raises(DamagedError, match=r"spec\.json"):
        load_policy.load_policy(trained)
    trained.spec.unlink()
    with pytest.raises(RecipeError, match=r"spec\.json: missing"):
        load_policy.load_policy(trained)
