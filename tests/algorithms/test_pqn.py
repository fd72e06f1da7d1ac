"""PQN: its returns by hand and against a slow transcription."""

import numpy as np
import pytest
import torch

from erlcli.algorithms.config.pqn import PQNConfig
from erlcli.algorithms.pqn import PQN
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, Rollout

INF = float("inf")
C = 2
GAMMA, LAMBDA = 0.5, 0.25


def make(normalize=None, **settings):
    torch.manual_seed(0)
    spec = EnvSpec(Box((1,), "float32", (-INF,), (INF,)), Discrete(C), 1)
    settings = {"gamma": GAMMA, "q_lambda": LAMBDA, "batch_size": 4, "rollout_length": 4, **settings}
    return PQN(PQNConfig(**settings), Context(spec, NetworkConfig((8,), "relu", True), normalize or NormalizeConfig()))


class Reader(torch.nn.Module):
    """max Q of an observation is the observation itself."""

    def forward(self, features):
        return torch.cat([features - 1.0, features], -1)


def reading(made):
    made.policy.network = Reader()
    return made


def rollout(obs, reward, terminated=(), truncated=(), invalid=(), finals=None):
    """One env; observations are their own values."""
    length, finals = len(reward), finals or {}

    def flags(where):
        return torch.tensor([[t in where] for t in range(length)])

    return Rollout(
        torch.tensor(obs).view(-1, 1, 1),
        torch.zeros(length, 1, dtype=torch.int64),
        torch.tensor(reward).view(-1, 1),
        flags(terminated),
        flags(truncated),
        ~flags(invalid),
        FinalObs(
            torch.tensor([[t, 0] for t in finals], dtype=torch.int64).view(-1, 2),
            torch.tensor(list(finals.values())).view(-1, 1),
        ),
        {},
        0,
    )


def test_returns_by_hand():
    """G_t = r + gamma (lambda G_{t+1} + (1 - lambda) max Q): backwards from the end of the rollout."""
    made = reading(make())
    _, _, returns = made._prepare(rollout([0.0, 8.0, 16.0, 24.0], [1.0, 2.0, 4.0]))
    last = 4.0 + 0.5 * 24.0
    middle = 2.0 + 0.5 * (0.25 * last + 0.75 * 16.0)
    first = 1.0 + 0.5 * (0.25 * middle + 0.75 * 8.0)
    assert returns.tolist() == pytest.approx([first, middle, last])


def test_ends_cut_the_sum():
    """Terminated: no future. Truncated: the true last observation, and nothing of the next episode."""
    made = reading(make())
    data = rollout([0.0, 100.0, 200.0, 8.0], [1.0, 2.0, 4.0], terminated=[0], truncated=[1], finals={0: 7.0, 1: 6.0})
    _, _, returns = made._prepare(data)
    assert returns.tolist() == pytest.approx([1.0, 2.0 + 0.5 * 6.0, 4.0 + 0.5 * 8.0])


def test_reset_steps_train_nothing():
    made = reading(make())
    data = rollout([0.0, 6.0, 16.0, 8.0], [1.0, 999.0, 4.0], truncated=[0], invalid=[1])
    features, action, returns = made._prepare(data)
    assert returns.tolist() == pytest.approx([1.0 + 0.5 * 6.0, 4.0 + 0.5 * 8.0])
    assert features.flatten().tolist() == [0.0, 16.0] and len(action) == 2


