"""DDPG against a slow transcription of the paper, and its exploration.

Dimension letters: B rows of a batch, N environments, A action dimensions.
"""

import copy

import pytest
import torch
from torch.nn import functional as F

from erlcli.algorithms.config.ddpg import DDPGConfig
from erlcli.algorithms.ddpg import DDPG, squared_loss
from erlcli.core.actions import ActionMap
from erlcli.core.algorithm import Context, NetworkConfig, NormalizeConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete, EnvSpec

B, OBS, A = 16, 3, 2
INF = float("inf")
BOX = Box((A,), "float32", (-2.0,) * A, (5.0,) * A)


def make(init=0, normalize=None, **settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    spec = EnvSpec(Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), BOX, 2)
    torch.manual_seed(init)
    algorithm = DDPG(
        DDPGConfig.model_validate(settings),
        Context(spec, NetworkConfig((16, 16), "relu"), normalize or NormalizeConfig(), seed=3),
    )
    with torch.no_grad():
        for p in algorithm.policy.network.parameters():
            p.add_(torch.randn(p.shape) * 0.2)  # away from the tiny initial output layer
    algorithm.target_actor.update(1.0)
    return algorithm


def make_batch(seed=0, **fields):
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source)

    values = {
        "obs": draw(B, OBS), "action": draw(B, A).clamp(-1, 1), "reward": draw(B), "next_obs": draw(B, OBS),
        "discount": torch.where(draw(B) < -0.8, 0.0, 0.9), "weight": torch.ones(B), "index": torch.arange(B),
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def weights(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


class SlowDDPG:
    """The paper by means of torch's own optimiser, with no flat vectors and no frozen critics."""

    def __init__(self, algorithm):
        config = algorithm.config
        self.tau, rate, eps = config.tau, config.learning_rate(0.0), config.adam_eps
        self.actor, self.critic = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.critic)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=rate, eps=eps) for m in (self.critic, self.actor)]

    def learn(self, batch):
        with torch.no_grad():
            next_action = self.target_actor(batch.next_obs).tanh()
            y = batch.reward + batch.discount * self.target_critic.q(batch.next_obs, next_action)[0]
        loss = 0.5 * (batch.weight * (self.critic.q(batch.obs, batch.action)[0] - y) ** 2).mean()
        self._step(0, loss)
        self._step(1, -self.critic.q(batch.obs, self.actor(batch.obs).tanh())[0].mean())
        for target, online in ((self.target_actor, self.actor), (self.target_critic, self.critic)):
            for p, q in zip(target.parameters(), online.parameters(), strict=True):
                p.data = (1 - self.tau) * p.data + self.tau * q.data
        return loss

    def _step(self, which, loss):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        self.optimizers[which].step()


def test_steps_are_those_of_the_paper():
    algorithm = make(tau=0.1)
    slow = SlowDDPG(algorithm)
    for seed in range(4):
        batch = make_batch(seed, weight=torch.rand(B, generator=torch.Generator().manual_seed(seed)))
        metrics = algorithm.learn(batch)
        torch.testing.assert_close(metrics["loss/critic"], slow.learn(batch).detach())
    for fast, by_hand in (
        (algorithm.policy.network, slow.actor),
        (algorithm.critic, slow.critic),
        (algorithm.target_actor.module, slow.target_actor),
        (algorithm.target_critic.module, slow.target_critic),
    ):
        torch.testing.assert_close(weights(fast), weights(by_hand), atol=1e-5, rtol=1e-4)


def test_where_the_discount_is_0_the_target_is_the_reward():
    batch = make_batch(discount=torch.zeros(B))
    assert torch.equal(make().target(batch), batch.reward)


def test_a_target_by_hand():
    algorithm = make()
    with torch.no_grad():
        for p in algorithm.target_critic.module.parameters():
            p.zero_()
        algorithm.target_critic.module.biases[-1].fill_(10.0)
    batch = make_batch(reward=torch.full((B,), 2.0), discount=torch.full((B,), 0.5))
    torch.testing.assert_close(algorithm.target(batch), torch.full((B,), 7.0))


def test_errors_of_several_critics_add_up_and_weights_count():
    error, weight = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1.0, 0.5])
    assert float(squared_loss(error, weight)) == pytest.approx(0.5 * ((1 + 0.5 * 4) / 2 + 9 / 2))


