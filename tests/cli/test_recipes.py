"""`erl recipes` and its subcommands, as a user or a script meets them."""

import errno
import json
import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import tomli
from typer.testing import CliRunner

from erlcli.algorithms import registry
from erlcli.cli.recipes import recipes_app, table
from erlcli.errors import ErlError, RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.load import load
from erlcli.recipe.tournament import load_tournament
from erlcli.recipe.words import inline

# Runs one command in a fresh interpreter and says on stderr which heavy modules it took.
PROBE = """
import sys
from erlcli.cli.recipes import recipes_app
recipes_app(sys.argv[1:], standalone_mode=False)
heavy = {"torch", "numpy", "gymnasium", "matplotlib", "erlcli.recipe.schema"} & set(sys.modules)
print("heavy:", *sorted(heavy), file=sys.stderr)
"""


@pytest.fixture
def erl(tmp_path, monkeypatch):
    """Runs `erl recipes ...` in an empty folder; the result, whose exception is raised unless it is an exit."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(recipes_app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def alone(*arguments):
    return subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, check=True, timeout=60)


# ---- the list


def test_the_list_has_a_row_for_each_recipe(erl):
    result = erl()
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["NAME", "TASK", "ALGORITHM", "TARGET", "STEPS"]
    gap = rows.index("")
    assert [row.split()[0] for row in rows[:gap]] == list(shipped.paths())
    assert rows[gap + 1].split()[0] == "TOURNAMENT"
    assert [row.split()[0] for row in rows[gap + 2 :]] == list(shipped.tournaments())
    row = next(row for row in rows if row.startswith("cartpole_ppo"))
    assert row.split() == ["cartpole_ppo", "CartPole-v1", "ppo", "475", "200.0k"]
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_the_list_as_json(erl):
    rows = json.loads(erl("--json").stdout)
    assert [row["name"] for row in rows if row["mode"] is None] == list(shipped.paths())
    assert {row["name"]: row["mode"] for row in rows if row["mode"]} == {
        "generational_lunarlander": "generational",
        "tournament_bipedal": "tournament",
        "tournament_cartpole": "tournament",
        "tournament_lunarlander": "tournament",
        "tournament_mixed_cartpole": "tournament",
    }
    row = next(row for row in rows if row["name"] == "cartpole_ppo")
    assert (row["env"], row["algorithm"]) == ("CartPole-v1", "ppo")
    assert (row["target_return"], row["total_steps"]) == (475, 200_000)
    assert set(row) == {"name", "title", "env", "algorithm", "target_return", "total_steps", "path", "mode"}


@pytest.mark.parametrize("arguments", [[], ["--json"], ["show", "cartpole_ppo"]])
def test_the_list_and_show_load_nothing_heavy(arguments):
    """What keeps them under 0.3 s, stated without a clock.

    The models of the schema stand for what pydantic costs; pydantic itself may be there, since typer uses it.
    """
    assert alone(*arguments).stderr.decode().split() == ["heavy:"]


@pytest.mark.parametrize("arguments", [["show", "cartpole_ppo", "--resolved"], ["check", "cartpole_ppo"], ["schema"]])
def test_no_subcommand_loads_torch(arguments):
    heavy = alone(*arguments).stderr.decode().split()
    assert heavy == ["heavy:", "erlcli.recipe.schema"]


def test_a_long_task_is_cut_and_a_name_never_is():
    head = ["NAME", "TASK", "ALGORITHM", "TARGET", "STEPS"]
    name = "a_rather_long_name_of_a_recipe_ppo"
    lines = table(head, [[name, "package.with.a.long.name:Environment-v1", "ppo", "-1234.5", "100.00M"]])
    assert all(len(line) <= 80 for line in lines)
    assert name in lines[1]
    assert "…" in lines[1]
    assert lines[1].endswith("-1234.5  100.00M")


def test_no_target_is_a_dash(erl, monkeypatch):
    row = shipped.Summary("x", "X.", "X-v0", "ppo", None, 1000, "/x")
    monkeypatch.setattr(shipped, "summaries", lambda: [row])
    assert erl().stdout.splitlines()[1].split() == ["x", "X-v0", "ppo", "-", "1.0k"]
    assert json.loads(erl("--json").stdout)[0]["target_return"] is None


# ---- show


@pytest.mark.parametrize("name", shipped.paths())
def test_show_prints_the_file_as_it_is(name):
    assert alone("show", name).stdout == shipped.paths()[name].read_bytes()


def test_show_takes_a_path_and_does_not_judge(erl, tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"not = [a recipe\r\n# caf\xc3\xa9")
    assert alone("show", str(tmp_path / "mine.toml")).stdout == b"not = [a recipe\r\n# caf\xc3\xa9"


def test_show_resolved_is_the_same_recipe_with_every_default(erl, tmp_path):
    text = erl("show", "cartpole_ppo", "--resolved").stdout
    data = tomli.loads(text)
    assert data["algorithm"]["epochs"] == 5
    assert data["eval"]["episodes"] == 100
    (tmp_path / "resolved.toml").write_text(text)
    assert load("resolved.toml") == load("cartpole_ppo")


def test_a_tournament_is_shown_with_every_default_too(erl, tmp_path):
    text = erl("show", "tournament_cartpole", "--resolved").stdout
    assert "[tournament.mutation]" in text and "confirm_episodes" in text
    (tmp_path / "resolved.toml").write_text(text)
    shown, shipped = load_tournament("resolved.toml"), load_tournament("tournament_cartpole")
    assert (shown.base, shown.section) == (shipped.base, shipped.section)


@pytest.mark.parametrize("arguments", [["show", "nosuch"], ["show", "nosuch", "--resolved"], ["show", "."]])
def test_show_of_what_is_not_there(erl, arguments):
    with pytest.raises(RecipeError, match="no such recipe") as caught:
        erl(*arguments)
    assert caught.value.exit_code == 2


# ---- schema


def test_schema_prints_json_and_nothing_else(erl):
    schema = json.loads(erl("schema").stdout)
    assert schema["$schema"].endswith("2020-12/schema")


def test_schema_to_a_file_says_how_editors_find_it(erl, tmp_path):
    result = erl("schema", "--out", "recipe.schema.json")
    assert json.loads((tmp_path / "recipe.schema.json").read_text()) == json.loads(erl("schema").stdout)
    assert "#:schema ./recipe.schema.json" in result.stdout.splitlines()
    erl("schema", "--out", "recipe.schema.json")  # generated, so it may be generated again
    assert "#:schema ./recipe.schema.json" in erl("schema", "--help").stdout


def test_schema_into_a_folder_that_is_not_there(erl):
    with pytest.raises(RecipeError, match="can't be written"):
        erl("schema", "--out", "nosuch/schema.json")


# ---- new


def keys_of(text):
    """Section to the keys that a starter mentions, set or commented out."""
    keys, section = {}, None
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            keys[section] = set()
            parent, _, inner = section.rpartition(".")
            if parent:
                keys[parent].add(inner)
        elif section and " = " in line and " " not in line.removeprefix("# ").split(" = ")[0]:
            keys[section].add(line.removeprefix("# ").split(" = ")[0])
    return keys


@pytest.mark.parametrize("algorithm", registry.configs())
def test_new_makes_a_right_recipe_for_every_algorithm(erl, tmp_path, algorithm):
    erl("new", "mine.toml", "--env", "Acrobot-v1", "--algorithm", algorithm)
    recipe = load("mine.toml")
    assert (recipe.env.id, recipe.algorithm.name) == ("Acrobot-v1", algorithm)
    text = (tmp_path / "mine.toml").read_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    for section, keys in keys_of(text).items():
        assert keys == set(type(attrgetter(section)(recipe)).model_fields)


def test_what_new_comments_out_is_right_as_well(erl, tmp_path):
    """Taking the # away from a default has to change nothing."""
    erl("new", "mine.toml")
    lines = []
    for line in (tmp_path / "mine.toml").read_text().splitlines():
        key, equals, value = line.removeprefix("# ").partition(" = ")
        is_setting = bool(equals) and " " not in key and not value.startswith("(unset)")
        lines.append(line.removeprefix("# ") if is_setting else line)
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert load("all.toml") == load("mine.toml")
    assert len(tomli.loads("\n".join(lines))["algorithm"]) > 10