@pytest.mark.parametrize("mode", ["final_obs", "none"])
def test_returns_are_those_of_a_slow_transcription(mode):
    random = np.random.default_rng(3)
    length = 40
    obs, reward = random.normal(size=length + 1), random.normal(size=length)
    ends = random.random(length)
    terminated, truncated = ends < 0.15, ends > 0.85
    finals = {t: float(random.normal()) for t in range(length) if mode == "final_obs" and (terminated | truncated)[t]}
    expected = np.zeros(length)
    for t in reversed(range(length)):
        value = finals.get(t, obs[t + 1])
        over = terminated[t] or truncated[t] or t == length - 1
        follow = value if over else LAMBDA * expected[t + 1] + (1 - LAMBDA) * value
        expected[t] = reward[t] + GAMMA * (0.0 if terminated[t] else follow)
    data = rollout(obs.tolist(), reward.tolist(), np.flatnonzero(terminated), np.flatnonzero(truncated), (), finals)
    _, _, returns = reading(make())._prepare(data)
    np.testing.assert_allclose(returns.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_it_learns_the_closed_form_without_target_network():
    """Reward 1 for ever: 1 / (1 - gamma) = 2."""
    made = make(learning_rate=1e-2)
    for k in range(150):
        data = rollout(torch.randn(9, generator=torch.Generator().manual_seed(k)).tolist(), [1.0] * 8)
        data.action.copy_(torch.randint(C, (8, 1), generator=torch.Generator().manual_seed(k)))
        metrics = made.update(data, 0.0)
    q = made.policy.values(torch.linspace(-1.5, 1.5, 7).view(-1, 1))
    torch.testing.assert_close(q, torch.full((7, C), 2.0), atol=0.1, rtol=0)
    assert float(metrics["loss/critic"]) < 0.01


def test_every_row_is_used_once_an_epoch():
    made = make(batch_size=4, epochs=3)
    seen = []
    made.policy.values = lambda features: (seen.append(features), torch.zeros(len(features), C, requires_grad=True))[1]
    made.optimizer.apply = lambda loss, rate: None
    obs = [float(i) for i in range(11)]
    made._prepare = lambda data: (
        torch.tensor(obs[:10]).view(-1, 1),
        torch.zeros(10, dtype=torch.int64),
        torch.zeros(10),
    )
    made.update(rollout(obs, [0.0] * 10), 0.0)
    rows = torch.cat(seen).flatten().tolist()
    assert sorted(len(s) for s in seen) == [5] * 6
    assert all(sorted(rows[i : i + 10]) == obs[:10] for i in (0, 10, 20))
    assert rows[:10] != rows[10:20]


def test_epsilon_and_learning_rate_follow_their_schedules():
    made = make(exploration_fraction=0.5, epsilon={"kind": "linear", "start": 1.0, "end": 0.0})
    metrics = made.update(rollout([0.0] * 5, [1.0] * 4), 0.25)
    assert float(made.policy.state_dict()["epsilon"]) == metrics["schedule/epsilon"] == pytest.approx(0.5)
    assert metrics["schedule/learning_rate"] == pytest.approx(2.5e-4 * 0.75)
    metrics = made.update(rollout([0.0] * 5, [1.0] * 4), 0.25, 0.375)  # what acts next is at a later share
    assert float(made.policy.state_dict()["epsilon"]) == metrics["schedule/epsilon"] == pytest.approx(0.25)
    assert metrics["schedule/learning_rate"] == pytest.approx(2.5e-4 * 0.75)


def test_running_returns_end_with_envs_that_were_made_anew():
    first, second = (make(NormalizeConfig(reward=True)) for _ in range(2))
    first.update(rollout([0.0, 1.0, 2.0], [1.0, 1.0]), 0.0)
    for made in (first, second):
        made.update(rollout([5.0, 1.0, 2.0], [1.0, 2.0]), 0.0)
    assert torch.equal(first.reward_normalizer.carry, second.reward_normalizer.carry)


def test_the_first_rollout_is_learnt_from_normalised():
    made = reading(make(NormalizeConfig(obs=True)))
    obs = [2.0, 4.0, 6.0, 8.0, 5.0]
    seen = []
    made._step = lambda algorithm, features, *rest: seen.extend(features.flatten().tolist()) or (torch.zeros(2),)
    made.update(rollout(obs, [1.0] * 4), 0.0)
    spread = np.std(obs[:4])
    assert sorted(set(seen)) == pytest.approx([(x - 5.0) / spread for x in obs[:4]], rel=1e-4)


def test_a_rollout_of_nothing_but_resets_changes_nothing():
    made = make()
    before = made.optimizer.flat.clone()
    made.update(rollout([0.0] * 5, [1.0] * 4, invalid=range(4)), 0.0)
    assert made.updates == 0 and torch.equal(made.optimizer.flat, before)


def test_state_comes_back_whole():
    made = make(NormalizeConfig(obs=True, reward=True))
    data = [
        rollout(torch.randn(5, generator=torch.Generator().manual_seed(k)).tolist(), [1.0, 2.0, 0.0, 4.0])
        for k in range(6)
    ]
    for row in data[:3]:
        made.update(row, 0.1)
    other = make(NormalizeConfig(obs=True, reward=True))
    other.policy.load_state_dict(made.policy.state_dict())
    other.load_state_dict(made.state_dict())
    for algorithm in (made, other):
        algorithm.restart(4)
        for row in data[3:]:
            algorithm.update(row, 0.2)
    assert torch.equal(made.optimizer.flat, other.optimizer.flat) and made.updates == other.updates
