"""Memories and masks through the whole engine: samplers, workers, restart points, evaluation.

Every algorithm that has them is tried.
"""

import copy
import subprocess
import sys

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.engine import build, checkpoint
from erlcli.engine.evaluate import Evaluation
from erlcli.envs.config import env_config
from erlcli.errors import RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView

REMEMBERING = [name for name, config in registry.configs().items() if config.remembers]
OBEYING = [name for name in registry.configs() if registry.implementation(name).supports.masks]
FORGETFUL = [name for name in registry.configs() if name not in REMEMBERING]
CELLS = ["lstm", "gru"]
MEMORY = {"hidden": [16], "recurrent_hidden": 8}


def sections(cell, env, **more):
    """Recipe sections for an env, with a memory where `cell` names one."""
    network = MEMORY | {"recurrent": cell} if cell is not None else {"hidden": [16]}
    masks = {"env": {"action_masks": "info"}} if env == "MaskedDrift" else {}
    return {"network": network, **masks, **more}


def collect(run, rollouts=3, stretches=2):
    found = []
    with run.sampler() as (sampler, algorithm):
        version = 0
        for stretch in range(stretches):
            sampler.restart(algorithm.policy, version, 100 + stretch, rollouts)
            for k in range(rollouts):
                found.append(copy.deepcopy(sampler.recv()))
                version += 1
                if k < rollouts - 1:
                    sampler.send(algorithm.policy, version)
    return found


def metric_rows(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read(run.layout.metrics)]


def test_somebody_has_them():
    assert {"ppo", "a2c"} <= set(REMEMBERING) and {"ppo", "a2c"} <= set(OBEYING)
    assert "dqn" in FORGETFUL


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize(("cell", "env"), [("lstm", "Drift"), ("gru", "MaskedDrift"), (None, "MaskedDrift")])
def test_one_worker_gives_what_the_inline_sampler_gives(name, cell, env, make_run):
    inline = collect(make_run(name, env, **sections(cell, env)))
    worker = collect(make_run(name, env, **sections(cell, env, engine={"workers": 1})))
    for one, other in zip(inline, worker, strict=True):
        for field in ("obs", "action", "reward", "terminated", "truncated", "valid", "mask"):
            first, second = getattr(one, field), getattr(other, field)
            assert (first is None and second is None) or torch.equal(first, second), field
        assert torch.equal(one.extras["log_prob"], other.extras["log_prob"])
        assert (one.start is None) == (other.start is None) == (cell is None)
        if one.start is not None:
            assert torch.equal(one.start.state, other.start.state)
            assert torch.equal(one.start.fresh, other.start.fresh)
        assert (one.mask is None) == (env != "MaskedDrift")
        if one.mask is not None:
            assert one.mask.gather(-1, one.action.unsqueeze(-1)).all() and not one.mask.all()
    assert sum(len(rollout.final_obs.index) for rollout in inline) > 5


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_at_a_rollouts_start_is_where_the_last_one_ended(cell, make_run):
    with make_run("ppo", "Drift", **sections(cell, "Drift")).sampler() as (sampler, algorithm):
        policy = algorithm.policy
        sampler.restart(policy, 0, 1, 4)
        state = torch.zeros(8, policy.state_size)
        for k in range(4):
            rollout = copy.deepcopy(sampler.recv())
            torch.testing.assert_close(rollout.start.state, state, atol=1e-6, rtol=1e-5)
            assert torch.equal(rollout.start.fresh, state.eq(0).all(-1))
            assert k == 0 or not rollout.start.fresh.all()
            ends = rollout.terminated | rollout.truncated
            for t in range(len(rollout.reward)):
                with torch.no_grad():
                    state = policy.step_greedy(rollout.obs[t], None, state)[1].masked_fill(ends[t].unsqueeze(-1), 0.0)
            if k < 3:
                sampler.send(policy, k + 1)


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize(("cell", "env"), [("lstm", "Drift"), ("gru", "MaskedDrift")])
def test_a_run_restored_from_a_checkpoint_ends_like_one_that_was_never_cut(name, cell, env, make_run):
    more = {
        "train": {"total_steps": 1024},
        "normalize": {"obs": True, "reward": True},
        "checkpoint": {"every_steps": 512},
    }
    whole, resumed = (make_run(name, env, **sections(cell, env, **more)) for _ in range(2))
    trained = whole.train()
    middle = next(p for p in checkpoint.numbered(whole.layout) if 0 < int(p.name) < 1024)
    again = resumed.train(checkpoint.load(middle))
    for one, other in ((trained.policy, again.policy), (trained.critic, again.critic)):
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        )
    assert metric_rows(whole)[-len(metric_rows(resumed)) :] == metric_rows(resumed)


