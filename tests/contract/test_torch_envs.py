"""Environments as tensors through the whole engine, and the page that tells how to write one."""

import re
from pathlib import Path

import pytest
import torch

from erlcli.engine import build, checkpoint
from erlcli.engine.evaluate_torch import TorchEvaluation, make_evaluation
from erlcli.engine.loop import Loop
from erlcli.engine.samplers import InlineSampler
from erlcli.envs import probes
from erlcli.envs.check import CheckOptions
from erlcli.envs.config import EnvConfig, choose_backend, env_config
from erlcli.errors import RecipeError
from erlcli.recipe.load import load
from erlcli.runs.jsonl import read

PAGE = Path(__file__).parents[2] / "docs" / "torch_env.md"
AUTO = {"backend": "auto"}


def score(recipe, policy, episodes=60):
    """Mean return of a policy, as the evaluator plays it."""
    evaluation = make_evaluation(env_config(recipe.env, 1), seed=3)
    assert isinstance(evaluation, TorchEvaluation)
    returns = evaluation.run(policy, range(episodes)).returns
    return sum(returns) / len(returns)


def test_chasing_is_learnt_by_ppo(make_run):
    run = make_run(
        "ppo",
        "torch/PointChasing-v0",
        env=AUTO | {"num_envs": 128},
        train={"total_steps": 100_000},
        algorithm={"rollout_length": 24, "batch_size": 768, "epochs": 5, "learning_rate": 3e-3, "gamma": 0.99,
                   "gae_lambda": 0.95},
        normalize={"reward": True},
        network={"hidden": [64, 64]},
    )  # fmt: skip
    torch.manual_seed(0)
    untrained = score(run.recipe, build.policy(run.recipe, make_evaluation(env_config(run.recipe.env, 1), 0).spec))
    assert untrained < 0.0 and score(run.recipe, run.train().policy) > 4.0


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_off_policy_algorithms_take_their_rollouts(name, make_run):
    env = "torch/Pendulum-v1" if name == "sac" else "torch/CartPole-v1"
    run = make_run(name, env, env=AUTO | {"num_envs": 16, "max_episode_steps": 20}, train={"total_steps": 1600})
    with run.sampler() as (sampler, algorithm):
        sampler.restart(algorithm.policy, 0, 5, 9)
        for version in range(9):
            rollout = sampler.recv()
            algorithm.update(rollout, 0.0)
            sampler.send(algorithm.policy, version + 1)
        replay = algorithm.replay
        ended = (rollout.terminated | rollout.truncated).nonzero().tolist()
        assert ended and algorithm.updates > 0 and len(replay) == 9 * 16 * 16
        whole = replay.rollout(replay.end - len(rollout.reward), replay.end)
        found = {tuple(i): obs for i, obs in zip(whole.final_obs.index.tolist(), whole.final_obs.obs, strict=True)}
        assert sorted(found) == sorted(map(tuple, ended))
        for (t, n), obs in found.items():
            assert torch.equal(obs, rollout.next_obs[t, n]) and not torch.equal(obs, rollout.obs[t + 1, n])


def test_a_run_restored_from_a_checkpoint_ends_like_one_that_was_never_cut(make_run):
    sections = {
        "env": AUTO | {"num_envs": 32, "max_episode_steps": 40},
        "train": {"total_steps": 32 * 16 * 8},
        "checkpoint": {"every_steps": 32 * 16 * 4},
        "normalize": {"obs": True, "reward": True},
    }
    whole = make_run("ppo", "torch/PointChasing-v0", **sections)
    trained = whole.train()
    middle = next(p for p in checkpoint.numbered(whole.layout) if int(p.name) == 32 * 16 * 4)
    resumed = make_run("ppo", "torch/PointChasing-v0", **sections)
    again = resumed.train(checkpoint.load(middle))
    for key, tensor in trained.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[key], tensor), key
    rows, others = ([{k: v for k, v in r.items() if "time/" not in k} for r in read(run.layout.metrics)] for run in (
        whole, resumed))  # fmt: skip
    assert len(others) == 4 and rows[-4:] == others


def test_workers_are_refused_with_a_reason(make_run):
    recipe = make_run("ppo", "torch/CartPole-v1", env=AUTO, engine={"workers": 2}).recipe
    with pytest.raises(RecipeError, match=r"engine\.workers: torch/CartPole-v1 is stepped as tensors"):
        build.check_placement(recipe)
    build.check_placement(make_run("ppo", "CartPole-v1", engine={"workers": 2}).recipe)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The folder with the page's two files in it, just as they are printed."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    (tmp_path / "carts.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "carts.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    return tmp_path


def test_the_example_of_the_page_has_no_faults(page):
    assert choose_backend(EnvConfig("./carts.py:Carts"))[0] == "torch"
    names = [name for name in probes.PROBES if name not in ("speed", "render")]
    findings = list(probes.run(CheckOptions(EnvConfig("./carts.py:Carts"), steps=500, only=tuple(names))))
    assert {f.status for f in findings} == {"ok"}, [f for f in findings if f.status != "ok"]
    told = {f.name: f.message for f in findings}
    assert told["make"].startswith("Carts") and told["tensors"].startswith("a step is tensor operations alone")
    assert told["time limit"] == "100 steps; reaching it truncates"


def test_the_example_of_the_page_learns(page, make_run):
    recipe = load("carts.toml")
    run = make_run("ppo", "Target")  # for its folder and events
    config = env_config(recipe.env, recipe.env.num_envs)
    sampler = InlineSampler(config, recipe.algorithm.rollout_length, *_silent(run), lambda: False, 0)
    algorithm = build.algorithm(recipe, sampler.spec, torch.device("cpu"))
    before = score(recipe, algorithm.policy)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"total_steps": 20 * 64 * 50})})
    Loop(run.layout, recipe, algorithm, sampler, *_silent(run), lambda: False, 1).run()
    assert before < -20 and score(recipe, algorithm.policy) > -8


def _silent(run):
    from erlcli.runs.writer import Heartbeat

    return Heartbeat(run.layout, "learner"), run.events
