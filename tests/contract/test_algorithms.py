"""What every algorithm has to do; a new one is found by itself."""

import copy
import json

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.algorithm import Algorithm
from erlcli.core.types import Box, Discrete, EnvSpec, MultiDiscrete
from erlcli.engine import build, checkpoint, compute
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.replay_parts import ReplaySpool
from erlcli.envs.config import env_config
from erlcli.errors import RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.load import load
from erlcli.runs.jsonl import read

NAMES = list(registry.configs())
INF = float("inf")
ACTIONS = {
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete((3, 2), (2,)),
    "continuous": Box((1,), "float32", (1.0,), (3.0,)),
}
# Env, least mean return that counts as learnt (see the optima in envs/tiny.py), kind of its actions.
TASKS = {
    "Bandit": (0.99, "discrete"),
    "PairBandit": (0.99, "multi_discrete"),
    "Target": (-0.08, "continuous"),
    "Corridor": (0.99, "discrete"),
}
SAMPLED = {"discrete": "DiscreteDrift", "continuous": "Drift"}

every_algorithm = pytest.mark.parametrize("name", NAMES)


def supports(name, kind):
    return registry.implementation(name).supports.accepts(ACTIONS[kind])


def tasks():
    return [(name, env) for name in NAMES for env, (_, kind) in TASKS.items() if supports(name, kind)]


def drift(name):
    """An env for samplers that the algorithm can act in."""
    return next(env for kind, env in SAMPLED.items() if supports(name, kind))


def state_of(algorithm):
    tensors, values = checkpoint.flatten(algorithm.state_dict())
    policy = {f"policy/{k}": v for k, v in algorithm.policy.state_dict().items()}
    return {k: v.clone() for k, v in {**tensors, **policy}.items()}, copy.deepcopy(values)


def assert_same_state(first, second):
    (tensors, values), (other_tensors, other_values) = state_of(first), state_of(second)
    assert set(tensors) == set(other_tensors) and values == other_values
    for key, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[key]), key


