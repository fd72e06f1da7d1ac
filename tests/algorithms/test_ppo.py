"""PPO against a slow transcription of the papers, and against the ways in which PPO goes wrong in silence.

Dimension letters: T time steps, N environments, A action dimensions.
"""

import copy
import json

import numpy as np
import pytest
import torch
from torch import distributions as reference

from erlcli.algorithms.config.ppo import PPOConfig
from erlcli.algorithms.ppo import PPO, explained_variance
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, MultiDiscrete, Rollout
from erlcli.errors import DivergedError

T, N, OBS = 24, 4, 3
NVEC = (3, 2)
INF, NAN = float("inf"), float("nan")
BOX = Box((2,), "float32", (-1.0, -2.0), (1.0, 2.0))
KINDS = {
    "discrete": (Discrete(3, start=1), False),
    "multi_discrete": (MultiDiscrete(NVEC, (2,)), False),
    "gaussian": (BOX, False),
    "tanh": (BOX, True),
    "state_std": (BOX, False),
    "sde": (BOX, False),
}
STD = {"state_std": "state", "sde": "sde"}
every_kind = pytest.mark.parametrize("kind", sorted(KINDS))


def make(kind="discrete", normalize=None, seed=0, init=0, **settings):
    action, squash = KINDS[kind]
    settings = {
        "rollout_length": T, "batch_size": T * N, "epochs": 1, "squash": squash, "max_grad_norm": 1e9,
        "learning_rate": 1e-2, "log_std": -0.3, "std": STD.get(kind, "global"), **settings,
    }  # fmt: skip
    spec = EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), action, N)
    torch.manual_seed(init)
    algorithm = PPO(
        PPOConfig.model_validate(settings),
        Context(spec, NetworkConfig((16, 16)), normalize or NormalizeConfig(), seed=seed),
    )
    with torch.no_grad():
        for p in algorithm.policy.network[-1].parameters():
            p.copy_(torch.randn(p.shape) * 0.5)  # away from the tiny initial output layer
    return algorithm


def make_rollout(algorithm, seed, autoreset="same_step", end_share=0.15, off_policy=0.0, version=0):
    """Random transitions, acted on by the algorithm's own policy; `off_policy` shifts the log-probs it noted."""
    source = torch.Generator().manual_seed(seed)
    obs = torch.randn(T + 1, N, OBS, generator=source) * 2 + 1
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
        final = torch.randn(len(index), OBS, generator=source) * 2 + 1
    with torch.no_grad():
        noise = algorithm.policy.noise((T, N), source, torch.device("cpu"))
        action, extras = algorithm.policy.act(obs[:-1], noise)
        log_prob = extras["log_prob"] + off_policy * torch.randn(T, N, generator=source)
    reward = torch.randn(T, N, generator=source) * 3 + 1
    return Rollout(
        obs, action, reward, terminated, truncated, valid, FinalObs(index, final), {"log_prob": log_prob}, version
    )


def changed(rollout, **fields):
    return Rollout(**{**{f: getattr(rollout, f) for f in rollout.__dataclass_fields__}, **fields})


def weights(module):
    return torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])


def everything(algorithm):
    """All tensors that an algorithm is made of."""
    state = algorithm.state_dict()
    flat = {f"policy.{name}": tensor.clone() for name, tensor in algorithm.policy.state_dict().items()}
    for section, values in state.items():
        flat |= {f"{section}.{name}": torch.as_tensor(value).clone() for name, value in values.items()}
    return flat


def same(first, second):
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


# --- the slow transcription -------------------------------------------------------------------------------------------


def slow_distribution(algorithm, kind, params):
    """The action distribution as torch has it, from the policy's raw network output."""
    if kind == "discrete":
        return reference.Categorical(logits=params)
    if kind == "state_std":
        mean, log_std = params.chunk(2, -1)
        return reference.Independent(reference.Normal(mean, (log_std - 0.3).exp()), 1)
    if kind == "sde":
        mean, latent = params[:, :2], params[:, 2:]
        variance = latent**2 @ algorithm.policy.distribution.log_std.exp() ** 2 + 1e-6
        return reference.Independent(reference.Normal(mean, variance.sqrt()), 1)
    std = algorithm.policy.distribution.log_std.exp() if kind in ("gaussian", "tanh") else None
    base = None if std is None else reference.Normal(params, std)
    if kind == "gaussian":
        return reference.Independent(base, 1)
    if kind == "tanh":
        squashed = reference.TransformedDistribution(base, [reference.transforms.TanhTransform(cache_size=1)])
        return reference.Independent(squashed, 1)
    return [reference.Categorical(logits=logits) for logits in params.split(NVEC, dim=-1)]


