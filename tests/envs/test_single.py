import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from erlcli.envs.config import EnvConfig
from erlcli.envs.single import as_box, make_env, make_own_env, named
from erlcli.errors import EnvError, RecipeError

HANDMADE = Path(__file__).parent / "handmade.py"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder whose modules are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path, length=3):
    """A file with an environment `Mine`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "import gymnasium\n"
        "class Mine(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        f"    length = {length}\n"
    )


def test_a_file_relative_to_the_current_folder(here):
    write(here / "mine.py")
    assert make_env(EnvConfig("./mine.py:Mine")).unwrapped.length == 3


def test_files_of_the_same_relative_name_in_other_folders_are_others(here, monkeypatch):
    for number in (1, 2):
        write(here / str(number) / "mine.py", number)
        monkeypatch.chdir(here / str(number))
        assert make_env(EnvConfig("./mine.py:Mine")).unwrapped.length == number


def test_a_file_finds_its_neighbours(here):
    write(here / "sub" / "parts_of_mine.py")
    (here / "sub" / "mine.py").write_text("from parts_of_mine import Mine\n")
    assert make_env(EnvConfig(f"{here}/sub/mine.py:Mine")).unwrapped.length == 3


def test_a_module_in_the_current_folder(here):
    write(here / "packaged" / "inner.py")
    assert make_env(EnvConfig("packaged.inner:Mine")).unwrapped.length == 3


def test_a_function_and_keyword_arguments():
    assert make_env(EnvConfig(f"{HANDMADE}:make_counter", kwargs={"length": 9})).unwrapped.length == 9


def test_an_id_that_a_module_registers(here):
    write(here / "registers.py")
    with (here / "registers.py").open("a") as file:
        file.write("gymnasium.register('Registered-v0', Mine, max_episode_steps=77)\n")
    try:
        env = make_env(EnvConfig("registers:Registered-v0"))
        assert env.spec.max_episode_steps == 77
    finally:
        gymnasium.registry.pop("Registered-v0", None)


def test_time_limit_of_a_class():
    assert not isinstance(make_env(EnvConfig(f"{HANDMADE}:Counter")), TimeLimit)
    env = make_env(EnvConfig(f"{HANDMADE}:Counter", max_episode_steps=12))
    assert isinstance(env, TimeLimit) and env.spec is None


@pytest.mark.parametrize(
    ("env_id", "parts"),
    [
        ("CartPol-v1", ["env.id CartPol-v1: no such environment", "did you mean CartPole-v1"]),
        ("CartPole-v7", ["no such environment", "CartPole-v1"]),
        ("not an id", ["no such environment", "erl envs lists"]),
        ("Nowhere/Pong-v5", ["no such environment", "package:Nowhere/Pong-v5"]),
        ("Reacher-v2", ["gymnasium-robotics"]),
        (f"{HANDMADE}:Countr", ["handmade.py has no Countr", "did you mean Counter?"]),
        (f"{HANDMADE}:NoEnv", ["not an environment", "a gymnasium.Env", "NoEnv"]),
        (f"{HANDMADE}:INSTANCE", ["nothing that makes an environment", "a class or function", "one Counter"]),
        (f"{HANDMADE}:NUMBER", ["nothing that makes an environment", "one int: 3"]),
        ("./absent.py:Mine", ["absent.py: no such file"]),
        ("absent_module.deep:Mine", ["no such module", "nothing called absent_module"]),
        ("./absent.py:", ["names no class", "package.module:Class"]),
    ],
)
def test_names_that_are_wrong(env_id, parts):
    with pytest.raises(RecipeError) as caught:
        make_env(EnvConfig(env_id))
    for part in parts:
        assert part in str(caught.value)


def test_a_missing_import_is_not_taken_for_a_missing_module(here):
    (here / "gyms.py").write_text("import gym\n")  # a name that begins alike
    for env_id in ("gyms:Mine", "./gyms.py:Mine"):
        with pytest.raises(RecipeError) as caught:
            make_env(EnvConfig(env_id))
        assert "No module named 'gym'" in str(caught.value) and "pip install gym" in str(caught.value)


@pytest.mark.parametrize("text", ["raise OSError('on fire')", "def (", "raise SystemExit(3)"])
def test_a_file_that_fails_while_it_is_imported(here, text):
    (here / "bad.py").write_text(text + "\n")
    for _ in range(2):  # it isn't left half imported
        with pytest.raises(EnvError) as caught:
            make_env(EnvConfig("./bad.py:Mine"))
        assert "failed while it was made" in str(caught.value) and "bad.py" in caught.value.details["traceback"]


def test_an_env_that_fails_while_it_is_made():
    with pytest.raises(EnvError, match="OSError: no simulator here") as caught:
        make_env(EnvConfig(f"{HANDMADE}:Broken"))
    assert "handmade.py" in caught.value.details["traceback"]
    assert caught.value.remedy is None  # whoever keeps it, says where


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_an_env_without_a_space(space):
    with pytest.raises(EnvError, match=f"has no {space}") as caught:
        make_env(EnvConfig(f"{HANDMADE}:Undeclared", kwargs={"space": space}, max_episode_steps=5))
    assert caught.value.found == "nothing" and f"self.{space}" in str(caught.value.remedy)


def test_arguments_that_the_env_does_not_take():
    for env_id in ("CartPole-v1", f"{HANDMADE}:Counter"):
        with pytest.raises(RecipeError, match="unexpected keyword argument 'colour'"):
            make_env(EnvConfig(env_id, kwargs={"colour": "red"}))


def test_a_slip_within_an_env_is_not_laid_to_the_recipes_arguments(tmp_path):
    file = tmp_path / "slips.py"
    file.write_text(
        "def make(size=1):\n    return dict(a=1).get('a', default=size)\n\ndef other(size=1):\n    make(sise=size)\n"
    )
    for name in ("make", "other"):
        with pytest.raises(EnvError, match="failed while it was made: TypeError"):
            make_env(EnvConfig(f"{file}:{name}", kwargs={"size": 3}))


def test_wrappers_that_are_wrong():
    def wrapped(reference, **kwargs):
        return make_env(EnvConfig("CartPole-v1", wrappers=((reference, kwargs),)))

    with pytest.raises(RecipeError, match=r"env\.wrappers .*has no Scal"):
        wrapped(f"{HANDMADE}:Scal")
    with pytest.raises(RecipeError, match="unexpected keyword argument 'by'") as caught:
        wrapped(f"{HANDMADE}:Scale", by=2)
    assert "wrapper" in str(caught.value.remedy)
    with pytest.raises(RecipeError, match="names no class"):
        wrapped("gymnasium.wrappers")
    with pytest.raises(RecipeError, match=r"env\.wrappers .*nothing that makes an environment"):
        wrapped(f"{HANDMADE}:NUMBER")


def test_render_mode_reaches_the_env():
    assert make_env(EnvConfig(f"{HANDMADE}:Counter"), "rgb_array").unwrapped.render_mode == "rgb_array"
    assert make_env(EnvConfig("CartPole-v1"), "rgb_array").unwrapped.render_mode == "rgb_array"


def test_own_observations_and_those_that_algorithms_see():
    config = EnvConfig(f"{HANDMADE}:Spaces", kwargs={"kind": "discrete"}, frame_stack=2)
    own = make_own_env(config)
    assert own.observation_space == gymnasium.spaces.Discrete(4)
    assert as_box(own, config).observation_space.shape == make_env(config).observation_space.shape == (2, 4)


def test_threads_share_one_import_of_a_file(here):
    write(here / "mine.py")
    with (here / "mine.py").open("a") as file:
        file.write("import threading\nthreading.Event().wait(0.2)\nLast = Mine\n")  # time for the others to come
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(named, [f"{here / 'mine.py'}:Last"] * 4))
    assert len(set(found)) == 1
