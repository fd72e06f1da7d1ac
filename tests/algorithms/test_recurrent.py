"""PPO and A2C with memories, and with masks, against loops that run each episode on its own.

Dimension letters: T time steps, N environments, S numbers of a state.
"""

import copy

import numpy as np
import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.batches import Batch, minibatches
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, MultiDiscrete, Rollout, Start

T, N, OBS, H = 20, 5, 3, 6
INF, NAN = float("inf"), float("nan")
ACTIONS = {
    "discrete": Discrete(4),
    "multi_discrete": MultiDiscrete((3, 2), (2,)),
    "continuous": Box((2,), "float32", (-1.0, -1.0), (1.0, 1.0)),
}
every_case = pytest.mark.parametrize(
    ("cell", "autoreset"), [(c, a) for c in ("lstm", "gru") for a in ("same_step", "next_step")]
)


def make(name="ppo", cell="lstm", kind="discrete", masked=False, init=0, normalize=None, **settings):
    settings = {"rollout_length": T, "learning_rate": 1e-3, "max_grad_norm": 1e9, **settings}
    config = registry.configs()[name]
    if name == "ppo":
        settings = {"batch_size": T * N, "epochs": 1, **settings}
    choices = {"discrete": 4, "multi_discrete": 5, "continuous": 0}[kind]
    spec = EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), ACTIONS[kind], N, mask=choices * masked)
    torch.manual_seed(init)
    network = NetworkConfig((8,), recurrent=cell, recurrent_hidden=H)
    algorithm = registry.implementation(name)(
        config.model_validate(settings), Context(spec, network, normalize or NormalizeConfig())
    )
    with torch.no_grad():
        for p in [*algorithm.policy.network[-1].parameters(), *algorithm.critic.parameters()]:
            p.add_(torch.randn(p.shape) * 0.3)
    return algorithm


def random_masks(source, kind, shape):
    nvec = (4,) if kind == "discrete" else (3, 2)
    parts = []
    for n in nvec:
        part = torch.rand(*shape, n, generator=source) < 0.5
        part.scatter_(-1, torch.randint(n, (*shape, 1), generator=source), True)
        parts.append(part)
    return torch.cat(parts, -1)


def make_rollout(algorithm, seed, autoreset="same_step", kind="discrete", masked=False, end_share=0.15):
    """Random observations, acted on step by step as a collector does it."""
    source = torch.Generator().manual_seed(seed)
    policy = algorithm.policy
    obs = torch.randn(T + 1, N, OBS, generator=source)
    terminated = torch.rand(T, N, generator=source) < end_share
    truncated = (torch.rand(T, N, generator=source) < end_share) & ~terminated
    valid = torch.ones(T, N, dtype=torch.bool)
    index, final = torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, OBS)
    if autoreset == "next_step":
        for t in range(1, T):
            valid[t] = ~((terminated[t - 1] | truncated[t - 1]) & valid[t - 1])
        terminated, truncated = terminated & valid, truncated & valid
    else:
        index = (terminated | truncated).nonzero()
        final = torch.randn(len(index), OBS, generator=source)
    mask = random_masks(source, kind, (T, N)) if masked else None
    fresh = torch.rand(N, generator=source) < 0.4
    start, state, rows = None, None, []
    noise = policy.rollout_noise(T, N, source, torch.device("cpu"))
    if policy.state_size:
        state = torch.randn(N, policy.state_size, generator=source).tanh().masked_fill(fresh.unsqueeze(-1), 0.0)
        start = Start(state.clone(), fresh)
    with torch.no_grad():
        for t in range(T):
            action, extras, state = policy.step(obs[t], noise[t], mask[t] if masked else None, state)
            rows.append((action, extras["log_prob"]))
            if state is not None:
                forget = (terminated | truncated)[t] if autoreset == "same_step" else ~valid[t]
                state = state.masked_fill(forget.unsqueeze(-1), 0.0)
    action, log_prob = (torch.stack(column) for column in zip(*rows, strict=True))
    reward = torch.randn(T, N, generator=source)
    return Rollout(
        obs,
        action,
        reward,
        terminated,
        truncated,
        valid,
        FinalObs(index, final),
        {"log_prob": log_prob},
        0,
        mask,
        start,
    )


def changed(rollout, **fields):
    return Rollout(**{**{f: getattr(rollout, f) for f in rollout.__dataclass_fields__}, **fields})


def weights(*modules):
    return torch.cat([p.detach().reshape(-1) for module in modules for p in module.parameters()])


