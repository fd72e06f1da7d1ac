"""The DQN family by hand: targets, cadence, coins, dueling, and what off-policy algorithms count."""

import math
from dataclasses import replace

import pytest
import torch

from erlcli.algorithms import off_policy
from erlcli.algorithms.config.dqn import D3QNConfig, DoubleDQNConfig, DQNConfig, DuelingDQNConfig
from erlcli.algorithms.dqn import D3QN, DQN, DoubleDQN, DuelingDQN, DuelingNetwork
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, Rollout

INF = float("inf")
C, F = 3, 2
FAMILY = [(DQN, DQNConfig), (DoubleDQN, DoubleDQNConfig), (DuelingDQN, DuelingDQNConfig), (D3QN, D3QNConfig)]
every_member = pytest.mark.parametrize(("algorithm", "config"), FAMILY, ids=lambda x: x.__name__)


def make(algorithm=DQN, config=DQNConfig, num_envs=2, normalize=None, seed=0, **settings):
    settings = {"batch_size": 8, "warmup_steps": 0, "rollout_length": 4, "target_interval": 1000, **settings}
    torch.manual_seed(seed)
    spec = EnvSpec(Box((F,), "float32", (-INF,) * F, (INF,) * F), Discrete(C), num_envs)
    context = Context(spec, NetworkConfig((8, 8), "relu"), normalize or NormalizeConfig())
    return algorithm(config(**{"replay": {"capacity": 1000}, **settings}), context)


def rollout(length=4, num_envs=2, seed=0, reward=1.0, valid=None):
    source = torch.Generator().manual_seed(seed)
    shape = (length, num_envs)
    no = torch.zeros(shape, dtype=torch.bool)
    return Rollout(
        torch.randn(length + 1, num_envs, F, generator=source),
        torch.randint(C, shape, generator=source),
        torch.full(shape, reward),
        no,
        no,
        ~no if valid is None else valid,
        FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, F)),
        {},
        0,
    )


def batch(reward, discount, weight=None, action=None):
    size = len(reward)
    source = torch.Generator().manual_seed(3)
    return Transitions(
        torch.randn(size, F, generator=source),
        torch.zeros(size, dtype=torch.int64) if action is None else torch.tensor(action),
        torch.tensor(reward),
        torch.randn(size, F, generator=source),
        torch.tensor(discount),
        torch.ones(size) if weight is None else torch.tensor(weight),
        torch.arange(size),
    )


class Table(torch.nn.Module):
    """A network that gives the same values whatever it sees."""

    def __init__(self, values):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, features):
        return self.values.expand(*features.shape[:-1], -1)


def with_tables(made, online, target):
    made.policy.network, made.target.module = Table(online), Table(target)
    return made


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "config", "expected"), [(DQN, DQNConfig, 7.0), (DoubleDQN, DoubleDQNConfig, 2.0)]
)
def test_who_chooses_and_who_values(algorithm, config, expected):
    """Online prefers choice 0, the target choice 2."""
    made = with_tables(make(algorithm, config), [5.0, 1.0, 0.0], [2.0, 3.0, 7.0])
    assert made.next_value(torch.zeros(4, F)).tolist() == [expected] * 4


def test_dueling_members_inherit_the_choice():
    assert DuelingDQN.next_value is DQN.next_value
    assert D3QN.next_value is DoubleDQN.next_value
    for algorithm, config in FAMILY:
        dueling = isinstance(make(algorithm, config).policy.network, DuelingNetwork)
        assert dueling == (algorithm in (DuelingDQN, D3QN))


def test_the_loss_by_hand():
    """Terminated (discount 0), plain and n-step rows; errors below and above the Huber bend; weighted."""
    made = make()
    q, best = torch.tensor([0.0, 4.0, 0.25]), 2.0
    made.target.module = Table([best, 1.0, 0.0])
    online = made.policy.network
    rows = batch([0.5, 1.0, -1.0], [0.0, 0.9, 0.729], weight=[1.0, 0.5, 2.0], action=[0, 1, 2])
    with torch.no_grad():
        values = online(made.policy.features(rows.obs)).gather(1, rows.action.unsqueeze(1)).squeeze(1)
    targets = [0.5, 1.0 + 0.9 * best, -1.0 + 0.729 * best]
    errors = [float(v) - t for v, t in zip(values, targets, strict=True)]
    huber = [0.5 * e * e if abs(e) < 1 else abs(e) - 0.5 for e in errors]
    expected = sum(w * h for w, h in zip([1.0, 0.5, 2.0], huber, strict=True)) / 3
    assert float(made.learn(rows)["loss/critic"]) == pytest.approx(expected, rel=1e-5)
    assert q.shape == (3,)


