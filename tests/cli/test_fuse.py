"""`erl fuse`: what comes of it is a run like any other."""

import json
import shutil

import pytest
import torch
import typer
from typer.testing import CliRunner

from erlcli.cli.eval import evaluate
from erlcli.cli.export import export
from erlcli.cli.fuse import fuse
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.load_policy import load_policy
from erlcli.engine.plan import resolve
from erlcli.envs.config import env_config
from erlcli.errors import DamagedError, RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import read_json, write_json
from erlcli.runs.layout import RunLayout, open_run

RECIPE = """
[train]
total_steps = 100_000
seed = {seed}
[env]
id = "CartPole-v1"
num_envs = 2
[eval]
num_envs = 4
[network]
hidden = [{width}]
[normalize]
obs = true
[checkpoint]
keep = 2
[engine]
compile = "off"
[algorithm]
name = '{algorithm}'
rollout_length = 8
batch_size = 16
"""

app = typer.Typer()
app.command("fuse")(fuse)
app.command("eval")(evaluate)
app.command("export")(export)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error_of(result, code=2):
    assert isinstance(result.exception, (RecipeError, DamagedError)), result.output + repr(result.exception)
    assert result.exception.exit_code == code
    return result.exception


@pytest.fixture
def make(tmp_path):
    """Builds a run with restart points of different weights."""

    def run(name, seed=0, width=8, algorithm="ppo", steps=(100, 200)):
        layout = RunLayout(tmp_path / name)
        layout.create()
        layout.recipe.write_text(RECIPE.format(seed=seed, width=width, algorithm=algorithm))
        recipe = resolve(load(layout.recipe), "gymnasium")
        layout.recipe.write_text(dump(recipe))
        evaluation = Evaluation(env_config(recipe.env, 1), 1)
        evaluation.close()
        write_json(layout.spec, evaluation.spec.to_json())
        for number in steps:
            torch.manual_seed(seed * 1000 + number)
            made = build.algorithm(recipe, evaluation.spec, torch.device("cpu"))
            with torch.no_grad():
                for parameter in made.policy.parameters():
                    parameter.add_(torch.randn(parameter.shape))
            made.policy.normalizer.update(torch.randn(number, 4))
            made.optimizer.exp_avg.normal_()
            state = {"steps": number, "version": 4, "updates": 1, "seconds": 1.5, "attempt": 1, "planned": True,
                     "episodes": {"episodes": 0, "returns": [], "lengths": []}}  # fmt: skip
            saved = Checkpoint(made.policy.state_dict(), made.state_dict(), state)
            checkpoint.save(layout.checkpoints / checkpoint.name_of(number), saved)
        return layout.root

    return run


def weights_of(run, steps):
    return checkpoint.load(run / "checkpoints" / checkpoint.name_of(steps))


def test_two_runs_become_one_that_every_command_takes(make, tmp_path):
    runs, out = [make("one"), make("two", seed=1)], tmp_path / "soup"
    result = call("fuse", *runs, "--out", out, "--weights", "3,1", "--json")
    assert result.exit_code == 0, repr(result.exception)
    row = json.loads(result.stdout)
    assert (row["run"], row["steps"], row["algorithm"]) == (str(out), 200, "ppo")
    assert [source["weight"] for source in row["sources"]] == [0.75, 0.25]
    parts, fused = [weights_of(run, 200) for run in runs], weights_of(out, 200)
    name = "network.0.weight"
    assert torch.allclose(fused.policy[name], 0.75 * parts[0].policy[name] + 0.25 * parts[1].policy[name], atol=1e-6)
    moments = [part.learner["optimizer"]["exp_avg"] for part in (*parts, fused)]
    assert torch.allclose(moments[2], 0.75 * moments[0] + 0.25 * moments[1], atol=1e-6)
    assert fused.policy["normalizer.moments.count"] == 400  # of two runs
    layout = open_run(out)
    assert load_policy(layout).facts["steps"] == load_policy(layout, "last").facts["steps"] == 200
    assert json.loads(call("eval", out, "--episodes", 3, "--json").stdout)["episodes"] == 3
    assert call("export", out, "--format", "torch").exit_code == 0
    assert read_json(layout.status)["state"] == "interrupted"
    assert load(layout.recipe).train.seed == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_it_trains_on(make, tmp_path):
    """The learner restores from it: the loop of training is built on its checkpoint and takes a step."""
    from erlcli.engine.learner import StopFlag, assemble
    from erlcli.runs.writer import EventLog, Heartbeat

    out = tmp_path / "soup"
    assert call("fuse", make("one"), make("two", seed=1), "--out", out).exit_code == 0
    layout = open_run(out)
    stop, events, beat = StopFlag(layout), EventLog(layout, "learner", 1), Heartbeat(layout, "learner")
    loop, sampler = assemble(layout, load(layout.recipe), 1, stop, beat, events, torch.device("cpu"))
    try:
        assert loop.counters.steps == 200
        loop.enough = lambda: loop.counters.steps >= 232
        loop.run()
        assert loop.counters.steps == 232
    finally:
        sampler.close()
        stop.set()
        beat.close("stopped")
        events.close()