def slow_values(critic, rollout, state):
    """V of every obs and of every final obs, each environment alone, by single steps."""
    value, final = np.zeros((T + 1, N)), {}
    places = {(t, n): i for i, (t, n) in enumerate(rollout.final_obs.index.tolist())}
    with torch.no_grad():
        for n in range(N):
            h = state[n : n + 1] * ~rollout.start.fresh[n]
            for t in range(T + 1):
                if t and (not rollout.valid[t - 1, n] or (t - 1, n) in places):
                    h = torch.zeros_like(h)
                value[t, n] = critic.after(rollout.obs[t, n : n + 1], h).item()
                h = critic.memory(rollout.obs[t, n : n + 1], h)[1]
                if (t, n) in places:
                    i = places[t, n]
                    final[t, n] = critic.after(rollout.final_obs.obs[i : i + 1], h).item()
                if t == T - 1:
                    state[n] = h[0]
    return value, final


@every_case
def test_values_are_those_of_the_memory_at_each_moment(cell, autoreset):
    algorithm = make(cell=cell, normalize_advantage=False, gae_lambda=0.0, gamma=0.9, learning_rate=0.0)
    state = torch.zeros(N, algorithm.critic.memory.state_size)
    for k in range(3):
        rollout = make_rollout(algorithm, k, autoreset)
        value, final = slow_values(algorithm.critic, rollout, state)
        batch, recurrence = algorithm.prepare(rollout)
        for row, place in enumerate(recurrence.sequences.rows.tolist()):
            t, n = divmod(place, N)
            following = 0.0 if rollout.terminated[t, n] else final.get((t, n), value[t + 1, n])
            advantage = rollout.reward[t, n].item() + 0.9 * following - value[t, n]
            assert batch.value[row].item() == pytest.approx(value[t, n], abs=1e-5), (k, t, n)
            assert batch.advantage[row].item() == pytest.approx(advantage, abs=1e-5), (k, t, n)


@every_case
@pytest.mark.parametrize("kind", sorted(ACTIONS))
@pytest.mark.parametrize("longest", [None, 4])
def test_the_ratio_starts_at_one(cell, autoreset, kind, longest):
    """So the states before sequences, restarts and the order of rows are those of acting."""
    masked = kind != "continuous"
    normalize = NormalizeConfig(obs=True)
    algorithm = make(cell=cell, kind=kind, masked=masked, normalize=normalize, clip_range=1e-3, sequence_length=longest)
    for k in range(3):
        rollout = make_rollout(algorithm, k, autoreset, kind, masked)
        metrics = {name: float(value) for name, value in algorithm.update(rollout, 0.0).items()}
        assert metrics["policy/clip_fraction"] == 0.0
        assert abs(metrics["policy/kl"]) < 1e-6


@every_case
def test_the_loss_does_not_depend_on_how_sequences_are_packed(cell, autoreset):
    """Nor therefore on padding, of which there is none: each sequence alone gives the same gradients."""
    algorithm = make(cell=cell, clip_range=0.2, entropy_coef=0.01)
    rollout = make_rollout(algorithm, 1, autoreset)
    batch, recurrence = algorithm.prepare(rollout)
    algorithm.schedule(0.0)
    count = len(recurrence.sequences.begin)
    rows = len(batch.value)
    assert count > N

    def gradients(parts):
        for p in [*algorithm.policy.parameters(), *algorithm.critic.parameters()]:
            p.grad = torch.zeros_like(p)
        seen = 0
        for minibatch in parts:
            loss, _ = algorithm.loss(minibatch)
            (loss * len(minibatch.value) / rows).backward()
            seen += len(minibatch.value)
        assert seen == rows
        return torch.cat([p.grad.flatten() for m in (algorithm.policy, algorithm.critic) for p in m.parameters()])

    whole = gradients(minibatches(batch, 1, torch.arange(count), recurrence))
    shuffled = gradients(minibatches(batch, 1, torch.randperm(count), recurrence))
    alone = gradients(m for p in range(count) for m in minibatches(batch, 1, torch.tensor([p]), recurrence))
    few = gradients(minibatches(batch, 4, torch.randperm(count), recurrence))
    for other in (shuffled, alone, few):
        torch.testing.assert_close(whole, other, atol=1e-6, rtol=1e-4)


