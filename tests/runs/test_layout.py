import os
import re
from pathlib import Path

import pytest

from erlcli.errors import RecipeError
from erlcli.runs.layout import RunLayout, check_name, list_runs, next_free, open_run


def make_run(root, time=None):
    root.mkdir(parents=True)
    (root / "recipe.toml").write_text("")
    if time is not None:
        os.utime(root / "recipe.toml", (time, time))
    return root


def test_the_names_inside_a_run_are_the_documented_ones(tmp_path):
    layout = RunLayout(tmp_path)
    names = {
        "recipe": "recipe.toml",
        "spec": "spec.json",
        "status": "status.json",
        "lock": "lock",
        "metrics": "metrics.jsonl",
        "evals": "evals.jsonl",
        "checkpoints": "checkpoints",
        "snapshots": "snapshots",
        "tensorboard": "tb",
        "videos": "videos",
        "plots": "plots",
        "control": "control",
        "stop_request": "control/stop",
    }
    for attribute, name in names.items():
        assert getattr(layout, attribute) == tmp_path / name
    assert layout.events("learner") == tmp_path / "events/learner.jsonl"
    assert layout.error("learner") == tmp_path / "errors/learner.json"
    assert layout.output("learner") == tmp_path / "errors/learner.log"
    assert layout.process("learner") == tmp_path / "processes/learner.json"


def test_create_makes_every_folder_that_processes_write_to(tmp_path):
    layout = RunLayout(tmp_path / "deep" / "run")
    layout.create()
    found = {path.name for path in layout.root.iterdir()}
    assert found == {"checkpoints", "snapshots", "plots", "control", "events", "errors", "processes"}


def test_create_takes_an_empty_folder_and_refuses_any_other(tmp_path):
    empty, full, file = tmp_path / "empty", tmp_path / "full", tmp_path / "file"
    empty.mkdir()
    full.mkdir()
    (full / "thesis.tex").touch()
    file.touch()
    RunLayout(empty).create()
    for taken in (empty, full, file):
        with pytest.raises(FileExistsError):
            RunLayout(taken).create()
    assert os.listdir(full) == ["thesis.tex"]


def test_ensure_brings_back_what_is_missing_and_leaves_the_rest(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    layout.control.rmdir()
    (layout.checkpoints / "kept").touch()
    layout.ensure()
    assert layout.control.is_dir()
    assert (layout.checkpoints / "kept").exists()


def test_clear_removes_requests_and_what_was_left_unfinished_and_nothing_else(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    (layout.control / "requests").mkdir()
    (layout.control / "requests" / "1.json").touch()
    layout.stop_request.touch()
    (layout.checkpoints / "000000000100").mkdir()
    (layout.checkpoints / ".000000000200.17").mkdir()
    (layout.checkpoints / ".DS_Store").touch()  # of another system's file manager
    (layout.checkpoints / ".best.17").symlink_to("000000000100")
    layout.clear()
    assert [path.name for path in layout.checkpoints.iterdir()] == ["000000000100"]
    assert not any(layout.control.iterdir())


def test_open_run(tmp_path):
    run = make_run(tmp_path / "run")
    assert open_run(run).root == run
    assert open_run(str(run)).root == run


def test_open_run_says_what_is_there_and_which_runs_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name, found in [("none", "nothing there"), ("folder", "a folder without"), ("file", "a file")]:
        with pytest.raises(RecipeError) as caught:
            open_run(name)
        assert caught.value.exit_code == 2
        assert caught.value.found.startswith(found)
        assert "runs/first" in caught.value.remedy
    with pytest.raises(RecipeError) as caught:
        open_run("runs")  # the folder of runs is no run
    assert "runs/first" in caught.value.remedy


def test_open_run_without_any_run_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        open_run("none")
    assert "erl train" in caught.value.remedy


def test_list_runs_is_oldest_first_and_lists_runs_only(tmp_path):
    make_run(tmp_path / "b", time=1000)
    make_run(tmp_path / "a", time=2000)
    make_run(tmp_path / "c", time=2000)
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    assert [run.root.name for run in list_runs(tmp_path)] == ["b", "a", "c"]
    assert list_runs(tmp_path / "none") == []


def test_list_runs_survives_one_that_is_being_removed(tmp_path, monkeypatch):
    whole = make_run(tmp_path / "whole") / "recipe.toml"
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "gone" / "recipe.toml", whole])
    assert [run.root.name for run in list_runs(tmp_path)] == ["whole"]


def test_next_free_counts_up(tmp_path):
    assert next_free(tmp_path, "ppo") == tmp_path / "ppo"
    (tmp_path / "ppo").mkdir()
    assert next_free(tmp_path, "ppo") == tmp_path / "ppo-2"
    (tmp_path / "ppo-2").touch()
    assert next_free(tmp_path, "ppo") == tmp_path / "ppo-3"


@pytest.mark.parametrize("name", ["a", "ppo-2", "v1.0_x", "A" * 100])
def test_names_that_are_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", ".hidden", "a b", "a\n", "ä", "A" * 101])
def test_names_that_are_none(name):
    with pytest.raises(RecipeError, match=re.escape("--name")):
        check_name(name)
