"""The H-term as the algorithms use it: on in the actor's loss alone, off without a trace, learning, resuming."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from erlcli.algorithms import registry
from erlcli.algorithms.config.ppo import PPOConfig
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.h_term import deterministic_log_density, log_density
from erlcli.core.types import Box, EnvSpec, FinalObs, Rollout
from erlcli.engine import checkpoint
from erlcli.errors import RecipeError
from erlcli.recipe.load import load, validate

T, N, OBS, A = 16, 4, 3, 2
INF = float("inf")
ON = {"enabled": True, "min_steps": 32, "capacity": 1000, "horizon": 3, "trajectories": 4, "weight": 0.5,
      "interval": 1}  # fmt: skip
NAMES = [name for name, config in registry.configs().items() if "h_term" in config.model_fields]
OFF_POLICY = [name for name in NAMES if "replay" in registry.configs()[name].model_fields]
every_name = pytest.mark.parametrize("name", NAMES)


def make(name, h_term=None, normalize=None, **settings):
    config = registry.configs()[name]
    wanted = {
        "rollout_length": T, "batch_size": 16, "epochs": 2, "warmup_steps": 0, "updates_per_step": 0.5,
        "policy_delay": 1, "noise_std": 0.5, "replay": {"capacity": 4000}, "h_term": h_term or {}, **settings,
    }  # fmt: skip
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-1.0,) * A, (1.0,) * A), N
    )
    torch.manual_seed(0)
    return registry.implementation(name)(
        config.model_validate({k: v for k, v in wanted.items() if k in config.model_fields}),
        Context(spec, NetworkConfig((16,)), normalize or NormalizeConfig(), seed=3),
    )


def make_rollout(seed, end_share=0.2):
    source = torch.Generator().manual_seed(seed)
    terminated = torch.rand(T, N, generator=source) < end_share
    return Rollout(
        torch.randn(T + 1, N, OBS, generator=source), torch.rand(T, N, A, generator=source) * 2 - 1,
        torch.rand(T, N, generator=source), terminated, terminated & False, terminated | True,
        FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, OBS)),
        {"log_prob": torch.randn(T, N, generator=source) - 2}, 0,
    )  # fmt: skip


def train(algorithm, seeds):
    return [{name: float(value) for name, value in algorithm.update(make_rollout(seed), 0.0).items()} for seed in seeds]


def everything(algorithm):
    tensors, values = checkpoint.flatten(algorithm.state_dict())
    policy = {f"policy/{k}": v for k, v in algorithm.policy.state_dict().items()}
    return {k: v.clone() for k, v in {**tensors, **policy}.items()}, values


def same(first, second):
    (tensors, values), (others, other_values) = everything(first), everything(second)
    return values == other_values and tensors.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) for name, tensor in tensors.items()
    )  # fmt: skip


def test_who_has_it():
    assert {"ppo", "sac", "td3", "ddpg"} <= set(NAMES)
    assert {"mod_sac", "redq", "droq", "tqc", "crossq"} <= set(NAMES)
    assert not {"dqn", "qrdqn", "pqn"} & set(NAMES)


@every_name
def test_off_leaves_no_trace_and_a_weight_of_0_changes_no_weights(name):
    off, silent, on = make(name), make(name, {**ON, "weight": 0.0}), make(name, ON)
    metrics = [train(algorithm, range(5)) for algorithm in (off, silent, on)]
    assert off.h_term is None and "h_term" not in off.state_dict()
    assert not any(key.startswith("h_term") for row in metrics[0] for key in row)
    weights = [algorithm.policy.state_dict() for algorithm in (off, silent, on)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not all(torch.equal(weights[0][key], weights[2][key]) for key in weights[0])
    assert metrics[2][-1]["h_term/loss"] != 0.0
    assert metrics[2][-1]["h_term/steps"] >= 32


@every_name
def test_it_waits_until_there_is_enough(name):
    off, on = make(name), make(name, {**ON, "min_steps": 480})
    for seed in range(6):
        off.update(make_rollout(seed), 0.0)
        metrics = on.update(make_rollout(seed), 0.0)
    assert not on.h_term.ready and float(metrics["h_term/loss"]) == 0.0
    assert all(torch.equal(value, on.policy.state_dict()[key]) for key, value in off.policy.state_dict().items())


@every_name
def test_a_restored_learner_continues_bit_for_bit(name):
    first, second = make(name, ON), make(name, ON)
    train(first, range(4))
    first.restart(11)  # a restart point forgets what is open, in the run itself too
    state, policy = first.state_dict(), first.policy.state_dict()
    train(second, [50])
    if second.replay is not None:
        second.replay = make(name, ON).replay
        second.replay.add(first.replay.rollout(0, first.replay.end))
    second.policy.load_state_dict(policy)
    second.load_state_dict(state)
    second.restart(11)
    assert same(first, second)
    assert train(first, range(10, 13)) == train(second, range(10, 13))
    assert same(first, second)


def test_switched_on_at_a_resume_it_starts_with_nothing():
    off, on = make("ppo"), make("ppo", ON)
    train(off, range(3))
    train(on, range(1))
    fresh = make("ppo", ON)
    fresh.load_state_dict(off.state_dict())
    assert len(fresh.h_term.store) == 0 and not fresh.h_term.ready
    off.load_state_dict({**on.state_dict()})  # and off again: what it kept is left behind


def test_ppo_adds_the_term_to_the_loss_of_each_minibatch():
    """One minibatch, one epoch: the gradient is the sum of PPO's own and that of the term by hand."""
    settings = {"batch_size": T * N, "epochs": 1, "max_grad_norm": 1e9}
    gradients = []
    for h_term in ({}, ON):
        algorithm = make("ppo", h_term, NormalizeConfig(obs=True), **settings)
        if h_term:
            algorithm.h_term.add(make_rollout(0))
            algorithm.h_term.restart(5)
        algorithm.update(make_rollout(1), 0.0)
        gradients.append(algorithm.optimizer.grad.clone())
    by_hand = make("ppo", ON, NormalizeConfig(obs=True), **settings)
    by_hand.h_term.add(make_rollout(0))
    by_hand.h_term.restart(5)
    by_hand.prepare(make_rollout(1))  # takes in its observations
    by_hand.h_term.add(make_rollout(1))
    windows = by_hand.h_term.draw(by_hand.h_term._block)
    obs, action, gain = windows.obs[-1], windows.action[-1], windows.gain[-1]
    policy = by_hand.policy
    loss = -(gain * log_density(policy.distribution, policy.params(policy.features(obs)), action)).sum()
    by_hand.optimizer.grad.zero_()
    loss.backward()
    torch.testing.assert_close(gradients[1], gradients[0] + by_hand.optimizer.grad, atol=1e-6, rtol=1e-4)
    assert by_hand.optimizer.grad.abs().max() > 1e-3