@pytest.mark.parametrize("name", REMEMBERING)
def test_training_with_workers_equals_training_inline(name, make_run):
    results = []
    for workers in (0, 1):
        more = {"train": {"total_steps": 512}, "engine": {"workers": workers}}
        results.append(make_run(name, "MaskedDrift", **sections("gru", "MaskedDrift", **more)).train().policy)
    first, second = (policy.state_dict() for policy in results)
    assert all(torch.equal(first[key], second[key]) for key in first)


def score(policy, recipe, num_envs=10, episodes=60):
    evaluation = Evaluation(env_config(recipe.env, num_envs), seed=3)
    returns = evaluation.run(policy, range(episodes)).returns
    evaluation.close()
    return returns


# Cells differ in their equations, which have tests of their own.
@pytest.mark.parametrize("cell", [CELLS[0], *(pytest.param(cell, marks=pytest.mark.slow) for cell in CELLS[1:])])
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_learns_what_nothing_else_can(name, cell, make_run):
    # Without a bonus for entropy one seed of PPO in twenty is soon sure of a guess.
    own = {"ppo": {"entropy_coef": 0.01}, "a2c": {"rollout_length": 6, "learning_rate": 5e-3}}.get(name, {})
    more = {"train": {"total_steps": 12_000}, "algorithm": own}
    run = make_run(name, "Recall", **sections(cell, "Recall", **more))
    trained = run.train()
    returns = score(trained.policy, run.recipe)
    assert sum(returns) / len(returns) >= 0.99
    assert returns == score(trained.policy, run.recipe, num_envs=7), "each env has a memory of its own"
    forgetful = make_run(name, "Recall", **sections(None, "Recall", **more))
    assert sum(score(forgetful.train().policy, forgetful.recipe)) / len(returns) < 0.75


@pytest.mark.parametrize("name", FORGETFUL)
def test_who_has_no_memory_refuses_one(name, make_run):
    with pytest.raises(RecipeError, match=r"network\.recurrent") as caught:
        make_run(name, "Drift", network={"recurrent": "lstm"})
    assert "ppo" in caught.value.expected and caught.value.exit_code == 2


@pytest.mark.parametrize("name", [n for n in registry.configs() if n not in OBEYING])
def test_who_does_not_obey_masks_refuses_envs_with_masks(name, make_run):
    if not registry.implementation(name).supports.discrete:
        pytest.skip("continuous actions have no masks")
    run = make_run(name, "MaskedDrift", env={"action_masks": "info"})
    with pytest.raises(RecipeError, match="masks") as caught, run.sampler():
        pass
    assert "env.action_masks" in caught.value.remedy


def test_the_shipped_recipes_without_velocities_build(make_run):
    for name in ("cartpole_novel_ppo", "pendulum_novel_ppo"):
        recipe = load(name)
        evaluation = Evaluation(env_config(recipe.env, 1), seed=0)
        policy = build.policy(recipe, evaluation.spec)
        assert policy.state_size and len(evaluation.run(policy, [0]).returns) == 1
        evaluation.close()


@pytest.mark.slow
def test_cart_pole_without_velocities_needs_a_memory(tmp_path):
    """The shipped recipe comes to 475; without its memory nothing comes near."""
    best = []
    for cell in ("lstm", None):
        recipe = load("cartpole_novel_ppo", ["train.target_return=475"])
        network = recipe.network.model_copy(update={"recurrent": cell})
        path, layout = tmp_path / f"{cell}.toml", RunLayout(tmp_path / f"{cell}")
        path.write_text(dump(recipe.model_copy(update={"network": network})))
        command = [sys.executable, "-m", "erlcli", "train", path, "--run-dir", layout.root, "--no-tui"]
        subprocess.run(command, check=True, capture_output=True)
        view = RunView(layout)
        view.refresh()
        best.append(view.best["return_mean"])
    assert best[0] >= 475 and best[1] < 400
