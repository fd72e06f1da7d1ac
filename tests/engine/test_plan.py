"""When a run compiles its steps."""

import pytest
import torch

from erlcli.core.compiled import Compiler
from erlcli.engine import build
from erlcli.engine.plan import backend_of, resolve, worth_compiling
from erlcli.recipe.load import load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat


@pytest.mark.parametrize(
    ("recipe", "steps", "rows", "pays"),
    [
        ("cartpole_ppo", 5 * 200_000 / 512, 512, "off"),
        ("bipedal_ppo", 10 * 3_000_000 / 512, 512, "updates"),
        ("cartpole_dqn", 49_000 / 2, 128, "off"),
        ("halfcheetah_sac", 95_000, 256, "updates"),
        ("cartpole_a2c", None, None, None),
        ("cartpole_pqn", None, None, None),
    ],
)
def test_it_does_where_the_budget_pays_it_back(recipe, steps, rows, pays):
    made = load(recipe)
    algorithm, total, envs = made.algorithm, made.train.total_steps, made.env.num_envs
    if steps is not None:
        assert algorithm.gradient_steps(total, envs) == pytest.approx(steps) and algorithm.rows(envs) == rows
        assert worth_compiling(made) == pays
    assert resolve(made, "gymnasium").engine.compile == worth_compiling(made)


@pytest.mark.parametrize(("envs", "workers", "pays"), [(32, 0, "on"), (128, 0, "updates"), (32, 2, "on")])
def test_acting_compiles_where_many_steps_are_its_own(envs, workers, pays):
    budget, made = 4_000_000, [f"env.num_envs={envs}", f"engine.workers={workers}"]
    assert worth_compiling(load("bipedal_ppo", [*made, f"train.total_steps={budget}"])) == pays


def test_one_step_a_rollout_is_counted_as_such():
    made = load("cartpole_a2c")
    rows = made.algorithm.rollout_length * made.env.num_envs
    assert made.algorithm.rows(made.env.num_envs) == rows
    assert made.algorithm.gradient_steps(10 * rows, made.env.num_envs) == 10


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        (["engine.compile=on"], "torch"),
        (["train.total_steps=1_000_000_000"], "torch"),
        (["engine.compile=updates"], "gymnasium"),
        (["engine.compile=on", "engine.workers=2"], "gymnasium"),
        (["engine.compile=on", "env.backend=gymnasium"], "gymnasium"),
        (["engine.compile=on", "env.frame_stack=2"], "gymnasium"),
        (["engine.compile=on", "env.id=Acrobot-v1"], "gymnasium"),
    ],
)
def test_a_twin_is_taken_where_its_steps_are_compiled(settings, backend, monkeypatch):
    monkeypatch.setattr("erlcli.envs.config.ENVPOOL_IDS", frozenset())
    monkeypatch.setattr("erlcli.engine.plan.cxx", lambda: "g++")
    recipe = load("cartpole_ppo", settings)
    assert backend_of(recipe)[0] == backend
    monkeypatch.setattr("erlcli.engine.plan.cxx", lambda: None)
    assert backend_of(recipe)[0] == "gymnasium"


@pytest.mark.parametrize("wanted", ["on", "updates", "off"])
def test_what_the_recipe_says_is_done(wanted):
    for budget in (4096, 10**9):
        made = load("cartpole_ppo", [f"engine.compile={wanted}", f"train.total_steps={budget}"])
        assert resolve(made, "gymnasium").engine.compile == wanted


@pytest.mark.parametrize(
    ("wanted", "device", "compiled"),
    [
        ("on", "cpu", True),
        ("updates", "cpu", True),
        ("off", "cpu", False),
        ("auto", "cpu", False),
        ("on", "cuda", False),
    ],
)
def test_libraries_are_the_users_and_events_tell(wanted, device, compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layout = RunLayout(tmp_path / "run")
    layout.create()
    recipe = load("cartpole_ppo", [f"engine.compile={wanted}"])
    beat = Heartbeat(layout, "learner")
    beat.progress("env step")
    compiler: Compiler = build.compiler(recipe, torch.device(device), EventLog(layout, "learner", 1).write, beat)
    assert compiler.directory == (tmp_path / "cache" / "erl" / "compiled" if compiled else None)
    if compiled:
        compiler.begin("step")
        assert beat.phase == "compiling"  # what takes long there is no env that hangs
        compiler.tell("step", None)
        compiler.tell("other step", "it draws")
        assert [row["message"] for row in read(layout.events("learner"))] == [
            "compiling the step, once for this recipe on this machine",
            "compiled: the step",
            "not compiled: the other step: it draws",
        ]
    beat.close()