def test_no_gradient_reaches_the_target():
    made = make(learning_rate=0.1)
    before = made.target.flat.clone()
    made.learn(batch([1.0] * 4, [0.9] * 4))
    assert torch.equal(made.target.flat, before)
    assert not torch.equal(made.optimizer.flat, before)
    assert all(p.grad is None and not p.requires_grad for p in made.target.module.parameters())


@every_member
def test_values_converge_to_the_closed_form(algorithm, config):
    """Reward 1 for ever: 1 / (1 - gamma)."""
    made = make(algorithm, config, target_interval=5, learning_rate=1e-2, gamma=0.5, seed=1)
    obs = torch.randn(8, F, generator=torch.Generator().manual_seed(0)).repeat_interleave(C, 0)  # each with each action
    size = len(obs)
    rows = replace(
        batch([1.0] * size, [0.5] * size, action=[i % C for i in range(size)]), obs=obs, next_obs=obs.flip(0)
    )
    for _ in range(600):
        made.learn(rows)
    with torch.no_grad():
        q = made.policy.values(made.policy.features(obs))
    torch.testing.assert_close(q, torch.full((size, C), 2.0), atol=0.05, rtol=0)


# --- dueling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (8,), (8, 8), (8, 8, 4)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_dueling_is_value_plus_centred_advantage(hidden, layer_norm):
    network = DuelingNetwork(F, C, NetworkConfig(hidden, "relu", layer_norm))
    features = torch.randn(5, 6, F)
    q = network(features)
    shared = network.torso(features)
    advantage = network.advantage(shared)
    expected = network.value(shared).expand(5, 6, C) + advantage - advantage.mean(-1, keepdim=True)
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(q.mean(-1), network.value(shared).squeeze(-1))
    linear = [m for m in network.torso if isinstance(m, torch.nn.Linear)]
    assert [m.out_features for m in linear] == list(hidden[:-1])


# --- target cadence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "updates_per_step"), [(501, 1.25), (7, 0.5), (1, 3.0)])
def test_targets_move_every_so_many_updates_whatever_a_rollout_is(interval, updates_per_step):
    """Ten updates a rollout and an interval of 501: at 501, 1002 ... and never at 510."""
    made = make(target_interval=interval, updates_per_step=updates_per_step)
    moved, update = [], made.target.update
    made.target.update = lambda tau: (moved.append(made.updates), update(tau))
    for k in range(130):
        made.update(rollout(seed=k), 0.0)
    total = int(130 * 8 * updates_per_step)
    assert made.updates == total
    assert moved == list(range(interval, total + 1, interval))


def test_hard_and_soft_updates_by_hand():
    made = make(target_interval=1, tau=0.25)
    online, target = made.optimizer.flat, made.target.flat
    target.zero_()
    online.fill_(4.0)
    made.follow()
    assert (target == 1.0).all()
    made.follow()
    assert (target == 1.75).all()
    assert all((p == 1.75).all() for p in made.target.module.parameters()), "the module is not the vector"
    hard = make(target_interval=1, tau=1.0)
    hard.optimizer.flat.uniform_(-1, 1)
    hard.follow()
    assert torch.equal(hard.target.flat, hard.optimizer.flat)


# --- exploration ------------------------------------------------------------------------------------------------------


def test_every_env_tosses_its_own_coin_at_every_step():
    made = make()
    made.policy.epsilon.fill_(0.3)
    noise = made.policy.noise((400, 50), torch.Generator().manual_seed(0), torch.device("cpu"))
    obs = torch.randn(50, F)
    greedy = made.policy.act_greedy(obs)
    actions = torch.stack([made.policy.act(obs, noise[t])[0] for t in range(400)])  # (T, N)
    other = actions != greedy
    assert float(other.float().mean()) == pytest.approx(0.3 * (C - 1) / C, abs=0.01)
    assert 0 < int(other.sum(1).min()) < int(other.sum(1).max()) < 50, "one coin for all"
    # Independent between envs: the number that explore in a step is binomial.
    p = 0.3 * (C - 1) / C
    assert float(other.sum(1).float().var()) == pytest.approx(50 * p * (1 - p), rel=0.25)


def test_random_actions_are_uniform_whatever_the_coin_said():
    """The coin must not tell the choice: with epsilon 0.1 the choices are as even as with 1."""
    made = make()
    made.policy.network = Table([1.0, 0.0, 0.0])
    for epsilon in (0.1, 1.0):
        made.policy.epsilon.fill_(epsilon)
        noise = made.policy.noise((60_000,), torch.Generator().manual_seed(1), torch.device("cpu"))
        action, _ = made.policy.act(torch.zeros(60_000, F), noise)
        counts = torch.bincount(action, minlength=C).float() / 60_000
        assert float(counts[1]) == pytest.approx(epsilon / C, abs=0.006)
        assert float(counts[2]) == pytest.approx(epsilon / C, abs=0.006)
    extreme = torch.tensor([[0.0, 1.0 - 2**-24]])
    assert int(made.policy.act(torch.zeros(1, F), extreme)[0]) == C - 1