def slow_log_prob(distribution, action):
    if isinstance(distribution, list):
        return sum(d.log_prob(action[..., i]) for i, d in enumerate(distribution))
    return distribution.log_prob(action)


def slow_entropy(distribution, kind):
    if isinstance(distribution, list):
        return sum(d.entropy() for d in distribution)
    if kind != "tanh":
        return distribution.entropy()
    z = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    weight = reference.Normal(0.0, 1.0).log_prob(z).exp() * (z[1] - z[0])
    base = distribution.base_dist.base_dist
    raw = base.loc.unsqueeze(-1) + base.scale.unsqueeze(-1) * z
    log_slope = 2 * (np.log(2) - raw - torch.nn.functional.softplus(-2 * raw))
    return (base.entropy() + (weight * log_slope).sum(-1)).sum(-1)


def slow_advantages(reward, value, next_value, rollout, gamma, gae_lambda):
    """Equation 16 of arXiv 1506.02438, each step summed over the rest of its own episode."""
    advantage = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            for later in range(t, T):
                if not rollout.valid[later, n]:
                    break
                future = 0.0 if rollout.terminated[later, n] else gamma * next_value[later, n]
                advantage[t, n] += (gamma * gae_lambda) ** (later - t) * (reward[later, n] + future - value[later, n])
                if rollout.terminated[later, n] or rollout.truncated[later, n]:
                    break
    return advantage


def slow_update(algorithm, rollout, kind, epochs):
    """Epochs over one rollout as a single minibatch, in double precision; metrics of the last, and new weights."""
    config = algorithm.config
    twin = copy.deepcopy(algorithm)
    policy, critic = twin.policy.double(), twin.critic.double()
    obs = rollout.obs.double()
    with torch.no_grad():
        value = critic(obs).numpy()
        next_value = value[1:].copy()
        for (t, n), last in zip(rollout.final_obs.index.tolist(), rollout.final_obs.obs.double(), strict=True):
            next_value[t, n] = critic(last).item()
    advantage = slow_advantages(
        rollout.reward.double().numpy(), value[:-1], next_value, rollout, config.gamma, config.gae_lambda
    )
    rows = rollout.valid.nonzero().tolist()
    old_value = torch.tensor([value[t, n] for t, n in rows])
    chosen = np.array([advantage[t, n] for t, n in rows])
    returns = torch.tensor(chosen) + old_value
    if config.normalize_advantage:
        chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
    old_log_prob = torch.stack([rollout.extras["log_prob"][t, n] for t, n in rows]).double()
    action = torch.stack([rollout.action[t, n] for t, n in rows])
    action = action.double() if action.is_floating_point() else action
    inputs = torch.stack([obs[t, n] for t, n in rows])
    parameters = [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=config.learning_rate(0.0), eps=config.adam_eps)
    norms = []
    clip, bound = config.clip_range(0.0), config.clip_value
    for _ in range(epochs):
        distribution = slow_distribution(twin, kind, policy.params(inputs))
        log_prob, entropy = slow_log_prob(distribution, action), slow_entropy(distribution, kind)
        new_value = critic(inputs)
        surrogate, value_loss, kl, clipped = [], [], 0.0, 0
        for i in range(len(rows)):
            ratio = (log_prob[i] - old_log_prob[i]).exp()
            held = min(max(ratio, 1 - clip), 1 + clip)
            surrogate.append(min(ratio * chosen[i], held * chosen[i]))
            clipped += abs(ratio.item() - 1) > clip
            kl += (ratio - 1 - ratio.log()).item()
            error = (new_value[i] - returns[i]) ** 2
            if bound is not None:
                change = min(max(new_value[i] - old_value[i], -bound), bound)
                error = max(error, (old_value[i] + change - returns[i]) ** 2)
            value_loss.append(0.5 * error)
        count = len(rows)
        policy_part, value_part = -sum(surrogate) / count, sum(value_loss) / count
        loss = policy_part + config.value_coef * value_part - config.entropy_coef(0.0) * entropy.mean()
        adam.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm).item())
        adam.step()
    metrics = {
        "loss/policy": policy_part.item(), "loss/value": value_part.item(), "policy/entropy": entropy.mean().item(),
        "policy/kl": kl / count, "policy/clip_fraction": clipped / count, "loss/grad_norm": np.mean(norms),
    }  # fmt: skip
    return metrics, weights(policy), weights(critic)


