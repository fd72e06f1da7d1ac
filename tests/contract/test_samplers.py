"""Where rollouts come from must not matter: inline, from worker processes, and with lag.

Every algorithm is tried, since what its policy does within a worker is its own; those that act by the same class as one
before them are slow tests, for each starts processes.
"""

import copy
from dataclasses import replace

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.types import Box, Discrete

DRIFT = {"Drift": Box((2,), "float32", (-1.0,) * 2, (1.0,) * 2), "DiscreteDrift": Discrete(4)}


def drifts(name):
    """The envs of `DRIFT` that an algorithm can act in."""
    supports = registry.implementation(name).supports
    return [env for env, action in DRIFT.items() if supports.accepts(action)]


def acting(name):
    """What makes an algorithm's policy."""
    found = registry.implementation(name)
    return found.build_policy.__func__, getattr(found, "policy_class", None)


NAMES = list(registry.configs())
FIRST = list({acting(name): name for name in reversed(NAMES)}.values())
MARKS = {name: () if name in FIRST else pytest.mark.slow for name in NAMES}
CASES = [pytest.param(name, env, marks=MARKS[name]) for name in NAMES for env in drifts(name)]
every_algorithm = pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in NAMES])
# What doesn't depend on how a policy acts: one that learns from rollouts, one from a replay.
KINDS = ("a2c", "d3qn")
both_kinds = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in NAMES]
)


def disturb(policy, version):
    """Another policy for every version, without an update: samplers don't care where weights come from."""
    source = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=source) * 0.1)


def collect(run, rollouts, stretches=1):
    """Rollouts of some stretches between restart points, and the policy of each version by number."""
    found, policies = [], {}
    with run.sampler() as (sampler, algorithm):
        policy, version = algorithm.policy, 0
        for stretch in range(stretches):
            policies[version] = copy.deepcopy(policy)
            sampler.restart(policy, version, 100 + stretch, rollouts)
            for k in range(rollouts):
                found.append(copy.deepcopy(sampler.recv()))
                version += 1
                disturb(policy, version)
                policies[version] = copy.deepcopy(policy)
                if k < rollouts - 1:
                    sampler.send(policy, version)
    return found, policies


def assert_same_rollouts(first, second):
    assert len(first) == len(second)
    for k, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.version == other.version, k
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(one, name), getattr(other, name)), (k, name)
        assert torch.equal(one.final_obs.index, other.final_obs.index), k
        assert torch.equal(one.final_obs.obs, other.final_obs.obs), k
        assert set(one.extras) == set(other.extras)
        assert all(torch.equal(one.extras[key], other.extras[key]) for key in one.extras), k


@pytest.mark.parametrize(("name", "env"), CASES)
def test_one_worker_gives_what_the_inline_sampler_gives(name, env, make_run):
    inline, _ = collect(make_run(name, env), rollouts=3, stretches=2)
    worker, _ = collect(make_run(name, env, engine={"workers": 1}), rollouts=3, stretches=2)
    assert_same_rollouts(inline, worker)
    assert [rollout.version for rollout in worker] == [0, 1, 2, 3, 4, 5]  # without lag, always the newest
    assert sum(len(rollout.final_obs.index) for rollout in inline) > 5


@both_kinds
def test_two_workers_with_lag_repeat_themselves_and_keep_to_their_versions(name, make_run):
    env = drifts(name)[0]
    runs = [collect(make_run(name, env, engine={"workers": 2, "lag": 1}), rollouts=4, stretches=2) for _ in range(2)]
    assert_same_rollouts(runs[0][0], runs[1][0])
    found, policies = runs[0]
    assert [rollout.version for rollout in found] == [0, 0, 1, 2, 4, 4, 5, 6]
    lives = [tuple(found[0].obs[:, n].flatten().tolist()) for n in range(8)]
    assert len(set(lives)) == 8, "two environments were seeded alike"
    for k, rollout in enumerate(found):
        if "log_prob" not in rollout.extras:
            continue
        # Not only the label: the actions are those of that version's weights, by their own log-probabilities.
        for version, policy in policies.items():
            log_prob = policy.distribution.log_prob(policy.params(policy.features(rollout.obs[:-1])), rollout.action)
            close = torch.allclose(log_prob, rollout.extras["log_prob"], atol=1e-4)
            assert close is (version == rollout.version), (k, version)


@every_algorithm
def test_a_rollout_goes_on_where_the_last_one_ended(name, make_run):
    found, _ = collect(make_run(name, drifts(name)[0]), rollouts=3)
    assert torch.equal(found[0].obs[-1], found[1].obs[0])
    assert torch.equal(found[1].obs[-1], found[2].obs[0])


@both_kinds
def test_training_with_one_worker_equals_training_inline(name, make_run):
    results = []
    for workers in (0, 1):
        run = make_run(
            name,
            drifts(name)[0],
            train={"total_steps": 512},
            engine={"workers": workers},
            normalize={"obs": True},
        )
        results.append(run.train().policy.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_a_policy_elsewhere_acts_by_a_copy_that_follows_it(make_run):
    """As on a GPU, with environments on the host: rollouts are those of the policy itself."""
    found = []
    for elsewhere in (False, True):
        run = make_run("ppo", "Drift")
        with run.sampler() as (sampler, algorithm):
            if elsewhere:  # the same device by another name
                sampler.spec = replace(sampler.spec, device=torch.device("cpu:0"))
            policy, rollouts = algorithm.policy, []
            sampler.restart(policy, 0, 100, 3)
            for version in range(1, 4):
                rollouts.append(copy.deepcopy(sampler.recv()))
                disturb(policy, version)
                sampler.send(policy, version)
            assert (sampler._copy is not None) == elsewhere
        found.append(rollouts)
    assert_same_rollouts(*found)