@every_case
@pytest.mark.parametrize("longest", [None, 4])
def test_gradients_equal_those_of_a_loop_over_time(cell, autoreset, longest):
    algorithm = make("a2c", cell=cell, entropy_coef=0.01, sequence_length=longest)
    rollout = make_rollout(algorithm, 2, autoreset)
    twin = copy.deepcopy(algorithm)
    batch, recurrence = twin.prepare(rollout)
    order = recurrence.sequences.rows
    policy, critic = twin.policy, twin.critic
    state, values, params = rollout.start.state, [], []
    ends = torch.zeros(T, N, dtype=torch.bool)
    ends[rollout.final_obs.index[:, 0], rollout.final_obs.index[:, 1]] = True
    critic_state = torch.zeros(N, critic.memory.state_size)
    age = torch.zeros(N, dtype=torch.int64)  # rows since the memory was empty, or the rollout began
    for t in range(T):
        if longest is not None:  # gradients don't go back beyond these
            cut = (age % longest == 0).unsqueeze(-1)
            state = torch.where(cut, state.detach(), state)
            critic_state = torch.where(cut, critic_state.detach(), critic_state)
        out, state = policy.memory(rollout.obs[t], state)
        params.append(policy.params(out))
        out, critic_state = critic.memory(rollout.obs[t], critic_state)
        values.append(critic.body(out).squeeze(-1))
        forget = (ends[t] | ~rollout.valid[t]).unsqueeze(-1)
        state, critic_state = state.masked_fill(forget, 0.0), critic_state.masked_fill(forget, 0.0)
        age = torch.where(forget.squeeze(-1), 0, age + 1)
    params, value = torch.stack(params).flatten(0, 1)[order], torch.stack(values).flatten()[order]
    distribution = policy.distribution
    log_prob = distribution.log_prob(params, batch.action)
    entropy = distribution.entropy(params, log_prob).mean()
    loss = -(log_prob * batch.advantage).mean() + 0.25 * (value - batch.returns).square().mean() - 0.01 * entropy
    for p in [*policy.parameters(), *critic.parameters()]:
        p.grad = None
    loss.backward()
    expected = torch.cat([p.grad.flatten() for m in (policy, critic) for p in m.parameters()])
    algorithm.update(rollout, 0.0)
    torch.testing.assert_close(algorithm.optimizer.grad, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rows_that_are_not_valid_never_influence_anything(cell):
    results = []
    for junk in (0.0, NAN, 1e30):
        algorithm = make(cell=cell, epochs=2, batch_size=30)
        for k in range(2):
            rollout = make_rollout(algorithm, k, "next_step")
            invalid = ~rollout.valid
            after_termination = torch.zeros_like(invalid)
            after_termination[1:] = rollout.terminated[:-1]
            obs = rollout.obs.clone()
            obs[:-1][invalid & after_termination] = junk
            log_prob = rollout.extras["log_prob"].masked_fill(invalid, junk)
            reward = rollout.reward.masked_fill(invalid, junk)
            algorithm.update(changed(rollout, obs=obs, reward=reward, extras={"log_prob": log_prob}), 0.0)
        results.append(weights(algorithm.policy, algorithm.critic))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_every_valid_row_is_used_once_an_epoch():
    algorithm = make(epochs=3, batch_size=16)
    rollout = make_rollout(algorithm, 3, "next_step")
    seen = []
    loss = algorithm.loss

    def noting(batch: Batch, *rest):
        seen.append(batch.log_prob.tolist())
        return loss(batch, *rest)

    algorithm.loss = noting
    algorithm.update(rollout, 0.0)
    expected = sorted(rollout.extras["log_prob"][rollout.valid].tolist())
    parts = len(seen) // 3
    assert parts > 2
    for epoch in range(3):
        assert sorted(x for part in seen[epoch * parts : (epoch + 1) * parts] for x in part) == expected


def test_the_critic_forgets_at_restarts_and_where_a_worker_began_anew():
    algorithm = make()
    rollout = make_rollout(algorithm, 0)
    algorithm.update(rollout, 0.0)
    assert algorithm.critic_memory.state.any()
    everyone = changed(rollout, start=Start(torch.zeros_like(rollout.start.state), torch.ones(N, dtype=torch.bool)))
    _, recurrence = algorithm.prepare(everyone)
    assert not recurrence.critic_state.any()
    algorithm.restart(1)
    assert not algorithm.critic_memory.state.any()


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("cell", [None, "gru"])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_masked_choices_are_never_taken_and_learning_stays_finite(name, cell, kind):
    algorithm = make(name, cell, kind, masked=True, entropy_coef=0.01)
    for k in range(3):
        rollout = make_rollout(algorithm, k, "same_step", kind, masked=True)
        offsets = torch.tensor([0]) if kind == "discrete" else torch.tensor([0, 3])
        chosen = rollout.action.reshape(T, N, -1) + offsets
        assert rollout.mask.gather(-1, chosen).all()
        metrics = algorithm.update(rollout, 0.0)
        assert all(np.isfinite(float(value)) for value in metrics.values())
    assert torch.isfinite(weights(algorithm.policy, algorithm.critic)).all()


def test_probability_that_a_mask_takes_away_is_shared_by_the_rest():
    algorithm = make(cell=None, masked=True)
    rollout = make_rollout(algorithm, 0, masked=True)
    logits = algorithm.policy.network(rollout.obs[:-1]).detach().double().masked_fill(~rollout.mask, -INF)
    expected = logits.log_softmax(-1).gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1).float()
    torch.testing.assert_close(rollout.extras["log_prob"], expected, atol=1e-5, rtol=1e-5)