@pytest.mark.parametrize("name", OFF_POLICY)
def test_actors_add_the_term_and_critics_do_not(name):
    algorithm = make(name, ON)
    algorithm.h_term.add(make_rollout(0))
    critic = torch.cat([p.detach().flatten().clone() for p in algorithm.critic.parameters()])
    policy, captured = algorithm.policy, []
    features = torch.randn(8, OBS, generator=torch.Generator().manual_seed(1))
    twin = make(name, ON)
    for a, on in ((algorithm, True), (twin, False)):
        actor = a.optimizers["actor"]
        a.generator.manual_seed(1)
        if on:
            assert a.h_term.step()
        else:
            a.h_term = None
        noise = () if name in ("ddpg", "td3") else (a.policy.noise((8,), a.generator, a.device),)
        a.learning_rate.fill_(0.0)  # no step, but the gradient is there
        a.actor_step(features, *noise)
        captured.append(actor.grad.clone())
    windows = make("ppo", ON).h_term  # the same episodes and seed
    windows.add(make_rollout(0))
    drawn = windows.draw(windows._block)
    obs, action, gain = drawn.obs[-1], drawn.action[-1], drawn.gain[-1]
    if name in ("ddpg", "td3"):
        log_prob = deterministic_log_density(policy.act_greedy(obs), action, policy.sigma)
    else:
        log_prob = log_density(policy.distribution, policy.params(policy.features(obs)), action)
    actor = algorithm.optimizers["actor"]
    actor.grad.zero_()
    (-(gain * log_prob).sum()).backward()
    torch.testing.assert_close(captured[0], captured[1] + actor.grad, atol=1e-5, rtol=1e-4)
    assert actor.grad.abs().max() > 1e-3
    assert torch.equal(critic, torch.cat([p.detach().flatten() for p in algorithm.critic.parameters()]))


# --- learning ---------------------------------------------------------------------------------------------------------


