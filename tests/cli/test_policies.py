"""`erl eval` and `erl export` of several policies: what can be named, how, and what is refused."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
import typer
from typer.testing import CliRunner

from erlcli.cli.eval import evaluate
from erlcli.cli.export import export
from erlcli.cli.policies import Ensemble, parse_ensemble
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.load_policy import load_policy
from erlcli.engine.plan import resolve
from erlcli.envs.config import env_config
from erlcli.errors import RecipeError
from erlcli.recipe.load import dump, load
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

PPO = "name = 'ppo'\nrollout_length = 8\nbatch_size = 16\n"
DQN = "name = 'dqn'\nbatch_size = 16\n"
SAC = "name = 'sac'\nbatch_size = 16\n"
RECIPE = """
[train]
total_steps = 1000
seed = {seed}
[env]
id = "{env}"
num_envs = 2
[eval]
num_envs = 4
[network]
hidden = [{width}]
[normalize]
{normalize}
[algorithm]
{algorithm}
"""

app = typer.Typer()
app.command("eval")(evaluate)
app.command("export")(export)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error_of(result):
    assert isinstance(result.exception, RecipeError), result.output + repr(result.exception)
    assert result.exception.exit_code == 2
    return result.exception


@pytest.fixture
def make(tmp_path):
    """Builds a run with an untrained policy as its best and as restart point at 100 steps."""

    def run(name, algorithm=PPO, env="CartPole-v1", seed=0, width=8, normalize=""):
        layout = RunLayout(tmp_path / name)
        layout.create()
        layout.recipe.write_text(
            RECIPE.format(seed=seed, env=env, width=width, normalize=normalize, algorithm=algorithm)
        )
        recipe = resolve(load(layout.recipe), "gymnasium")
        layout.recipe.write_text(dump(recipe))
        evaluation = Evaluation(env_config(recipe.env, 1), 1)
        evaluation.close()
        write_json(layout.spec, evaluation.spec.to_json())
        made = build.algorithm(recipe, evaluation.spec, torch.device("cpu"))
        with torch.no_grad():
            for parameter in made.policy.parameters():
                parameter.mul_(3.0)
        state = {"steps": 100, "version": 4, "return_mean": 6.0, "return_std": 1.0, "episodes": 10, "seconds": 1.0}
        checkpoint.set_best(layout, made.policy.state_dict(), state)
        saved = Checkpoint(made.policy.state_dict(), made.state_dict(), state)
        checkpoint.save(layout.checkpoints / checkpoint.name_of(100), saved)
        return layout.root

    return run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("mean", Ensemble("mean", None)),
        ("vote", Ensemble("vote", None)),
        ("5", Ensemble("mean", 5)),
        ("5,vote", Ensemble("vote", 5)),
        ("vote, 12", Ensemble("vote", 12)),
    ],
)
def test_what_ensemble_takes(text, expected):
    assert parse_ensemble(text) == expected


@pytest.mark.parametrize("text", ["", "median", "0", "5,5", "mean,vote", "-3", "5,", "2.5"])
def test_what_it_does_not_take(text):
    with pytest.raises(RecipeError, match="not understood"):
        parse_ensemble(text)


def test_members_of_different_algorithms_and_networks(make):
    runs = [make("one"), make("two", seed=1, width=16, normalize="obs = true"), make("three", DQN, seed=2)]
    result = call("eval", *runs, "--ensemble", "vote", "--episodes", 6, "--json")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert (row["episodes"], row["algorithm"], row["run"], row["steps"]) == (6, "ppo+dqn", None, None)
    assert row["ensemble"]["rule"] == "vote"
    members = row["ensemble"]["members"]
    assert [(m["name"], m["algorithm"], m["steps"]) for m in members] == [
        ("one", "ppo", 100), ("two", "ppo", 100), ("three", "dqn", 100)
    ]  # fmt: skip
    text = call("eval", *runs, "--ensemble", "mean", "--episodes", 4).stdout
    assert "CartPole-v1, ppo+dqn, mean of 3 policies: 4 episodes, seed 1" in text
    assert "  member  three, dqn at 100 steps" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_an_ensemble_of_one_scores_as_the_run_itself(make):
    run = make("one")
    alone = json.loads(call("eval", run, "--episodes", 5, "--json").stdout)
    same = json.loads(call("eval", run, "--episodes", 5, "--ensemble", "mean", "--json").stdout)
    for key in ("return_mean", "return_std", "length_mean"):
        assert alone[key] == same[key]
    assert alone["ensemble"] is None


def test_checkpoints_and_snapshots_are_named_by_their_path(make, capfd):
    run = make("one")
    folder = run / "checkpoints" / checkpoint.name_of(100)
    snapshot = checkpoint.save_snapshot(RunLayout(run), load_policy(RunLayout(run)).policy.state_dict(), 64, {})
    row = json.loads(call("eval", folder, "--episodes", 2, "--json").stdout)
    assert row["checkpoint_path"] == str(folder)
    row = json.loads(call("eval", folder, snapshot, "--ensemble", "mean", "--episodes", 2, "--json").stdout)
    assert [member["steps"] for member in row["ensemble"]["members"]] == [100, 64]
    result = call("eval", run, run / "checkpoints" / "best", "--ensemble", "mean", "--episodes", 2, "--json")
    assert len(json.loads(result.stdout)["ensemble"]["members"]) == 1
    assert "named twice, counts once" in result.stderr


def test_refusals_name_what_differs(make, tmp_path):
    one, walker = make("one"), make("walker", SAC, "Pendulum-v1")
    error = error_of(call("eval", one, walker, "--ensemble", "mean"))
    assert "another observation space" in error.message
    assert (error.expected[:18], error.found[:18]) == ("Box of shape [4], ", "Box of shape [3], ")
    error = error_of(call("eval", walker, "--ensemble", "vote"))
    assert "continuous" in error.found
    assert "mean" in error.remedy
    assert "2 policies are named" in error_of(call("eval", one, walker)).message
    assert "a number is for tournaments" in error_of(call("eval", one, "--ensemble", "3")).message
    stray = tmp_path / "stray.safetensors"
    stray.write_bytes((one / "checkpoints" / "best" / "policy.safetensors").read_bytes())
    assert "outside of any run" in error_of(call("eval", stray)).message
    assert "not a run directory" in error_of(call("eval", tmp_path / "nothing")).message


def test_actions_of_other_bounds_are_no_unit_for_a_mean(make):
    one, two = make("one", SAC, "Pendulum-v1"), make("two", SAC, "Pendulum-v1", seed=1)
    spec = json.loads((two / "spec.json").read_text())
    spec["action"]["high"] = ["3.0"]
    write_json(two / "spec.json", spec)
    error = error_of(call("eval", one, two, "--ensemble", "mean"))
    assert "another action space" in error.message
    assert "within [-2, 3]" in error.found


def test_the_env_of_the_first_is_played_and_others_are_told(make):
    one, two = make("one"), make("two", seed=1)
    recipe = two / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[env]", "[env]\nmax_episode_steps = 7"))
    result = call("eval", one, two, "--ensemble", "mean", "--episodes", 2, "--json")
    assert "another [env] section than the first" in result.stderr
    result = call("eval", two, one, "--ensemble", "mean", "--episodes", 2, "--json")
    assert json.loads(result.stdout)["length_mean"] <= 7


@pytest.mark.parametrize("form", ["onnx", "torch", "safetensors"])
@pytest.mark.parametrize("rule", ["mean", "vote"])
def test_an_exported_ensemble_acts_like_it(make, tmp_path, form, rule):
    runs = [make("one", normalize="obs = true"), make("two", seed=1, width=16), make("three", DQN, seed=2)]
    out = tmp_path / {"onnx": "e.onnx", "torch": "e.pt2", "safetensors": "e.safetensors"}[form]
    result = call("export", *runs, "--ensemble", rule, "--out", out, "--json")
    assert result.exit_code == 0, result.output + repr(result.exception)
    row = json.loads(result.stdout)
    assert (row["format"], row["ensemble"], len(row["members"])) == (form, rule, 3)
    assert (row["observations"], row["differing_actions"]) == (1000, 0)
    assert row["max_error"] < 1e-4


def test_q_values_and_continuous_actions_export_too(make, tmp_path):
    for name, algorithm, env, rule in (
        ("q", DQN, "CartPole-v1", "vote"), ("qm", DQN, "CartPole-v1", "mean"), ("c", SAC, "Pendulum-v1", "mean")
    ):  # fmt: skip
        runs = [make(f"{name}-{seed}", algorithm, env, seed=seed) for seed in range(2)]
        out = tmp_path / f"{name}.safetensors"
        result = call("export", *runs, "--ensemble", rule, "--out", out, "--json")
        assert result.exit_code == 0, result.output + repr(result.exception)
    document = json.loads((tmp_path / "c.json").read_text())
    assert [member["name"] for member in document["members"]] == ["c-0", "c-1"]
    assert "network" not in document
    assert str(tmp_path) not in json.dumps(document)


def test_where_an_ensemble_goes_and_that_onnx_runs_alone(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [make("one", SAC, "Pendulum-v1"), make("two", SAC, "Pendulum-v1", seed=1)]
    result = call("export", *runs, "--ensemble", "mean")
    assert result.exit_code == 0, repr(result.exception)
    assert "mean of 2 policies" in result.stdout
    obs = np.asarray([[0.5, -0.5, 2.0]], np.float32)
    found = onnxruntime.InferenceSession("ensemble.onnx").run(["action"], {"obs": obs})[0]
    each = [load_policy(RunLayout(run)).policy.act_greedy(torch.from_numpy(obs)).detach().numpy() for run in runs]
    np.testing.assert_allclose(found, 2.0 * np.mean(each, axis=0), atol=1e-5)  # torque is within [-2, 2]
    call("export", runs[0], "--ensemble", "mean", "--format", "torch")
    assert (runs[0] / "export" / "ensemble.pt2").exists()


class Cup:
    """A tournament whose members have scores, checkpoints and a champion."""

    def __init__(self, root, make):
        self.root, self.seq = root / "cup", 0
        (self.root / "members").mkdir(parents=True)
        (self.root / "recipe.toml").write_text(load_tournament("tournament_cartpole").dump())
        self.rows = []
        for number, score in enumerate([10.0, 40.0, 30.0, 20.0]):
            name = f"m{number:03d}"
            make(f"cup/members/{name}", seed=number)
            self.add("spawn", member=name, parent=None, algorithm="ppo", steps=0, seed=number, changes={}, unit=name,
                     pods=1)  # fmt: skip
            self.add("slice_start", member=name, slot="cpu:0", from_steps=0, until_steps=100)
            self.add("slice_end", member=name, to_steps=100, why="budget")
            self.add("evaluate", member=name, kind="slice", steps=100, mean=score, std=1.0, episodes=20,
                     ci=[score - 1, score + 1])  # fmt: skip
        self.add("retire", member="m001", reason="killed by a user")

    def add(self, event, **facts):
        self.seq += 1
        with (self.root / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"seq": self.seq, "time": float(self.seq), "event": event, **facts}) + "\n")


def test_the_best_of_a_tournaments_board(make, tmp_path):
    cup = Cup(tmp_path, make)
    result = call("eval", cup.root, "--ensemble", "2", "--episodes", 3, "--json")
    assert result.exit_code == 0, repr(result.exception)
    row = json.loads(result.stdout)
    assert [member["name"] for member in row["ensemble"]["members"]] == ["m002", "m003"]  # m001 is retired
    assert row["run"] == str(cup.root)
    row = json.loads(call("eval", cup.root, "--ensemble", "vote", "--episodes", 3, "--json").stdout)
    assert (len(row["ensemble"]["members"]), row["ensemble"]["rule"]) == (3, "vote")  # all there are
    error = error_of(call("eval", cup.root, "--ensemble", "4"))
    assert (error.found, error.remedy) == ("3", "--ensemble 3")
    error = error_of(call("eval", cup.root))
    assert "no champion yet" in error.message
    assert f"erl resume {cup.root} goes on" in error.remedy  # nobody runs it: waiting would not help
    cup.add("promote", member="m002", rank=1, steps=100, mean=30.0, ci=[29.0, 31.0])
    for link in (None, "champions/m002-100"):
        if link is not None:
            (cup.root / "champion").symlink_to(link)
        error = error_of(call("eval", cup.root))
        assert "the champion's folder is gone" in error.message
        assert f"erl resume {cup.root} makes it again" in error.remedy


def test_of_a_tournament_the_champion_plays(make, tmp_path):
    cup = Cup(tmp_path, make)
    (cup.root / "champion").symlink_to("members/m002")
    row = json.loads(call("eval", cup.root, "--episodes", 3, "--json").stdout)
    assert row["ensemble"] is None
    assert row["checkpoint_path"].endswith("m002/checkpoints/best-000000000100")
    result = call("export", cup.root, "--format", "torch", "--json")
    assert json.loads(result.stdout)["file"].endswith("policy.pt2")