def test_the_actors_step_leaves_the_critics_alone():
    algorithm = make()
    before = weights(algorithm.critic)
    grad = algorithm.optimizers["critic"].grad.clone()
    algorithm.actor_step(torch.randn(B, OBS, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(weights(algorithm.critic), before)
    assert torch.equal(algorithm.optimizers["critic"].grad, grad)


def test_the_actor_climbs_the_critic():
    algorithm = make()
    obs = torch.randn(B, OBS, generator=torch.Generator().manual_seed(1))
    algorithm.learning_rate.fill_(1e-3)
    losses = [float(algorithm.actor_step(obs)[0]) for _ in range(20)]
    assert losses[-1] < losses[0] - 1e-3


@pytest.mark.parametrize("interval", [1, 3, 7])
def test_targets_move_at_their_interval_whatever_else_happens(interval):
    algorithm = make(target_interval=interval)
    last = weights(algorithm.target_critic.module)
    moved = []
    for update in range(1, 15):
        algorithm.learn(make_batch(update))
        now = weights(algorithm.target_critic.module)
        if not torch.equal(now, last):
            moved.append(update)
        last = now
    assert moved == list(range(interval, 15, interval))


def test_it_learns_the_value_of_a_fixed_point():
    """A reward of 1 for ever is worth 1 / (1 - gamma), 5 here; the actor finds where the critic errs upwards."""
    algorithm = make(learning_rate=3e-3, tau=0.1)
    source = torch.Generator().manual_seed(0)
    for seed in range(800):
        action = torch.rand(B, A, generator=source) * 2 - 1
        batch = make_batch(seed, action=action, reward=torch.ones(B), discount=torch.full((B,), 0.8))
        algorithm.learn(batch)
    value = algorithm.critic.q(batch.obs, batch.action).detach()
    assert 4.6 < float(value.mean()) < 6.0


def test_priorities_get_the_size_of_the_error(monkeypatch):
    algorithm = make(replay={"capacity": 64, "prioritized": True})
    seen = {}
    monkeypatch.setattr(algorithm.replay, "update_priorities", lambda i, e: seen.update(index=i, error=e))
    batch = make_batch()
    expected = (algorithm.critic.q(batch.obs, batch.action)[0] - algorithm.target(batch)).abs().detach()
    algorithm.learn(batch)
    assert torch.equal(seen["index"], batch.index)
    torch.testing.assert_close(seen["error"], expected)
    assert not seen["error"].requires_grad


# --- acting -----------------------------------------------------------------------------------------------------------


def test_noise_has_its_scale_on_asymmetric_bounds_and_is_independent_in_each_dimension(draws):
    policy = make(noise_std=0.1).policy
    with torch.no_grad():
        for p in policy.network.parameters():
            p.zero_()  # acts 0, which is 1.5 in [-2, 5]
        noise = policy.noise((40_000,), draws, torch.device("cpu"))
        action, extras = policy.act(torch.zeros(40_000, OBS), noise)
    assert not extras
    env_action = ActionMap(BOX)(action)
    torch.testing.assert_close(env_action.mean(0), torch.full((A,), 1.5), atol=0.01, rtol=0)
    torch.testing.assert_close(env_action.std(0), torch.full((A,), 0.35), atol=0.01, rtol=0)
    assert abs(float(torch.corrcoef(env_action.T)[0, 1])) < 0.02


def test_noisy_actions_stay_within_the_bounds(draws):
    policy = make(noise_std=3.0).policy
    action, _ = policy.act(torch.zeros(500, OBS), policy.noise((500,), draws, torch.device("cpu")))
    assert float(action.detach().abs().max()) == 1.0


def test_the_warm_up_is_uniform_and_its_end_reaches_other_policies_by_the_state(draws):
    policy = make(warmup_steps=10).policy
    noise = policy.noise((20_000,), draws, torch.device("cpu"))
    obs = torch.randn(20_000, OBS, generator=draws)
    random, _ = policy.act(obs, noise)
    expected = torch.linspace(-1, 1, 20_000).unsqueeze(-1)
    assert float((random.detach().sort(0).values - expected).abs().max()) < 0.03
    policy.warmup.fill_(False)
    other = make(init=1, warmup_steps=10).policy
    other.load_state_dict(policy.state_dict())
    chosen, _ = other.act(obs, noise)
    torch.testing.assert_close(chosen, (policy.act_greedy(obs) + 0.1 * noise).clamp(-1, 1))
    assert not torch.allclose(chosen, random)


def test_the_scale_of_the_noise_follows_its_schedule_in_the_policys_state():
    algorithm = make(noise_std={"kind": "linear", "start": 0.4, "end": 0.0})
    assert float(algorithm.policy.state_dict()["sigma"]) == pytest.approx(0.4)
    assert algorithm.set_acting(0.75) == {"schedule/noise_std": pytest.approx(0.1)}
    assert float(algorithm.policy.sigma) == pytest.approx(0.1)


def test_ou_noise_is_there_on_request(draws):
    policy = make(noise="ou", ou_theta=0.1).policy
    noise = policy.noise((3, 20_000), draws, torch.device("cpu"))
    assert float(torch.corrcoef(noise[:2, :, 0])[0, 1]) == pytest.approx(0.9, abs=0.01)


def test_observations_are_normalised_in_acting_and_learning():
    algorithm = make(normalize=NormalizeConfig(obs=True))
    source = torch.Generator().manual_seed(0)
    algorithm.policy.normalizer.update(torch.randn(500, OBS, generator=source) * 5 + 2)
    plain = make()
    batch = make_batch()
    shifted = make_batch(obs=algorithm.policy.features(batch.obs), next_obs=algorithm.policy.features(batch.next_obs))
    torch.testing.assert_close(algorithm.target(batch), plain.target(shifted))
    torch.testing.assert_close(algorithm.learn(batch)["loss/critic"], plain.learn(shifted)["loss/critic"])
    assert not F.mse_loss(batch.obs, shifted.obs) < 0.1


def test_only_bounded_boxes_will_do():
    accepts = DDPG.supports.accepts
    assert accepts(BOX)
    assert not accepts(Box((1,), "float32", (-INF,), (1.0,)))
    assert not accepts(Discrete(3))