def tiny_envs():
    path = Path(__file__).parent.parent / "contract" / "envs" / "tiny.py"
    spec = importlib.util.spec_from_file_location("tiny_envs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(algorithm, env, rollouts, num_envs):
    """Train on gymnasium environments by hand, with reset at once; the mean greedy return afterwards."""
    envs = [env() for _ in range(num_envs)]
    generator = torch.Generator().manual_seed(0)
    obs = [e.reset(seed=i)[0] for i, e in enumerate(envs)]
    for k in range(rollouts):
        rows = []
        noise = algorithm.policy.noise((algorithm.rollout_length, num_envs), generator, torch.device("cpu"))
        for t in range(algorithm.rollout_length):
            now = torch.tensor(np.stack(obs))
            with torch.no_grad():
                action, extras = algorithm.policy.act(now, noise[t])
            steps = [e.step((2 + a.clamp(-1, 1)).numpy()) for e, a in zip(envs, action, strict=True)]
            rows.append((now, action, [s[1] for s in steps], [s[2] for s in steps], [s[3] for s in steps], extras))
            obs = [e.reset()[0] if s[2] or s[3] else s[0] for e, s in zip(envs, steps, strict=True)]
        columns = list(zip(*rows, strict=True))
        terminated, truncated = torch.tensor(columns[3]), torch.tensor(columns[4])
        algorithm.update(
            Rollout(
                torch.stack([*columns[0], torch.tensor(np.stack(obs))]), torch.stack(columns[1]),
                torch.tensor(columns[2]), terminated, truncated, terminated | True,
                FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1)),
                {key: torch.stack([row[key] for row in columns[5]]) for key in columns[5][0]}, k,
            ),
            k / rollouts,
        )  # fmt: skip
    grid = torch.linspace(-1, 1, 41).unsqueeze(-1)
    with torch.no_grad():
        chosen = 2 + algorithm.policy.act_greedy(grid).clamp(-1, 1)
    return -float((chosen - 2 + 0.5 * grid).abs().mean())


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "ddpg"])
def test_it_learns_with_the_term_on(name):
    """`Target`: the action should be 2 - 0.5 x; a constant costs 0.25."""
    config = registry.configs()[name]
    wanted = {
        "rollout_length": 16, "batch_size": 32, "epochs": 4, "learning_rate": 1e-2, "warmup_steps": 200,
        "updates_per_step": 0.25, "tau": 0.5, "replay": {"capacity": 3000},
        "h_term": {"enabled": True, "min_steps": 256, "capacity": 2048, "weight": 0.02, "horizon": 1},
    }  # fmt: skip
    env = tiny_envs().Target
    spec = EnvSpec(Box((1,), "float32", (-1.0,), (1.0,)), Box((1,), "float32", (1.0,), (3.0,)), 8)
    torch.manual_seed(1)
    algorithm = registry.implementation(name)(
        config.model_validate({k: v for k, v in wanted.items() if k in config.model_fields}),
        Context(spec, NetworkConfig((32,)), seed=1),
    )
    score = play(algorithm, env, 32, 8)
    assert algorithm.h_term.ready and algorithm.h_term._count == 0
    assert score > -0.08


# --- the recipe section -----------------------------------------------------------------------------------------------


def test_a_store_that_is_too_small_is_refused():
    data = {
        "train": {"total_steps": 100_000}, "env": {"id": "Pendulum-v1", "num_envs": 16},
        "algorithm": {"name": "ppo", "rollout_length": 128, "h_term": {"enabled": True, "capacity": 8000}},
    }  # fmt: skip
    with pytest.raises(RecipeError, match=r"algorithm\.h_term\.capacity") as caught:
        validate(data, "test")
    assert "8192" in caught.value.expected
    data["algorithm"]["h_term"]["enabled"] = False
    assert validate(data, "test").algorithm.h_term.capacity == 8000


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_sections_check_it_too(name):
    config = registry.configs()[name].model_validate({"h_term": {"enabled": True, "capacity": 100}})
    assert "h_term.capacity" in config.problems(4)


def test_the_recipes_with_the_term_differ_from_those_without_in_it_alone():
    with_it, without = load("hopper_ppo_h"), load("hopper_ppo")
    assert with_it.algorithm.h_term.enabled and not without.algorithm.h_term.enabled
    first, second = with_it.to_toml(), without.to_toml()
    assert first["algorithm"].pop("h_term") != second["algorithm"].pop("h_term")
    assert first == second
    assert load("hopper_sac_h").algorithm.h_term.enabled


def test_its_defaults_are_those_of_the_settings():
    algorithm = make("ppo", {"enabled": True})
    config = PPOConfig.model_validate({}).h_term.model_dump(exclude={"enabled", "capacity"})
    assert {name: getattr(algorithm.h_term.settings, name) for name in config} == config