@every_kind
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_value": 0.2, "entropy_coef": 0.05, "max_grad_norm": 0.5, "gamma": 0.9, "gae_lambda": 0.8},
        {"normalize_advantage": False, "clip_range": 0.05, "value_coef": 2.0, "gae_lambda": 1.0},
    ],
    ids=["plain", "all_options", "raw_advantages"],
)
def test_equals_a_slow_transcription_of_the_papers(kind, autoreset, settings):
    epochs = 3
    algorithm = make(kind, epochs=epochs, **settings)
    rollout = make_rollout(algorithm, seed=1, autoreset=autoreset, off_policy=0.3)
    expected, policy, critic = slow_update(algorithm, rollout, kind, epochs)
    metrics = numbers(algorithm.update(rollout, 0.0))
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=2e-3 if kind == "tanh" else 2e-4, rel=1e-4), name
    assert 0.05 < expected["policy/clip_fraction"] < 0.95
    torch.testing.assert_close(weights(algorithm.policy), policy, atol=2e-3 if kind == "tanh" else 2e-4, rtol=0)
    torch.testing.assert_close(weights(algorithm.critic), critic, atol=2e-4, rtol=0)
    assert algorithm.updates == epochs


def test_the_value_clip_of_the_transcription_bites():
    """Or the test above would pass without it."""
    results = []
    for bound in (None, 0.01):
        algorithm = make(epochs=3, clip_value=bound)
        algorithm.update(make_rollout(algorithm, 1), 0.0)
        results.append(weights(algorithm.critic))
    assert not torch.equal(*results)


# --- the clipped surrogate --------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(
    ("log_ratio", "advantage_sign", "moves"), [(0.5, 1, False), (-0.5, -1, False), (0.5, -1, True), (-0.5, 1, True)]
)
def test_the_surrogate_has_no_gradient_exactly_where_it_is_clipped(kind, log_ratio, advantage_sign, moves):
    algorithm = make(kind, gamma=0.0, gae_lambda=0.0, normalize_advantage=False)
    rollout = make_rollout(algorithm, 2)
    log_prob = rollout.extras["log_prob"] - log_ratio
    rollout = changed(
        rollout, extras={"log_prob": log_prob}, reward=torch.full((T, N), 50.0 * advantage_sign)
    )  # advantages are reward - value, and values are small at first
    before, critic = weights(algorithm.policy), weights(algorithm.critic)
    metrics = numbers(algorithm.update(rollout, 0.0))
    assert metrics["policy/clip_fraction"] == 1.0
    assert torch.equal(weights(algorithm.policy), before) is not moves
    assert not torch.equal(weights(algorithm.critic), critic)


@every_kind
@pytest.mark.parametrize("obs_normalisation", [False, True])
def test_the_ratio_starts_at_one_in_every_rollout(kind, obs_normalisation):
    """It would not if statistics were updated before the losses, or if act and log_prob disagreed."""
    algorithm = make(kind, NormalizeConfig(obs=obs_normalisation, reward=True), clip_range=1e-4)
    for k in range(4):
        rollout = make_rollout(algorithm, seed=k, version=k)
        metrics = numbers(algorithm.update(rollout, 0.0))
        assert metrics["policy/clip_fraction"] == 0.0, k
        assert abs(metrics["policy/kl"]) < 1e-6
        assert abs(metrics["loss/policy"]) < 1e-5  # minus the mean of normalised advantages
    assert (algorithm.policy.normalizer is not None) == obs_normalisation
    if obs_normalisation:
        assert algorithm.policy.normalizer.moments.count.item() == 4 * T * N


def test_observation_statistics_are_those_of_the_valid_rows():
    algorithm = make(normalize=NormalizeConfig(obs=True))
    rollout = make_rollout(algorithm, 3, autoreset="next_step")
    algorithm.update(rollout, 0.0)
    seen = rollout.obs[:-1][rollout.valid].double()
    torch.testing.assert_close(algorithm.policy.normalizer.moments.mean, seen.mean(0))
    torch.testing.assert_close(algorithm.policy.normalizer.moments.var, seen.var(0, correction=0))


