import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from erlcli.cli.envs import envs_app
from erlcli.errors import EnvError, RecipeError

HANDMADE = Path(__file__).parent.parent / "envs" / "handmade.py"
QUICK = ("--episodes", "3", "--steps", "60")


def erl(*arguments):
    """`erl envs ...`: exit code, stdout, and the error that `main` would print."""
    app = typer.Typer()
    app.add_typer(envs_app)
    result = CliRunner().invoke(app, ["envs", *map(str, arguments)], env={"NO_COLOR": "1", "COLUMNS": "80"})
    error = None if isinstance(result.exception, SystemExit) else result.exception
    return result.exit_code, result.stdout, error


def test_the_list_has_newest_versions_by_family():
    code, out, error = erl()
    lines = out.splitlines()
    assert (code, error) == (0, None)
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert lines.index("Box2D") < lines.index("Classic control") < lines.index("MuJoCo")
    (walker,) = [line for line in lines if "BipedalWalker-v3" in line]
    assert walker.split() == ["BipedalWalker-v3", "1,600", "300", "yes"]
    assert "Hopper-v4" not in out and "Hopper-v5" in out and "phys2d" not in out
    assert "package.module:Class" in out and "./file.py:Class" in out and "--all" in out


def test_all_shows_older_versions_and_what_they_need():
    _, out, _ = erl("hopper", "--all")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  Hopper-")] == [
        "Hopper-v2", "Hopper-v3", "Hopper-v4", "Hopper-v5",
    ]  # fmt: skip
    assert "needs gymnasium-robotics" in out


def test_the_word_list_and_options_in_front_work_too():
    plain = erl("acrobot")[1]
    assert erl("list", "acrobot")[1] == plain
    assert erl("--json", "acrobot")[1] == erl("acrobot", "--json")[1]


def test_json_is_one_list():
    _, out, _ = erl("acrobot-v1", "--json")
    (entry,) = json.loads(out)
    assert entry["id"] == "Acrobot-v1" and entry["envpool"] and entry["max_episode_steps"] == 500


@pytest.mark.parametrize(
    ("search", "remedy"), [("CartPol-v1", "CartPole-v1"), ("Hopper-v3", "--all"), ("qqq", "erl envs")]
)
def test_a_search_without_a_hit_names_what_is_near(search, remedy):
    code, out, error = erl(search)
    assert code != 0 and out == "" and isinstance(error, RecipeError)
    assert remedy in error.remedy


def test_listing_needs_no_torch():
    code = (
        "import sys; from erlcli.cli.envs import envs_app\n"
        "try: envs_app(['cart'])\n"
        "finally: sys.exit(3 if 'torch' in sys.modules or 'envpool' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_check_of_a_good_env():
    code, out, error = erl("check", f"{HANDMADE}:Counter", *QUICK)
    lines = out.splitlines()
    assert (code, error) == (0, None)
    assert lines[0].startswith("ok    make           Counter")
    assert lines[-1].endswith("can be trained on: 16 ok, 0 warn, 0 fail")
    assert all(len(line) <= 80 for line in lines[:-1])


def test_check_of_an_env_that_fails():
    code, out, error = erl("check", f"{HANDMADE}:Faulty", *QUICK, "--set", 'kwargs.way="shape"')
    assert (code, error) == (3, None)
    assert "fail  values" in out and "                  -> make both agree" in out


def test_check_with_json_prints_one_value():
    code, out, _ = erl("check", f"{HANDMADE}:Faulty", *QUICK, "--json")
    report = json.loads(out)
    assert code == report["exit_code"] == 3 and report["fail"] == 1
    assert report["findings"][-1]["details"]["traceback"]


def test_check_of_an_env_that_is_not_there():
    code, out, error = erl("check", "CartPol-v1")
    assert isinstance(error, RecipeError) and "did you mean CartPole-v1" in error.remedy and out == ""
    code, out, error = erl("check", "CartPol-v1", "--json")
    report = json.loads(out)
    assert (code, error) == (2, None)
    assert (report["exit_code"], report["findings"][0]["name"]) == (2, "make")


def test_check_ends_in_time_whatever_the_env_does():
    code, out, _ = erl("check", f"{HANDMADE}:Faulty", "--set", "kwargs.way='hang'", "--timeout", "1.5")
    assert code == 3 and "no answer within 1.5 s" in out


def test_check_takes_keys_of_a_recipe(tmp_path):
    scale = f"{HANDMADE}:Scale"
    sets = ["--set", "env.kwargs.length=4", "--set", f"wrappers=['{scale}']", "--set", "frame_stack=2"]
    code, out, _ = erl("check", f"{HANDMADE}:Counter", *QUICK, *sets, "--json")
    findings = {f["name"]: f for f in json.loads(out)["findings"]}
    assert code == 0
    assert findings["episodes"]["details"]["lengths"] == [4, 4, 4]
    assert findings["reward"]["details"]["high"] == 1.0
    assert findings["observations"]["details"]["shape"] == [2, 2]


def test_check_takes_a_recipe(tmp_path):
    (tmp_path / "mine.py").write_text(HANDMADE.read_text())
    (tmp_path / "mine.toml").write_text(
        '[train]\ntotal_steps = 100_000\n[algorithm]\nname = "ppo"\n'
        '[env]\nid = "./mine.py:Counter"\nkwargs.length = 3\n'
    )
    code, out, error = erl("check", tmp_path / "mine.toml", *QUICK)
    assert (code, error) == (0, None) and "3 steps, return 1.5" in out


@pytest.mark.parametrize(
    ("option", "key"),
    [(["--set", "kwarg.a=1"], "kwarg"), (["--backend", "envpol"], "backend"), (["--set", "id"], "id")],
)
def test_check_with_wrong_keys(option, key):
    _, out, error = erl("check", "CartPole-v1", *option)
    assert isinstance(error, RecipeError) and not isinstance(error, EnvError) and key in str(error) and out == ""
