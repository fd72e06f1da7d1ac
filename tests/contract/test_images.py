"""What every algorithm has to do with images, and with images beside numbers."""

from pathlib import Path

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.types import Box, Discrete
from erlcli.engine import build, checkpoint
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.learner import StopFlag, assemble
from erlcli.envs.config import env_config
from erlcli.runs.jsonl import read
from erlcli.runs.writer import Heartbeat

IMAGES = Path(__file__).parent / "envs" / "images.py"
NAMES = list(registry.configs())
CHOICE, NUMBER = Discrete(3), Box((1,), "float32", (-1.5,), (1.5,))
CNN = {"hidden": [32], "activation": "relu"}
LEARN = {"learning_rate": 2e-3, "rollout_length": 16, "batch_size": 64}
EAGER = {
    "dqn": {"updates_per_step": 0.5},
    "sac_discrete": {"updates_per_step": 0.5, "tau": 0.1, "target_interval": 1, "target_entropy_share": 0.1},
    "sac": {"updates_per_step": 0.5, "tau": 0.1, "target_interval": 1, "alpha": 0.05, "learn_alpha": False},
}

every_algorithm = pytest.mark.parametrize("name", NAMES)


def discrete(name):
    return registry.implementation(name).supports.accepts(CHOICE)


def make(make_run, name, env, **sections):
    options = {**LEARN, **EAGER.get(name, {}), **sections.pop("algorithm", {})}
    network = {**CNN, **sections.pop("network", {})}
    where = {"id": f"{IMAGES}:{env}", "num_envs": 8}
    return make_run(name, "Bandit", env=where, network=network, algorithm=options, **sections)


def mean_return(run, policy):
    evaluation = Evaluation(env_config(run.recipe.env, 10), seed=3)
    scores = evaluation.run(policy, range(100))
    evaluation.close()
    return sum(scores.returns) / len(scores.returns)


@pytest.mark.parametrize(
    ("name", "env", "threshold", "steps"),
    [
        ("ppo", "Dot", 0.97, 8192),
        ("dqn", "Dot", 0.97, 4096),
        pytest.param("sac_discrete", "Dot", 0.97, 4096, marks=pytest.mark.slow),
        pytest.param("ppo", "Both", 0.95, 24_576, marks=pytest.mark.slow),
        pytest.param("dqn", "Both", 0.95, 8192, marks=pytest.mark.slow),
        pytest.param("sac", "BothTarget", -0.2, 6144, marks=pytest.mark.slow),
    ],
)
def test_it_learns_to_look(name, env, threshold, steps, make_run):
    run = make(make_run, name, env, train={"total_steps": steps})
    trained = run.train()
    assert mean_return(run, trained.policy) >= threshold


def test_a_dict_needs_both_of_its_parts(make_run):
    """With the number hidden, the image is worth nothing: what `Both` tests is that both arrive."""
    run = make(make_run, "dqn", "Both", train={"total_steps": 2048})
    policy = run.train().policy
    with run.sampler() as (sampler, _):
        sampler.restart(policy, 0, 5, 1)
        rollout = sampler.recv()
    obs = rollout.obs.clone()
    assert obs.dtype == torch.uint8
    before = policy.values(policy.features(obs))
    obs[..., : 3 * 4] = 0  # the three floats of `shift` come first in a row
    assert not torch.equal(before, policy.values(policy.features(obs)))


@every_algorithm
@pytest.mark.parametrize("normalize", [False, True])
def test_images_stay_bytes_until_the_network(name, normalize, make_run):
    env = "DriftingChoice" if discrete(name) else "Drifting"
    run = make(make_run, name, env, train={"total_steps": 512}, normalize={"obs": normalize})
    with run.sampler() as (sampler, algorithm):
        sampler.restart(algorithm.policy, 0, 5, 8)
        for version in range(2):
            rollout = sampler.recv()
            assert rollout.obs.dtype == torch.uint8 and rollout.final_obs.obs.dtype == torch.uint8
            algorithm.update(rollout, 0.0)
            sampler.send(algorithm.policy, version + 1)
        if algorithm.replay is not None:
            batch = algorithm.replay.sample(4, torch.Generator().manual_seed(0))
            assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
        normalizer = algorithm.policy.normalizer
        assert (normalizer is not None) == normalize
        if normalizer is not None:  # of the numbers alone
            assert normalizer.shift.shape == ((3,) if discrete(name) else (1,))


@pytest.mark.parametrize("env", ["Dot", "Both"])
def test_a_run_tells_where_nothing_can_be_normalised(env, make_run):
    run = make(make_run, "ppo", env, normalize={"obs": True})
    beat = Heartbeat(run.layout, "learner")
    cpu = torch.device("cpu")
    _, sampler = assemble(run.layout, run.recipe, 1, StopFlag(run.layout), beat, run.events, cpu)
    sampler.close()
    beat.close()
    told = [row["message"] for row in read(run.layout.events("learner")) if row["event"] == "normalize"]
    assert len(told) == (env == "Dot")
    assert all("normalize.obs does nothing here" in message for message in told)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("ppo", "dqn", "sac") else pytest.mark.slow) for name in NAMES]
)
def test_a_run_on_images_restored_from_a_checkpoint_ends_like_one_that_was_never_cut(name, make_run):
    env = "DriftingChoice" if discrete(name) else "Drifting"
    sections = {
        "train": {"total_steps": 512},
        "normalize": {"obs": True},
        "checkpoint": {"every_steps": 256},
    }
    whole = make(make_run, name, env, **sections)
    trained = whole.train()
    middle = next(p for p in checkpoint.numbered(whole.layout) if 0 < int(p.name) < 512)
    again = make(make_run, name, env, **sections).train(checkpoint.load(middle))
    states = [checkpoint.flatten(a.state_dict())[0] | dict(a.policy.state_dict()) for a in (trained, again)]
    assert set(states[0]) == set(states[1])
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


@every_algorithm
def test_the_policy_of_images_is_all_that_acting_needs(name, make_run):
    run = make(make_run, name, "Dot" if discrete(name) else "DotTarget", train={"total_steps": 256})
    trained = run.train()
    with run.sampler() as (sampler, _):
        alone = build.policy(run.recipe, sampler.spec)
        obs = torch.randint(0, 256, (6, *sampler.spec.obs.shape), dtype=torch.uint8)
    alone.load_state_dict(trained.policy.state_dict())
    assert torch.equal(alone.act_greedy(obs), trained.policy.act_greedy(obs))


@pytest.mark.parametrize("share", [False, True, None])
def test_ppo_shares_its_encoder_where_it_is_told_to(share, make_run):
    network = {} if share is None else {"share_trunk": share}
    run = make(make_run, "ppo", "Dot", train={"total_steps": 256}, network=network)
    trained = run.train()
    names = {name for name, _ in trained.critic.named_parameters()}
    assert trained.shared == (share is not False)
    assert names == {"body.0.weight", "body.0.bias"} if trained.shared else any("encoder" in name for name in names)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_sees_images_too(kind, make_run):
    network = {"recurrent": kind, "recurrent_hidden": 16}
    trained = make(make_run, "ppo", "DriftingChoice", train={"total_steps": 256}, network=network).train()
    assert trained.policy.memory.encoder is not None and not trained.shared