# --- rows that must not count -----------------------------------------------------------------------------------------


def with_garbage(rollout, real, whole):
    """`rollout` with its rows that are not valid overwritten, as far as they are not true last observations."""
    invalid = ~rollout.valid
    after_termination = torch.zeros_like(invalid)
    after_termination[1:] = rollout.terminated[:-1]
    obs = rollout.obs.clone()
    obs[:-1][invalid & after_termination] = real  # behind a truncation it is the last observation: bootstrapped from
    action = rollout.action.clone()
    action[invalid] = real if action.is_floating_point() else whole
    return changed(
        rollout,
        obs=obs,
        action=action,
        reward=rollout.reward.masked_fill(invalid, real),
        extras={"log_prob": rollout.extras["log_prob"].masked_fill(invalid, real)},
    )


@every_kind
def test_rows_that_are_not_valid_never_influence_anything(kind):
    results = []
    for real, whole in ((0.0, 0), (NAN, 10**9), (-INF, -1), (1e30, 7)):
        algorithm = make(
            kind, NormalizeConfig(obs=True, reward=True), epochs=2, batch_size=16, entropy_coef=0.01, clip_value=0.5
        )
        metrics = []
        for k in range(3):
            rollout = make_rollout(algorithm, k, autoreset="next_step", end_share=0.2)
            assert (~rollout.valid).sum() > 10
            metrics.append(numbers(algorithm.update(with_garbage(rollout, real, whole), k / 3)))
        results.append((everything(algorithm), metrics))
    for state, metrics in results[1:]:
        assert same(state, results[0][0])
        assert metrics == results[0][1]


def test_every_valid_row_is_used_exactly_once_an_epoch():
    epochs, batch_size = 4, 10
    algorithm = make(epochs=epochs, batch_size=batch_size, learning_rate=1e-5)
    rollout = make_rollout(algorithm, 4, autoreset="next_step")
    rows = int(rollout.valid.sum())
    assert rows < T * N
    obs = rollout.obs.clone()
    obs[..., 0] = torch.arange((T + 1) * N, dtype=torch.float32).view(T + 1, N)  # every row has a number
    seen = []

    def note(module, inputs, output):
        if torch.is_grad_enabled():
            seen.append(inputs[0][:, 0].detach().to(torch.int64).tolist())

    algorithm.critic.register_forward_hook(note)
    algorithm.update(changed(rollout, obs=obs), 0.0)
    expected = sorted(obs[:-1, :, 0][rollout.valid].to(torch.int64).tolist())
    minibatches = len(seen) // epochs
    assert minibatches * epochs == len(seen) == algorithm.updates
    assert minibatches == round(rows / batch_size)
    orders = []
    for epoch in range(epochs):
        parts = seen[epoch * minibatches : (epoch + 1) * minibatches]
        sizes = {len(part) for part in parts}
        assert max(sizes) - min(sizes) <= 1
        orders.append([row for part in parts for row in part])
        assert sorted(orders[-1]) == expected
    assert len({tuple(order) for order in orders}) == epochs  # shuffled anew each time


# --- time limits ------------------------------------------------------------------------------------------------------


def one_end(kind):
    """A rollout of one-way episodes with a single end in it, whose last observation is beside."""
    algorithm = make()
    rollout = make_rollout(algorithm, 5, end_share=0.0)
    flag = torch.zeros(T, N, dtype=torch.bool)
    flag[9, 2] = True
    final = FinalObs(torch.tensor([[9, 2]]), torch.full((1, OBS), 0.5))
    return algorithm, changed(rollout, **{kind: flag}, final_obs=final)


@pytest.mark.parametrize(("kind", "matters"), [("truncated", True), ("terminated", False)])
def test_a_cut_episode_is_bootstrapped_from_its_true_last_observation(kind, matters):
    results = []
    for last in (0.5, -3.0):
        algorithm, rollout = one_end(kind)
        algorithm.update(changed(rollout, final_obs=FinalObs(rollout.final_obs.index, torch.full((1, OBS), last))), 0.0)
        results.append(everything(algorithm))
    assert same(*results) is not matters