def test_epsilon_runs_over_its_share_of_the_budget_and_lives_in_the_policy():
    made = make(exploration_fraction=0.5, epsilon={"kind": "linear", "start": 0.9, "end": 0.1})
    assert float(made.policy.state_dict()["epsilon"]) == pytest.approx(0.9)
    for progress, expected in ((0.0, 0.9), (0.25, 0.5), (0.5, 0.1), (0.9, 0.1)):
        metrics = made.update(rollout(), 0.0, progress)  # it is the next rollout's
        assert float(made.policy.state_dict()["epsilon"]) == pytest.approx(expected)
        assert metrics["schedule/epsilon"] == pytest.approx(expected)


def test_warm_up_acts_at_random_and_learns_nothing():
    made = make(warmup_steps=20, epsilon=0.0)
    before = made.optimizer.flat.clone()
    made.policy.network = Table([1.0, 0.0, 0.0])
    noise = made.policy.noise((3000,), torch.Generator().manual_seed(0), torch.device("cpu"))
    obs = torch.zeros(3000, F)

    def share():
        return float((made.policy.act(obs, noise)[0] == 0).float().mean())

    assert share() == pytest.approx(1 / C, abs=0.03)
    for _ in range(2):
        metrics = made.update(rollout(), 0.0)  # 16 steps
    assert made.updates == 0 and torch.equal(made.optimizer.flat, before) and "loss/critic" not in metrics
    assert share() == pytest.approx(1 / C, abs=0.03)
    made.policy.network = make(warmup_steps=20).policy.network
    made.update(rollout(), 0.0)  # 24 steps: four of them are after the warm-up
    assert made.updates == 1
    made.policy.network = Table([1.0, 0.0, 0.0])
    assert share() == 1.0


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "expected"), [(0.1, 80), (1 / 3, 266), (2.5, 2000), (0.001, 0)])
def test_updates_per_step_add_up_exactly(ratio, expected):
    made = make(updates_per_step=ratio, batch_size=2)
    made.learn = lambda batch: counted.append(1) or {}
    counted = []
    for k in range(100):
        made.update(rollout(seed=k), 0.0)
    assert len(counted) == expected


def test_rows_that_are_not_valid_are_no_steps():
    valid = torch.ones(4, 2, dtype=torch.bool)
    valid[1, 0] = valid[2, 1] = False
    made = make(updates_per_step=1.0)
    metrics = made.update(rollout(valid=valid), 0.0)
    assert made.updates == 6 and metrics["replay/size"] == 6
    made.update(rollout(valid=torch.zeros(4, 2, dtype=torch.bool), seed=1), 0.0)
    assert made.updates == 6


def test_metrics_are_means_over_the_updates_of_a_rollout(monkeypatch):
    monkeypatch.setattr("erlcli.algorithms.off_policy.FOLD", 3)
    made = make(updates_per_step=1.0)
    values = iter(range(8))
    made.learn = lambda batch: {"loss/x": torch.tensor(float(next(values)))}
    assert float(made.update(rollout(), 0.0)["loss/x"]) == pytest.approx(3.5)


def test_rewards_are_scaled_when_they_are_drawn():
    made = make(updates_per_step=1.0, reward_scale=0.5)
    seen = []
    made.learn = lambda batch: seen.append(batch.reward) or {}
    made.update(rollout(reward=3.0), 0.0)
    assert torch.equal(torch.stack(seen), torch.full((8, 8), 1.5))


def test_normalised_rewards_follow_the_newest_statistics_and_are_clipped():
    normalize = NormalizeConfig(reward=True, reward_clip=1.25)
    made = make(normalize=normalize, updates_per_step=0.125, gamma=0.0)
    seen = []
    made.learn = lambda batch: seen.append(batch.reward) or {}
    first = rollout()
    first.reward[:] = torch.tensor([[1.0, 3.0]] * 4)  # std 1 with gamma 0
    made.update(first, 0.0)
    assert set(seen[0].tolist()) == {1.0, 1.25}
    made.update(rollout(reward=100.0, seed=1), 0.0)  # old rewards are small beside these
    old = seen[1][seen[1] < 0.5]
    assert len(old) and (old < 0.07).all()


