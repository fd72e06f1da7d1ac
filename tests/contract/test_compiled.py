"""Compiled, every algorithm learns what it learns without, and acts as it does without."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from erlcli.algorithms import registry
from erlcli.core.actor import Actor
from erlcli.core.compiled import Compiler
from erlcli.engine import build
from erlcli.runs.jsonl import read

CPU = torch.device("cpu")
IMAGES = Path(__file__).parent / "envs" / "images.py"  # of 12 x 12 pixels, with numbers beside them
# A large epsilon: Adam divides by the root of squared gradients, which makes steps of the rounding of tiny ones.
SETTINGS = {
    "warmup_steps": 16,
    "updates_per_step": 0.05,
    "replay": {"prioritized": True},
    "adam_eps": 1e-2,
    "rms_eps": 1e-2,
}
REFUSALS = {"droq": {"critics' step", "actor's step"}}

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")


def state_of(algorithm):
    state = {"policy": algorithm.policy.state_dict(), **algorithm.state_dict()}
    return {str(path): leaf for path, leaf in enumerate(tree_flatten(state)[0]) if isinstance(leaf, torch.Tensor)}


def env_of(name):
    supports = registry.implementation(name).supports
    return "Corridor" if supports.discrete else "Target"


def pair(run, rollouts, directory, told):
    """The same algorithm twice over the same rollouts: as it is, and compiled."""
    torch.manual_seed(0)
    with run.sampler() as (sampler, plain):
        sampler.restart(plain.policy, 0, 1, 1000)
        compiler = Compiler(directory, told.__setitem__)
        compiled = build.algorithm(run.recipe, sampler.spec, CPU, compiler=compiler)
        for _ in range(rollouts):
            rollout = sampler.recv()
            metrics = [algorithm.update(rollout, 0.5) for algorithm in (plain, compiled)]
    return plain, compiled, metrics


def assert_alike(plain, compiled, metrics):
    """Two algorithms, and the metrics of the last update of each, are the same but for rounding."""
    assert plain.updates == compiled.updates > 0
    for a, b in zip(state_of(plain).values(), state_of(compiled).values(), strict=True):
        if a.is_floating_point():  # as a whole: a rounded sum may be on the other side of a kink
            assert (a - b).double().norm() <= 1e-3 * (b.double().norm() + 1e-3)
        else:
            assert torch.equal(a, b)
    wanted, got = metrics
    assert wanted.keys() == got.keys()
    for key in wanted:
        torch.testing.assert_close(torch.as_tensor(got[key]), torch.as_tensor(wanted[key]), rtol=1e-3, atol=1e-4)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.configs()))
def test_it_learns_what_it_learns_without(name, make_run, tmp_path):
    told = {}
    normalize = {"obs": True, "reward": True}
    run = make_run(name, env_of(name), algorithm=SETTINGS, normalize=normalize)
    plain, compiled, metrics = pair(run, 4, tmp_path / "cache", told)
    assert told and {step for step, reason in told.items() if reason is not None} == REFUSALS.get(name, set())
    assert_alike(plain, compiled, metrics)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(registry.configs()) - set(REFUSALS)))
def test_with_small_images_it_learns_what_it_learns_without(name, make_run, tmp_path):
    told = {}
    env = "DriftingChoice" if env_of(name) == "Corridor" else "Drifting"
    where = {"id": f"{IMAGES}:{env}"}
    run = make_run(name, "Bandit", env=where, algorithm=SETTINGS, normalize={"obs": True})
    plain, compiled, metrics = pair(run, 4, tmp_path / "cache", told)
    assert told and set(told.values()) == {None}
    assert_alike(plain, compiled, metrics)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gymnasium", "envpool", "torch"])
def test_estimates_of_short_rollouts_are_what_they_are_without(backend, make_run, tmp_path):
    """Whichever way an environment tells of an episode's end: last observations apart, a step more, or all of both."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    told = {}
    settings = {**SETTINGS, "rollout_length": 8, "normalize_advantage": True}
    run = make_run("a2c", "CartPole-v1", algorithm=settings, normalize={"obs": True, "reward": True},
                   env={"backend": backend})  # fmt: skip
    plain, compiled, metrics = pair(run, 20, tmp_path / "cache", told)
    assert told == {"gradient step": None, "estimates": None}
    assert_alike(plain, compiled, metrics)
    assert torch.equal(plain.reward_normalizer.moments.count, compiled.reward_normalizer.moments.count)
    assert plain.reward_normalizer.moments.count > 20 * 8 * 7  # most rows of most rollouts


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "td3", "sac"])
def test_with_the_h_term_it_learns_what_it_learns_without(name, make_run, tmp_path):
    told = {}
    h_term = {"enabled": True, "min_steps": 32, "trajectories": 4}
    run = make_run(name, "Target", algorithm={**SETTINGS, "h_term": h_term}, normalize={"obs": True})
    plain, compiled, metrics = pair(run, 6, tmp_path / "cache", told)
    actor = "gradient step" if name == "ppo" else "actor's step"
    assert told.items() >= {actor: None, f"{actor} with the H-term": None}.items()
    assert float(metrics[1]["h_term/loss"]) != 0.0
    assert_alike(plain, compiled, metrics)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.configs()))
def test_it_acts_as_it_does_without(name, make_run, tmp_path):
    told = {}
    run = make_run(name, env_of(name), algorithm=SETTINGS, normalize={"obs": True}, engine={"compile": "on"})
    with run.sampler() as (sampler, algorithm):
        policy = algorithm.policy
        plain, compiled = Actor(policy), build.actor(run.recipe, policy, Compiler(tmp_path, told.__setitem__))
        sampler.restart(policy, 0, 1, 1000)
        for _ in range(2):  # at random during the warm-up, and after it
            rollout = sampler.recv()
            noise = policy.rollout_noise(16, rollout.obs.shape[1], torch.Generator(), CPU)
            for obs, drawn in zip(rollout.obs, noise, strict=False):
                with torch.inference_mode():
                    torch.testing.assert_close(compiled(obs, drawn), plain(obs, drawn))
            algorithm.update(rollout, 0.5)
    assert told == {"acting": None}


@needs_compiler
@pytest.mark.slow
def test_workers_act_compiled_and_the_first_tells(make_run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rollouts = []
    for compiled in ("on", "off"):
        run = make_run("ppo", "Target", normalize={"obs": True}, engine={"compile": compiled, "workers": 2})
        with run.sampler() as (sampler, algorithm):
            sampler.restart(algorithm.policy, 0, 1, 1000)
            rollouts.append(copy.deepcopy(sampler.recv()))  # out of the shared memory
        told = [row["message"] for row in read(run.layout.events("learner"))]
        expected = ["compiling the acting, once for this recipe on this machine", "compiled: the acting"]
        assert told == (expected if compiled == "on" else [])
    assert len(list((tmp_path / "cache" / "erl" / "compiled").glob("*/*.so"))) == 1
    torch.testing.assert_close(rollouts[0].action, rollouts[1].action, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(rollouts[0].extras, rollouts[1].extras, rtol=1e-3, atol=1e-3)