def metric_rows(run):
    """Metric rows without the columns that are time."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read(run.layout.metrics)]


@every_algorithm
def test_it_has_a_shipped_recipe(name):
    recipes = [load(path) for path in shipped.paths().values()]
    assert any(recipe.algorithm.name == name for recipe in recipes)


@every_algorithm
def test_its_config_is_documented_and_frozen(name):
    config = registry.configs()[name]
    found = registry.implementation(name)
    assert issubclass(found, Algorithm) and found.Config is config
    assert config.__doc__
    for key, field in config.model_fields.items():
        assert field.description, key
        assert not field.is_required(), f"{key} has no default"
    assert config.model_config["frozen"] and config.model_config["extra"] == "forbid"


@every_algorithm
def test_it_refuses_action_spaces_that_it_cannot_act_in(name, make_run):
    for env, (_, kind) in TASKS.items():
        run = make_run(name, env)
        spec = EnvSpec(Box((3,), "float32", (-INF,) * 3, (INF,) * 3), ACTIONS[kind], 8)
        if supports(name, kind):
            assert build.algorithm(run.recipe, spec, torch.device("cpu")).policy is not None
        else:
            with pytest.raises(RecipeError, match=r"algorithm\.name"):
                build.algorithm(run.recipe, spec, torch.device("cpu"))


@every_algorithm
def test_all_its_networks_begin_as_the_recipe_says(name, make_run):
    """Orthogonal layers have biases of 0; uniform ones have not, and are bounded by their number of inputs."""
    for init in ("orthogonal", "uniform"):
        with make_run(name, drift(name), network={"init": init, "hidden": [32, 32]}).sampler() as (_, algorithm):
            state, _ = checkpoint.flatten(algorithm.state_dict() | {"policy": algorithm.policy.state_dict()})
        layers = {k.rpartition(".")[0]: v for k, v in state.items() if k.endswith(".weight") and v.ndim == 2}
        layers |= {k: v.mT[0] for k, v in state.items() if ".weights." in k}
        assert layers
        for key, weight in layers.items():
            bias = state[f"{key}.bias"] if f"{key}.bias" in state else state[key.replace(".weights.", ".biases.")]
            assert bool(bias.any()) is (init == "uniform"), key
            if init == "uniform":
                assert weight.abs().max() <= weight.shape[-1] ** -0.5, key


@every_algorithm
def test_it_does_without_hidden_layers(name, make_run):
    run = make_run(name, drift(name), network={"hidden": []}, train={"total_steps": 256})
    assert run.train().updates > 0
    assert compute.threads(run.recipe) >= 1


@pytest.mark.parametrize(("name", "env"), tasks())
def test_it_learns_a_tiny_env(name, env, make_run):
    run = make_run(name, env)
    trained = run.train()
    evaluation = Evaluation(env_config(run.recipe.env, 10), seed=3)
    torch.manual_seed(0)
    untrained = build.policy(run.recipe, evaluation.spec)
    results = [evaluation.run(policy, range(60)) for policy in (untrained, trained.policy)]
    evaluation.close()
    before, after = (sum(r.returns) / len(r.returns) for r in results)
    threshold = TASKS[env][0]
    assert before < threshold, "it learnt nothing that chance doesn't know"
    assert after >= threshold


@every_algorithm
def test_metrics_are_finite_numbers_with_a_place_in_time(name, make_run):
    run = make_run(name, drift(name), train={"total_steps": 512})
    run.train()
    rows = read(run.layout.metrics)
    steps = [row["steps"] for row in rows]
    assert steps == sorted(steps) and steps[-1] >= 512
    assert rows[-1]["updates"] > 0
    for row in rows:
        assert all(isinstance(value, (int, float)) and value == value for value in row.values()), row


@every_algorithm
def test_equal_seeds_give_equal_runs(name, make_run):
    runs = [make_run(name, drift(name), train={"total_steps": 384, "seed": seed}) for seed in (4, 4, 5)]
    trained = [run.train() for run in runs]
    assert_same_state(trained[0], trained[1])
    assert metric_rows(runs[0]) == metric_rows(runs[1])
    assert metric_rows(runs[0]) != metric_rows(runs[2])


@every_algorithm
@pytest.mark.parametrize("normalize", [False, True])
def test_a_run_restored_from_a_checkpoint_ends_like_one_that_was_never_cut(name, normalize, make_run):
    sections = {
        "train": {"total_steps": 640},
        "normalize": {"obs": normalize, "reward": normalize},
        "checkpoint": {"every_steps": 384},
    }
    whole = make_run(name, drift(name), **sections)
    trained = whole.train()
    middle = next(p for p in checkpoint.numbered(whole.layout) if 0 < int(p.name) < 640)
    resumed = make_run(name, drift(name), **sections)
    again = resumed.train(checkpoint.load(middle))
    assert_same_state(trained, again)
    assert metric_rows(whole)[-len(metric_rows(resumed)) :] == metric_rows(resumed)
    first, second = (checkpoint.load(checkpoint.numbered(run.layout)[-1]) for run in (whole, resumed))
    assert all(torch.equal(first.policy[key], second.policy[key]) for key in first.policy)


@every_algorithm
def test_its_state_round_trips_through_a_checkpoint(name, make_run, tmp_path):
    trained = make_run(name, drift(name), train={"total_steps": 512}).train()
    learner = trained.state_dict()
    parts = ReplaySpool(tmp_path / "spool", trained.replay).flush() if trained.replay is not None else ()
    checkpoint.save(tmp_path / "saved", checkpoint.Checkpoint(trained.policy.state_dict(), learner, {}, parts))
    found = checkpoint.load(tmp_path / "saved")
    other = make_run(name, drift(name), train={"total_steps": 512, "seed": 9})
    with other.sampler() as (_, algorithm):
        algorithm.policy.load_state_dict(found.policy)
        if algorithm.replay is not None:
            ReplaySpool(tmp_path / "again", algorithm.replay).restore(found.replay)
        algorithm.load_state_dict(found.learner)
        assert algorithm.updates == trained.updates
        assert_same_state(algorithm, trained)
    _, values = checkpoint.flatten(learner)
    json.dumps(values, allow_nan=False)


@every_algorithm
def test_the_policy_is_all_that_acting_needs(name, make_run):
    """Workers and the evaluator build the policy alone, and load nothing but its state."""
    run = make_run(name, drift(name), train={"total_steps": 512}, normalize={"obs": True})
    trained = run.train()
    evaluation = Evaluation(env_config(run.recipe.env, 1), seed=0)
    spec = evaluation.spec
    evaluation.close()
    alone = build.policy(run.recipe, spec)
    alone.load_state_dict(trained.policy.state_dict())
    source = torch.Generator().manual_seed(0)
    obs = torch.randn(16, *spec.obs.shape, generator=source) * 3
    noise = alone.noise((16,), source, torch.device("cpu"))
    assert torch.equal(alone.act_greedy(obs), trained.policy.act_greedy(obs))
    actions = [policy.act(obs, noise) for policy in (alone, trained.policy)]
    assert torch.equal(actions[0][0], actions[1][0])
    assert all(torch.equal(actions[0][1][key], actions[1][1][key]) for key in actions[0][1])


@every_algorithm
@pytest.mark.parametrize("normalize", [False, True])
def test_acting_greedily_is_deterministic_and_leaves_no_trace(name, normalize, make_run):
    trained = make_run(
        name, drift(name), train={"total_steps": 512}, normalize={"obs": normalize, "reward": normalize}
    ).train()
    before = state_of(trained)
    torch.manual_seed(0)
    expected_draw = torch.rand(1)
    torch.manual_seed(0)
    obs = torch.randn(64, 2, generator=torch.Generator().manual_seed(1)) * 100
    copy_of_obs = obs.clone()
    with torch.no_grad():
        actions = [trained.policy.act_greedy(obs) for _ in range(3)]
        singles = torch.cat([trained.policy.act_greedy(obs[i : i + 1]) for i in range(64)])
    assert torch.equal(actions[0], actions[1]) and torch.equal(actions[0], actions[2])
    torch.testing.assert_close(singles, actions[0])  # no statistics over the batch
    assert torch.equal(torch.rand(1), expected_draw), "drew from the global stream"
    assert torch.equal(obs, copy_of_obs)
    after = state_of(trained)
    assert before[1] == after[1] and all(torch.equal(before[0][key], after[0][key]) for key in before[0])
    assert actions[0].shape == (64, *trained.policy.action_shape) and actions[0].dtype == trained.policy.action_dtype