def test_new_explains_every_key_in_the_words_of_the_schema(erl, tmp_path):
    erl("new", "mine.toml")
    text = " ".join((tmp_path / "mine.toml").read_text().replace("\n# ", " ").split())
    for model in (registry.configs()["ppo"], *(type(getattr(load("mine.toml"), s)) for s in ("train", "eval", "log"))):
        for field in model.model_fields.values():
            assert field.description in text


@pytest.mark.parametrize("name", shipped.paths())
def test_new_from_a_recipe_is_that_recipe(erl, name):
    erl("new", "mine.toml", "--from", name)
    assert load("mine.toml") == load(name)


@pytest.mark.parametrize("name", shipped.tournaments())
def test_new_from_a_tournament_is_that_tournament_with_every_key(erl, tmp_path, name):
    assert "next: erl tournament mine.toml" in erl("new", "mine.toml", "--from", name).stdout
    mine, wanted = load_tournament("mine.toml"), load_tournament(name)
    assert (mine.base, mine.section) == (wanted.base, wanted.section)
    text = (tmp_path / "mine.toml").read_text()
    for section, keys in keys_of(text).items():
        root, _, rest = section.partition(".")
        if root == "tournament" and section != "tournament.search":
            model = attrgetter(rest)(wanted.section) if rest else wanted.section
            assert keys == set(type(model).model_fields)