def test_the_targets_of_a_truncated_step_by_hand():
    gamma = 0.9
    algorithm = make(gamma=gamma, gae_lambda=0.0)
    _, rollout = one_end("truncated")
    with torch.no_grad():
        value = algorithm.critic(rollout.obs)
        following = value[1:].clone()
        following[9, 2] = algorithm.critic(rollout.final_obs.obs)[0]
        expected = 0.5 * (value[:-1] - rollout.reward - gamma * following).square().mean()
    assert float(algorithm.update(rollout, 0.0)["loss/value"]) == pytest.approx(expected.item(), rel=1e-5)


def test_the_targets_where_all_next_observations_are_given_by_hand():
    """The critic is V(s) = 2 s_0, gamma 0.5 and lambda 0: r + V(next) / 2 - V(s), or without V(next) at an end."""
    algorithm = make(gamma=0.5, gae_lambda=0.0, normalize_advantage=False)
    algorithm.critic.forward = lambda obs: 2.0 * obs[..., 0]
    obs = torch.zeros(4, 1, OBS)
    obs[:, 0, 0] = torch.tensor([1.0, 2.0, 100.0, 3.0])  # obs[2] begins an episode, and so does obs[3]
    next_obs = torch.zeros(3, 1, OBS)
    next_obs[:, 0, 0] = torch.tensor([2.0, 7.0, 50.0])
    flags = [torch.zeros(3, 1, dtype=torch.bool) for _ in range(2)]
    flags[0][2], flags[1][1] = True, True  # terminated in the last step, truncated in the middle one
    rollout = Rollout(
        obs, torch.zeros(3, 1, 1), torch.ones(3, 1), *flags, torch.ones(3, 1, dtype=torch.bool), FinalObs.none(obs),
        {"log_prob": torch.zeros(3, 1)}, 0, next_obs=next_obs,
    )  # fmt: skip
    batch, _ = algorithm.prepare(rollout)
    assert batch.advantage.tolist() == [1 + 2 - 2, 1 + 7 - 4, 1 - 200]
    assert batch.returns.tolist() == [3, 8, 1] and batch.value.tolist() == [2, 4, 200]


# --- schedules and options --------------------------------------------------------------------------------------------


def test_schedules_follow_progress():
    algorithm = make(
        learning_rate={"kind": "linear", "start": 1e-2, "end": 0.0},
        clip_range={"kind": "linear", "start": 0.3, "end": 0.1},
        entropy_coef={"kind": "cosine", "start": 0.2, "end": 0.0},
    )
    found = [numbers(algorithm.update(make_rollout(algorithm, 6), progress)) for progress in (0.0, 0.5, 1.0)]
    assert [m["schedule/learning_rate"] for m in found] == pytest.approx([1e-2, 5e-3, 0.0])
    assert [m["schedule/clip_range"] for m in found] == pytest.approx([0.3, 0.2, 0.1])
    assert [m["schedule/entropy_coef"] for m in found] == pytest.approx([0.2, 0.1, 0.0])


def test_a_learning_rate_of_zero_learns_nothing():
    algorithm = make(learning_rate={"kind": "linear", "start": 1e-2, "end": 0.0})
    before = weights(algorithm.policy), weights(algorithm.critic)
    algorithm.update(make_rollout(algorithm, 6), 1.0)
    assert torch.equal(weights(algorithm.policy), before[0]) and torch.equal(weights(algorithm.critic), before[1])
    algorithm.update(make_rollout(algorithm, 6), 0.0)
    assert not torch.equal(weights(algorithm.policy), before[0])


def test_the_clip_range_in_use_is_that_of_progress():
    shares = []
    for progress in (0.0, 1.0):
        algorithm = make(clip_range={"kind": "linear", "start": 10.0, "end": 0.0})
        rollout = make_rollout(algorithm, 6, off_policy=0.2)
        shares.append(numbers(algorithm.update(rollout, progress))["policy/clip_fraction"])
    assert shares[0] == 0.0 and shares[1] > 0.9


def test_target_kl_ends_the_epochs_early():
    settings = {"epochs": 20, "batch_size": 24, "learning_rate": 3e-2}
    free, held = make(**settings), make(**settings, target_kl=0.01)
    metrics = {name: numbers(a.update(make_rollout(a, 7), 0.0)) for name, a in (("free", free), ("held", held))}
    assert metrics["free"]["policy/epochs"] == 20
    assert 1 <= metrics["held"]["policy/epochs"] < 20
    assert metrics["held"]["policy/kl"] > 1.5 * 0.01
    assert held.updates == metrics["held"]["policy/epochs"] * 4


