"""Every recipe that comes with the tool is right, complete and findable."""

import os
import re
from pathlib import Path

import pytest
import tomli

import erlcli
from erlcli.algorithms import registry
from erlcli.errors import RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.load import dump, load
from erlcli.recipe.tournament import load_any

ROOT = Path(erlcli.__file__).resolve().parent.parent
NAMES = list(shipped.paths())


def test_the_recipes_that_messages_name_are_shipped():
    assert {"cartpole_ppo", "bipedal_ppo"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_survives_dump_and_load(name, tmp_path):
    recipe = load(name)
    path = tmp_path / "dump.toml"
    path.write_text(dump(recipe))
    assert load(path) == recipe


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_goal_a_budget_and_a_header(name):
    path = shipped.paths()[name]
    text = path.read_text()
    recipe = load(path)
    assert recipe.train.target_return is not None
    assert recipe.train.total_steps >= recipe.steps_per_rollout
    title = shipped.title(text)
    assert len(title) >= 10
    assert title.endswith(".")
    assert max(len(line) for line in text.splitlines()) <= 120
    assert text.endswith("\n")


@pytest.mark.parametrize("name", NAMES)
def test_its_name_is_task_and_algorithm(name):
    assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", name)
    algorithm = load(name).algorithm
    h_term = getattr(algorithm, "h_term", None)
    assert name.endswith(f"_{algorithm.name}" + ("_h" if h_term is not None and h_term.enabled else ""))
    assert algorithm.name in registry.configs()


@pytest.mark.parametrize("name", NAMES)
def test_it_leaves_the_machine_open(name):
    """A shipped recipe is for any machine: it names no device and no file."""
    recipe = load(name)
    assert recipe.train.device == "auto"
    assert ".py:" not in recipe.env.id
    assert not os.path.isabs(recipe.env.id)


def test_summaries_have_what_the_recipes_say():
    rows = shipped.summaries()
    assert [row.name for row in rows] == [*NAMES, *shipped.tournaments()]
    for row in rows:
        recipe, mode = load_any(row.name)
        assert row.mode == mode
        assert (row.env, row.algorithm) == (recipe.env.id, recipe.algorithm.name)
        assert (row.target_return, row.total_steps) == (recipe.train.target_return, recipe.train.total_steps)
        assert Path(row.path).is_file()
        assert row.title


def test_the_wheel_carries_them():
    project = tomli.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["recipes"] == "erlcli/recipes"
    assert "recipes" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_the_folder_of_an_installed_package_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "erlcli")
    (tmp_path / "recipes").mkdir()
    assert shipped.folder() == tmp_path / "recipes"
    (tmp_path / "erlcli" / "recipes").mkdir(parents=True)
    assert shipped.folder() == tmp_path / "erlcli" / "recipes"


def test_an_installation_without_recipes_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "erlcli")
    with pytest.raises(RecipeError, match="no shipped recipes"):
        shipped.summaries()


@pytest.mark.parametrize(
    "reference", ["cartpole_ppo", "cartpole_ppo.toml", "recipes/cartpole_ppo", "recipes/cartpole_ppo.toml"]
)
def test_a_shipped_name_is_found_from_anywhere(reference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.find(reference) == shipped.paths()["cartpole_ppo"]


def test_a_file_comes_before_a_shipped_name_and_a_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole_ppo").mkdir()  # e.g. somebody's results
    assert shipped.find("cartpole_ppo") == shipped.paths()["cartpole_ppo"]
    (tmp_path / "cartpole_ppo.toml").touch()
    assert shipped.find("cartpole_ppo.toml") == Path("cartpole_ppo.toml")


@pytest.mark.parametrize("reference", ["elsewhere/cartpole_ppo.toml", "/nosuch/recipes/cartpole_ppo.toml"])
def test_a_wrong_path_is_not_taken_for_a_shipped_name(reference):
    with pytest.raises(RecipeError, match="no such recipe") as caught:
        shipped.find(reference)
    assert caught.value.remedy == "did you mean cartpole_ppo?"


def test_a_misspelt_name_is_corrected():
    with pytest.raises(RecipeError) as caught:
        shipped.find("cartpol_ppo")
    assert caught.value.remedy == "did you mean cartpole_ppo?"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# CartPole with PPO.\n[train]", "CartPole with PPO."),
        ("\n\n#  Spaced.  \n", "Spaced."),
        ("#:schema ./recipe.schema.json\n# Title.\n", "Title."),
        ("[train]\n# no header", ""),
        ("", ""),
    ],
)
def test_the_title_is_the_first_comment(text, title):
    assert shipped.title(text) == title