def test_new_from_a_tournament_takes_no_other_algorithm(erl, tmp_path):
    with pytest.raises(RecipeError, match="--algorithm sac: tournament_cartpole searches") as caught:
        erl("new", "mine.toml", "--from", "tournament_cartpole", "--algorithm", "sac")
    assert "tournament.search" in caught.value.remedy
    assert not (tmp_path / "mine.toml").exists()


def test_new_for_another_task_drops_what_was_tuned_for_the_old_one(erl, tmp_path):
    source = tmp_path / "source.toml"
    source.write_text(
        '[train]\ntotal_steps = 500_000\ntarget_return = 9\n[env]\nid = "A-v0"\nnum_envs = 4\nkwargs = {x = 1}\n'
        'wrappers = ["a:B"]\nmax_episode_steps = 5\n[algorithm]\nname = "ppo"\ngamma = 0.5\n[network]\nhidden = [8]\n'
    )
    erl("new", "mine.toml", "--from", source, "--env", "B-v0")
    recipe = load("mine.toml")
    assert (recipe.env.id, recipe.env.num_envs, recipe.train.total_steps) == ("B-v0", 4, 500_000)
    assert (recipe.env.kwargs, recipe.env.wrappers, recipe.env.max_episode_steps) == ({}, [], None)
    assert recipe.train.target_return is None
    assert (recipe.algorithm.gamma, recipe.network.hidden) == (0.5, [8])