def test_a_target_kl_that_is_not_reached_changes_nothing():
    results = []
    for target in (None, 1e3):
        algorithm = make(epochs=3, target_kl=target)
        algorithm.update(make_rollout(algorithm, 7), 0.0)
        results.append(everything(algorithm))
    assert same(*results)


def test_normalised_advantages_ignore_shift_and_scale_of_rewards():
    """With gamma = 0 and values of zero the advantage is the reward itself."""
    results = []
    for scale, shift in ((1.0, 0.0), (8.0, 16.0)):
        algorithm = make(gamma=0.0, value_coef=0.0)
        with torch.no_grad():
            for p in algorithm.critic.parameters():
                p.zero_()
        rollout = make_rollout(algorithm, 8)
        metrics = algorithm.update(changed(rollout, reward=rollout.reward * scale + shift), 0.0)
        assert abs(float(metrics["loss/policy"])) < 1e-5
        results.append(weights(algorithm.policy))
    torch.testing.assert_close(*results, atol=1e-4, rtol=0)


def test_normalisation_does_not_move_the_targets_of_the_critic():
    results = []
    for normalize in (True, False):
        algorithm = make(normalize_advantage=normalize)
        results.append(float(algorithm.update(make_rollout(algorithm, 8), 0.0)["loss/value"]))
    assert results[0] == results[1]


@every_kind
def test_a_larger_entropy_coefficient_gives_a_larger_entropy(kind):
    found = []
    for coefficient in (0.0, 1.0):
        algorithm = make(kind, entropy_coef=coefficient, log_std=-1.0, epochs=10, learning_rate=1e-2)
        metrics = [numbers(algorithm.update(make_rollout(algorithm, k), 0.0)) for k in range(4)]
        found.append(metrics[-1]["policy/entropy"])
    assert found[1] > found[0] + 0.2


def test_reward_normalisation_scales_the_targets():
    plain, normalised = make(), make(normalize=NormalizeConfig(reward=True))
    losses = []
    for algorithm in (plain, normalised):
        rollout = make_rollout(algorithm, 9)
        losses.append(float(algorithm.update(changed(rollout, reward=rollout.reward * 1000), 0.0)["loss/value"]))
    assert losses[0] > 1e5 and losses[1] < 100


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(torch.full((3,), 7.0), returns).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(-returns, returns).item() < 0


def test_the_step_size_follows_the_kl():
    def rates(kl, **settings):
        algorithm = make(adaptive_kl=kl, learning_rate=1e-3, epochs=4, **settings)
        return [numbers(algorithm.update(make_rollout(algorithm, k), 0.0))["schedule/learning_rate"] for k in range(4)]

    assert rates(1e6) == pytest.approx([1e-3, 2e-3, 4e-3, 8e-3])
    assert rates(1e-12) == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4])
    assert rates(1e6, max_learning_rate=3e-3) == pytest.approx([1e-3, 2e-3, 3e-3, 3e-3])
    assert rates(1e-12, min_learning_rate=4e-4) == pytest.approx([1e-3, 5e-4, 4e-4, 4e-4])


def test_an_adapted_step_size_is_resumed_and_gives_way_to_another_recipe():
    first = make(adaptive_kl=1e6, learning_rate=1e-3)
    first.update(make_rollout(first, 0), 0.0)
    second, other = make(adaptive_kl=1e6, learning_rate=1e-3), make(adaptive_kl=1e6, learning_rate=5e-4)
    for algorithm in (second, other):
        algorithm.load_state_dict(copy.deepcopy(first.state_dict()))
    rollout = make_rollout(first, 1)
    assert numbers(second.update(rollout, 0.0))["schedule/learning_rate"] == 2e-3
    assert numbers(other.update(rollout, 0.0))["schedule/learning_rate"] == 5e-4
    json.dumps(first.state_dict()["rate"])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"adaptive_kl": 0.01, "learning_rate": 0.5}, "learning_rate"),
        ({"adaptive_kl": 0.01, "learning_rate": {"kind": "linear", "start": 1e-3, "end": 0.0}}, "learning_rate"),
        ({"squash": True, "std": "sde"}, "squash"),
        ({"sde_interval": 4}, "sde_interval"),
    ],
)
def test_options_that_exclude_each_other_are_named(settings, key):
    assert set(PPOConfig.model_validate(settings).problems(64)) == {key}