def test_the_newest_checkpoints_of_one_run(make, tmp_path):
    run, out = make("one"), tmp_path / "soup"
    result = call("fuse", run, "--last", 2, "--out", out)
    assert result.exit_code == 0, repr(result.exception)
    assert "fused 2 checkpoints of ppo on CartPole-v1" in result.stdout
    assert "0.500    200.0 steps" in result.stdout or "0.500      200 steps" in result.stdout
    parts, fused = [weights_of(run, steps) for steps in (100, 200)], weights_of(out, 200)
    mean = (parts[0].policy["network.0.weight"] + parts[1].policy["network.0.weight"]) / 2
    assert torch.allclose(fused.policy["network.0.weight"], mean, atol=1e-6)
    assert fused.policy["normalizer.moments.count"] == 150  # of one run: its later statistics hold the earlier ones
    error = error_of(call("fuse", run, "--last", 3, "--out", tmp_path / "more"))
    assert "fewer than 3 restart points" in error.message
    assert "checkpoint.keep = 2" in error.remedy


def test_checkpoints_are_named_by_their_path(make, tmp_path):
    run, out = make("one"), tmp_path / "soup"
    folder = run / "checkpoints" / checkpoint.name_of(100)
    assert call("fuse", folder, run, "--out", out).exit_code == 0
    checkpoint.set_best(RunLayout(run), weights_of(run, 100).policy, {"steps": 100})
    error = error_of(call("fuse", run / "checkpoints" / "best", run, "--out", tmp_path / "x"))
    assert "no restart point" in error.message


def test_what_is_not_alike_is_refused_by_its_first_difference(make, tmp_path):
    one, out = make("one"), tmp_path / "soup"
    error = error_of(call("fuse", one, make("wide", width=16), "--out", out))
    assert (error.expected, error.found) == ("network.hidden = [8]", "network.hidden = [16]")
    error = error_of(call("fuse", one, make("q", algorithm="dqn"), "--out", out))
    assert (error.expected, error.found) == ("algorithm.name = ppo", "algorithm.name = dqn")
    assert not out.exists()


def test_other_misuse(make, tmp_path):
    one, two, out = make("one"), make("two", seed=1), tmp_path / "soup"
    assert "its own mean" in error_of(call("fuse", one, "--out", out)).message
    again = tmp_path / "again"
    again.symlink_to(one)
    for same in (one, again, two / ".." / one.name):
        assert "its own mean" in error_of(call("fuse", one, same, "--out", out)).message
    assert "not one for each" in error_of(call("fuse", one, two, "--weights", "1", "--out", out)).message
    for weights in ("a,b", "1,-1", "0,0", "", "nan,1"):
        assert "no weights" in error_of(call("fuse", one, two, "--weights", weights, "--out", out)).message
    assert "several runs" in error_of(call("fuse", one, two, "--last", 2, "--out", out)).message
    cup = tmp_path / "cup"
    cup.mkdir()
    (cup / "journal.jsonl").touch()
    assert "members" in error_of(call("fuse", cup, "--last", 2, "--out", out)).remedy
    assert "is there already" in error_of(call("fuse", one, two, "--out", one)).message
    damaged = one / "checkpoints" / checkpoint.name_of(200) / "policy.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "damaged" in error_of(call("fuse", one, two, "--out", out), code=6).message
    shutil.rmtree(two / "checkpoints")
    assert error_of(call("fuse", make("three"), two, "--out", out))
    assert not out.exists()