def test_running_returns_end_with_envs_that_were_made_anew():
    first, second = (make(normalize=NormalizeConfig(reward=True)) for _ in range(2))
    first.update(rollout(), 0.0)
    for made in (first, second):
        made.update(rollout(seed=1, reward=2.0), 0.0)  # begins elsewhere
    assert torch.equal(first.reward_normalizer.carry, second.reward_normalizer.carry)


def test_observations_are_normalised_by_all_that_the_replay_holds():
    """Or all updates that are due after a long first rollout would learn of raw ones."""
    made = make(normalize=NormalizeConfig(obs=True), updates_per_step=0.125)
    first = rollout()
    seen = []
    made.learn = lambda batch: seen.append(made.policy.normalizer.shift.clone()) or {}
    made.update(first, 0.0)
    torch.testing.assert_close(seen[0], first.obs[:-1].flatten(0, 1).mean(0))


def test_td_errors_become_priorities():
    made = make(updates_per_step=0.125, replay={"capacity": 100, "prioritized": True, "alpha": 1.0})
    given = []
    made.replay.update_priorities = lambda index, error: given.append((index, error))
    metrics = made.update(rollout(), 0.0)
    assert given[0][0].shape == given[0][1].shape == (8,)
    assert metrics["schedule/beta"] == pytest.approx(0.4)
    assert made.update(rollout(seed=1), 1.0)["schedule/beta"] == pytest.approx(1.0)


def test_state_comes_back_whole():
    made = make(updates_per_step=0.3, target_interval=3, warmup_steps=3)
    for k in range(5):
        made.update(rollout(seed=k), 0.2)
    other = make(seed=5, updates_per_step=0.3, target_interval=3, warmup_steps=3)
    other.replay.add(made.replay.rollout(0, made.replay.end))
    other.policy.load_state_dict(made.policy.state_dict())
    other.load_state_dict(made.state_dict())
    for algorithm in (made, other):
        algorithm.restart(9)
    for k in range(5, 9):
        for algorithm in (made, other):
            algorithm.update(rollout(seed=k), 0.3)
    assert made.updates == other.updates == math.floor(0.3 * (72 - 3))
    assert torch.equal(made.optimizer.flat, other.optimizer.flat)
    assert torch.equal(made.target.flat, other.target.flat)


def test_a_rollout_that_does_not_fit_in_the_replay_is_named_with_its_key():
    config = DQNConfig(rollout_length=32, replay={"capacity": 255})
    assert config.problems(7) == {}
    (key, (expected, remedy)), *more = config.problems(8).items()
    assert key == "replay.capacity" and "32 * 8 = 256" in expected and "replay.capacity" in remedy and not more


def test_rows_in_host_memory_are_drawn_alike():
    """Where the learner is on the CPU, host memory is its own."""
    batches = []
    for device in ("learner", "cpu"):
        made = make(updates_per_step=0.125, replay={"capacity": 100, "device": device})
        made.learn = lambda batch: batches.append(batch) or {}
        made.update(rollout(), 0.0)
    assert torch.equal(batches[0].obs, batches[1].obs) and torch.equal(batches[0].index, batches[1].index)


# --- batches ----------------------------------------------------------------------------------------------------------


def drawn(made, monkeypatch):
    """Sizes of the draws from the replay, and the batches that came of them."""
    sizes, batches, sample = [], [], made.replay.sample
    monkeypatch.setattr(made.replay, "sample", lambda n, source: sizes.append(n) or sample(n, source))
    monkeypatch.setattr(made, "learn", lambda batch: batches.append(batch) or {})
    return sizes, batches


def test_uniform_batches_are_drawn_at_once_and_learnt_from_one_by_one(monkeypatch):
    made = make(updates_per_step=2)
    sizes, batches = drawn(made, monkeypatch)
    made.replay.add(rollout())
    made._learn(5)
    assert sizes == [5 * 8]
    assert [len(b.reward) for b in batches] == [8] * 5
    assert len({tuple(b.index.tolist()) for b in batches}) == 5  # each another draw


def test_large_observations_are_drawn_a_batch_at_a_time(monkeypatch):
    made = make(updates_per_step=2)
    sizes, _ = drawn(made, monkeypatch)
    made.replay.add(rollout())
    monkeypatch.setattr(off_policy, "DRAWN_BYTES", made.replay.drawn_bytes * 8 * 2)
    made._learn(5)
    assert sizes == [16, 16, 8]
    sizes.clear()
    monkeypatch.setattr(off_policy, "DRAWN_BYTES", 1)
    made._learn(2)
    assert sizes == [8, 8]


def test_prioritised_batches_follow_the_update_before(monkeypatch):
    made = make(updates_per_step=2, replay={"capacity": 1000, "prioritized": True})
    sizes, _ = drawn(made, monkeypatch)
    made.replay.add(rollout())
    made._learn(3)
    assert sizes == [8, 8, 8]