# --- state ------------------------------------------------------------------------------------------------------------


def fully_equipped(kind, seed, init):
    return make(
        kind, NormalizeConfig(obs=True, reward=True), seed=seed, init=init, epochs=2, batch_size=16, entropy_coef=0.01
    )


@every_kind
def test_a_restored_learner_continues_bit_for_bit(kind):
    first = fully_equipped(kind, seed=0, init=0)
    for k in range(3):
        first.update(make_rollout(first, k), 0.1 * k)
    saved = copy.deepcopy((first.policy.state_dict(), first.state_dict()))
    second = fully_equipped(kind, seed=9, init=5)
    second.update(make_rollout(second, 77), 0.0)  # has a past of its own, which must not show
    second.policy.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    assert second.updates == first.updates
    assert same(everything(second), everything(first))
    for algorithm in (first, second):
        algorithm.restart(1234)
    for k in range(3, 6):
        rollout = make_rollout(first, k)
        assert numbers(first.update(rollout, 0.1 * k)) == numbers(second.update(rollout, 0.1 * k))
    assert same(everything(second), everything(first))


def test_the_state_is_tensors_and_json():
    algorithm = fully_equipped("gaussian", 0, 0)
    algorithm.update(make_rollout(algorithm, 0), 0.0)
    for values in algorithm.state_dict().values():
        json.dumps({name: value for name, value in values.items() if not isinstance(value, torch.Tensor)})
    assert not set(algorithm.state_dict()) & {"policy"}


def test_running_returns_end_with_envs_that_were_made_anew():
    first, second = fully_equipped("discrete", 0, 0), fully_equipped("discrete", 0, 0)
    first.update(make_rollout(first, 0), 0.0)
    first.update(make_rollout(first, 1), 0.0)  # begins elsewhere
    second.update(make_rollout(second, 1), 0.0)
    assert torch.equal(first.reward_normalizer.carry, second.reward_normalizer.carry)


def test_a_restart_reseeds_the_shuffles_and_forgets_open_episodes():
    def run(seed):
        algorithm = fully_equipped("discrete", 0, 0)
        algorithm.update(make_rollout(algorithm, 0), 0.0)
        algorithm.restart(seed)
        assert not algorithm.reward_normalizer.carry.any()
        algorithm.update(make_rollout(algorithm, 1), 0.0)
        return everything(algorithm)

    assert same(run(1), run(1))
    assert not same(run(1), run(2))


def test_the_learner_seed_matters_only_for_shuffles():
    def run(seed, batch_size):
        algorithm = make(seed=seed, batch_size=batch_size, epochs=2)
        algorithm.update(make_rollout(algorithm, 0), 0.0)
        return weights(algorithm.policy)

    assert torch.equal(run(1, 16), run(1, 16))
    assert not torch.equal(run(1, 16), run(2, 16))
    torch.testing.assert_close(run(1, T * N), run(2, T * N), atol=1e-4, rtol=0)


def test_the_rollout_stays_as_it_is():
    algorithm = fully_equipped("gaussian", 0, 0)
    rollout = make_rollout(algorithm, 0, autoreset="next_step")
    before = copy.deepcopy(rollout)
    algorithm.update(rollout, 0.0)
    for name in ("obs", "action", "reward", "terminated", "truncated", "valid"):
        assert torch.equal(getattr(rollout, name), getattr(before, name)), name
    assert torch.equal(rollout.extras["log_prob"], before.extras["log_prob"])


@every_kind
@pytest.mark.parametrize("where", ["reward", "obs", "log_prob"])
def test_divergence_is_named(kind, where):
    algorithm = make(kind, epochs=2)
    rollout = make_rollout(algorithm, 10)
    fields = {"reward": rollout.reward.clone(), "obs": rollout.obs.clone()}
    log_prob = rollout.extras["log_prob"].clone()
    {"log_prob": log_prob, **fields}[where][3, 1] = NAN
    with pytest.raises(DivergedError) as caught:
        algorithm.update(changed(rollout, **fields, extras={"log_prob": log_prob}), 0.0)
    assert caught.value.exit_code == 4
    assert "policy." in caught.value.message or "critic." in caught.value.message
    assert caught.value.remedy is not None and "learning_rate" in caught.value.remedy