def test_new_keeps_files_beside_the_recipe_reachable(erl, tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    erl("new", "recipes/mine.toml", "--env", "./recipes/my_env.py:My")
    assert 'id = "./my_env.py:My"' in (folder / "mine.toml").read_text()
    assert load("recipes/mine.toml").env.id == f"{folder}/my_env.py:My"
    erl("new", "recipes/other.toml", "--env", "./my_env.py:My")  # not below the recipe's folder
    assert load("recipes/other.toml").env.id == f"{tmp_path}/my_env.py:My"
    erl("new", "copy.toml", "--from", "recipes/mine.toml")
    assert load("copy.toml") == load("recipes/mine.toml")


def test_new_names_the_shipped_recipe_of_the_task(erl):
    assert "cartpole_ppo" in erl("new", "a.toml", "--env", "CartPole-v1").stdout
    assert "cartpole_ppo" not in erl("new", "b.toml", "--env", "CartPole-v1", "--from", "cartpole_ppo").stdout


def test_new_replaces_nothing_without_force(erl, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("precious")
    with pytest.raises(RecipeError, match="exists") as caught:
        erl("new", "mine.toml")
    assert caught.value.exit_code == 2
    assert "--force" in caught.value.remedy
    assert path.read_text() == "precious"
    erl("new", "mine.toml", "--force")
    load("mine.toml")


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_file_and_takes_none(erl, tmp_path, monkeypatch, reason):
    def full(*paths):
        raise OSError(reason, os.strerror(reason))

    old = tmp_path / "old.json"
    old.write_text("precious")
    monkeypatch.setattr(os, "replace", full)
    for arguments in (["new", "mine.toml"], ["schema", "--out", "new.json"], ["schema", "--out", "old.json"]):
        with pytest.raises(ErlError, match="can't be written") as caught:
            erl(*arguments)
        assert (caught.value.exit_code, "free space" in caught.value.remedy) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert old.read_text() == "precious"


def test_a_device_is_written_and_stays_one(erl):
    result = erl("schema", "--out", "/dev/null")
    assert result.exit_code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch/mine.toml"], "can't be written"),
        (["mine.toml", "--algorithm", "pp0"], "--algorithm pp0: no such algorithm"),
        (["mine.toml", "--from", "nosuch"], "nosuch: no such recipe"),
        (["mine.toml", "--env", ""], "env.id: not allowed"),
    ],
)
def test_new_with_what_can_not_be(erl, tmp_path, arguments, message):
    with pytest.raises(RecipeError) as caught:
        erl("new", *arguments)
    assert message in caught.value.message
    assert not (tmp_path / "mine.toml").exists()


def test_new_points_editors_to_a_schema_beside_it(erl, tmp_path):
    erl("new", "a.toml")
    assert not (tmp_path / "a.toml").read_text().startswith("#:schema")
    erl("schema", "--out", "recipe.schema.json")
    erl("new", "b.toml")
    assert (tmp_path / "b.toml").read_text().startswith("#:schema ./recipe.schema.json\n# CartPole-v1 with PPO.\n")
    assert shipped.title((tmp_path / "b.toml").read_text()) == "CartPole-v1 with PPO."


@pytest.mark.parametrize(
    "value",
    [
        True,
        7,
        1_000_000,
        -20_000,
        1e-5,
        float("inf"),
        'a "b" \\ \x7f \U0001f600',
        [],
        [1, [2.5]],
        {},
        {"a b": {"c": [{}]}},
    ],
    ids=repr,
)
def test_inline_values_are_toml(value):
    text = inline(value)
    assert "\n" not in text
    assert tomli.loads(f"v = {text}") == {"v": value}


# ---- check


def test_check_of_good_recipes(erl):
    result = erl("check", "cartpole_ppo", "bipedal_ppo", "generational_lunarlander")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "cartpole_ppo: ok (CartPole-v1, ppo, 200.0k steps)",
        "bipedal_ppo: ok (BipedalWalker-v3, ppo, 3.00M steps)",
        "generational_lunarlander: ok (LunarLanderContinuous-v3, ppo, 1.00M steps, generational)",
    ]
    assert result.stderr == ""


def test_check_goes_on_after_a_bad_one_and_leaves_with_2(erl, tmp_path):
    (tmp_path / "bad.toml").write_text('[algorithm]\nname = "ppo"\n[env]\nid = "a"\n')
    result = erl("check", "bad.toml", "nosuch", "cartpole_ppo")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == ["cartpole_ppo: ok (CartPole-v1, ppo, 200.0k steps)"]
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: bad.toml: train: missing", "error: nosuch: no such recipe"]


def test_check_as_json(erl, tmp_path):
    (tmp_path / "bad.toml").write_text("x")
    result = erl("check", "cartpole_ppo", "bad.toml", "--json")
    assert result.exit_code == 2
    good, bad = json.loads(result.stdout)
    assert good == {"file": "cartpole_ppo", "ok": True, "error": None}
    assert (bad["ok"], bad["error"]["kind"]) == (False, "RecipeError")
    assert bad["error"]["message"].startswith("bad.toml: line 1, column 2")
    assert result.stderr == ""


def test_check_of_nothing_is_a_usage_error(erl):
    assert erl("check").exit_code == 2


def test_an_unknown_subcommand_is_a_usage_error(erl):
    assert erl("nosuch").exit_code == 2
