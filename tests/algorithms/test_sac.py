"""SAC and ModSAC against a slow transcription of the papers.

Dimension letters: B rows of a batch, E critics, A action dimensions.
"""

import copy
import json
import math

import pytest
import torch
from torch import distributions as reference

from erlcli.algorithms.config.sac import ModSACConfig, SACConfig
from erlcli.algorithms.sac import SAC, ModSAC
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.gaussian import StateTanhGaussian
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete, EnvSpec, MultiDiscrete

B, OBS, A = 16, 3, 2
INF = float("inf")
KINDS = {"sac": (SAC, SACConfig), "mod_sac": (ModSAC, ModSACConfig)}


def make(kind="sac", init=0, **settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    algorithm_class, config_class = KINDS[kind]
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-2.0,) * A, (5.0,) * A), 2
    )
    torch.manual_seed(init)
    algorithm = algorithm_class(
        config_class.model_validate(settings), Context(spec, NetworkConfig((16, 16), "relu"), seed=3)
    )
    with torch.no_grad():
        for p in algorithm.policy.network.parameters():
            p.add_(torch.randn(p.shape) * 0.2)  # away from the tiny initial output layer
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


def constant_critics(module, values):
    """Critics that say the same of everything."""
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        module.biases[-1].copy_(torch.tensor(values).view(-1, 1, 1))


# --- the distribution -------------------------------------------------------------------------------------------------


def squashed(params):
    mean, log_std = params.chunk(2, -1)
    base = reference.Normal(mean, log_std.clamp(-20, 2).exp())
    return reference.Independent(
        reference.TransformedDistribution(base, [reference.transforms.TanhTransform(cache_size=1)]), 1
    )


def test_log_probs_are_those_of_the_squashed_normal(draws):
    distribution = StateTanhGaussian(A)
    params = torch.randn(500, 2 * A, generator=draws).double() * 0.5  # torch's own loses digits further out
    noise = torch.randn(500, A, generator=draws).double()
    action, log_prob = distribution.sample(params, noise)
    mean, log_std = params.chunk(2, -1)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, squashed(params).log_prob(action))
    torch.testing.assert_close(distribution.log_prob(params, action), log_prob, atol=1e-4, rtol=1e-4)
    assert torch.equal(distribution.action(params, noise), action)
    assert torch.equal(distribution.mode(params), mean.tanh())


def test_densities_integrate_to_1():
    distribution = StateTanhGaussian(1)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1].unsqueeze(-1)
    for mean, log_std in ((0.0, 0.0), (0.8, -1.0), (-1.0, 0.3)):
        params = torch.tensor([mean, log_std], dtype=torch.float64).expand(len(grid), 2)
        assert float(distribution.log_prob(params, grid).exp().mean()) * 2 == pytest.approx(1.0, abs=1e-3)


def test_log_probs_stay_finite_where_tanh_is_1():
    distribution = StateTanhGaussian(1)
    for raw in (-30.0, -9.0, 9.0, 30.0):
        params = torch.tensor([[raw, -20.0]], requires_grad=True)
        action, log_prob = distribution.sample(params, torch.zeros(1, 1))
        # log N at its mean, and the slope of tanh, 4 exp(-2 |u|) far out
        expected = 20.0 - 0.5 * math.log(2 * math.pi) - (math.log(4.0) - 2 * abs(raw))
        assert float(log_prob.detach()) == pytest.approx(expected, rel=1e-5)
        log_prob.sum().backward()
        assert torch.isfinite(params.grad).all() and torch.isfinite(action).all()


@pytest.mark.parametrize("function", ["log_prob", "action"])
def test_gradients_through_samples_are_right(function, draws):
    distribution = StateTanhGaussian(A)
    noise = torch.randn(5, A, generator=draws).double()
    params = torch.randn(5, 2 * A, generator=draws).double()

    def value(p):
        action, log_prob = distribution.sample(p, noise)
        return log_prob.sum() if function == "log_prob" else (action * torch.arange(1.0, A + 1)).sum()

    leaf = params.clone().requires_grad_()
    value(leaf).backward()
    step = 1e-6
    for i in range(5):
        for j in range(2 * A):
            shift = torch.zeros_like(params)
            shift[i, j] = step
            slope = (value(params + shift) - value(params - shift)) / (2 * step)
            assert float(leaf.grad[i, j]) == pytest.approx(float(slope), abs=1e-6, rel=1e-5)


# --- the update -------------------------------------------------------------------------------------------------------


def test_steps_are_those_of_the_paper():
    algorithm = make(tau=0.1, alpha=0.3)
    config = algorithm.config
    actor, critics = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.critic)
    targets = copy.deepcopy(critics)
    log_alpha = torch.tensor(math.log(0.3), requires_grad=True)
    adams = [
        torch.optim.Adam(parameters, lr=1e-2, eps=config.adam_eps)
        for parameters in (critics.parameters(), actor.parameters(), [log_alpha])
    ]
    source = torch.Generator()
    source.set_state(algorithm.generator.get_state())

    def step(which, loss):
        for adam in adams:
            adam.zero_grad()
        loss.backward()
        adams[which].step()

    for seed in range(4):
        batch = make_batch(seed, weight=torch.rand(B, generator=torch.Generator().manual_seed(seed)))
        metrics = algorithm.learn(batch)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            policy = squashed(actor(batch.next_obs))
            mean, log_std = actor(batch.next_obs).chunk(2, -1)
            next_action = (mean + log_std.exp() * torch.randn(B, A, generator=source)).tanh()
            first, second = targets.q(batch.next_obs, next_action)
            soft = torch.minimum(first, second) - alpha * policy.log_prob(next_action)
            y = batch.reward + batch.discount * soft
        q1, q2 = critics.q(batch.obs, batch.action)
        loss = 0.5 * (batch.weight * (q1 - y) ** 2).mean() + 0.5 * (batch.weight * (q2 - y) ** 2).mean()
        torch.testing.assert_close(metrics["loss/critic"], loss.detach())
        step(0, loss)
        mean, log_std = actor(batch.obs).chunk(2, -1)
        action = (mean + log_std.exp() * torch.randn(B, A, generator=source)).tanh()
        log_prob = squashed(actor(batch.obs)).log_prob(action)
        step(1, (alpha * log_prob - torch.minimum(*critics.q(batch.obs, action))).mean())
        step(2, -(log_alpha * (log_prob.detach() - A)).mean())
        for p, q in zip(targets.parameters(), critics.parameters(), strict=True):
            p.data = 0.9 * p.data + 0.1 * q.data
    for fast, slow in (
        (algorithm.policy.network, actor),
        (algorithm.critic, critics),
        (algorithm.target_critic.module, targets),
    ):
        torch.testing.assert_close(weights(fast), weights(slow), atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(algorithm.temperature.log_alpha, log_alpha)


def test_where_the_discount_is_0_the_target_is_the_reward():
    batch = make_batch(discount=torch.zeros(B))
    algorithm = make()
    assert torch.equal(algorithm.target(batch, *algorithm.draws(B)), batch.reward)


@pytest.mark.parametrize(("kind", "value"), [("min", 2.0), ("mean", 4.0)])
def test_a_target_by_hand(kind, value):
    algorithm = make(target=kind, alpha=0.5, critics=3)
    constant_critics(algorithm.target_critic.module, [2.0, 3.0, 7.0])
    batch = make_batch(reward=torch.ones(B), discount=torch.full((B,), 0.5))
    state = algorithm.generator.get_state()
    target = algorithm.target(batch, *algorithm.draws(B))
    algorithm.generator.set_state(state)
    _, _, cost = algorithm.next_action(batch, *algorithm.draws(B))
    algorithm.generator.set_state(state)
    noise = torch.randn(B, A, generator=algorithm.generator)
    _, log_prob = algorithm.policy.distribution.sample(algorithm.policy.params(batch.next_obs), noise)
    torch.testing.assert_close(cost, 0.5 * log_prob)
    torch.testing.assert_close(target, 1.0 + 0.5 * (value - cost))


@pytest.mark.parametrize(("kind", "value"), [("min", 2.0), ("mean", 4.0)])
def test_what_the_actor_climbs(kind, value):
    algorithm = make(actor_value=kind, critics=3)
    constant_critics(algorithm.critic, [2.0, 3.0, 7.0])
    torch.testing.assert_close(algorithm.actor_value(torch.zeros(B, OBS), torch.zeros(B, A)), torch.full((B,), value))


@pytest.mark.parametrize(("wanted", "rises"), [(50.0, True), (-50.0, False)])
def test_the_temperature_rises_where_there_is_too_little_entropy(wanted, rises):
    algorithm = make(target_entropy=wanted, alpha=0.2)
    algorithm.actor_step(make_batch().obs, *algorithm.draws(B))
    assert (float(algorithm.temperature.alpha()) > 0.2) is rises


def test_the_entropy_aimed_at_is_minus_the_dimensions():
    assert make().target_entropy == -A
    assert make(target_entropy=0.0).target_entropy == 0.0


def test_a_fixed_temperature_stays():
    algorithm = make(learn_alpha=False, alpha=0.2)
    for seed in range(3):
        metrics = algorithm.learn(make_batch(seed))
    assert float(metrics["policy/alpha"]) == pytest.approx(0.2)
    assert len(algorithm.optimizers["actor"].flat) == len(weights(algorithm.policy.network))


def test_a_fixed_temperature_is_the_recipes_and_a_learnt_one_the_checkpoints():
    for learn, found in ((False, 0.01), (True, 0.2)):
        resumed = make(learn_alpha=learn, alpha=0.01)
        resumed.load_state_dict(make(learn_alpha=learn, alpha=0.2).state_dict())
        assert float(resumed.temperature.alpha()) == pytest.approx(found)


def test_the_actors_step_leaves_the_critics_alone():
    algorithm = make()
    before, grad = weights(algorithm.critic), algorithm.optimizers["critic"].grad.clone()
    algorithm.actor_step(make_batch().obs, *algorithm.draws(B))
    assert torch.equal(weights(algorithm.critic), before)
    assert torch.equal(algorithm.optimizers["critic"].grad, grad)


def test_an_update_waits_for_nothing_and_multiplies_no_matrix_twice():
    algorithm = make(critics=5)
    batch = make_batch()
    algorithm.learn(batch)
    with torch.profiler.profile() as profile:
        algorithm.learn(batch)
    names = [event.name for event in profile.events()]
    assert names.count("aten::baddbmm") == 9  # three layers: targets, values, the actor's values
    assert names.count("aten::bmm") == 5 + 3  # weights and activations of the values; activations for the actor
    assert names.count("aten::addmm") == 6 and names.count("aten::mm") == 5
    assert names.count("aten::_fused_adam_") == 2 and names.count("aten::lerp_") == 1
    assert names.count("aten::_local_scalar_dense") == 4, "a sync beside those of Adam's kernel for the CPU"


@pytest.mark.parametrize("delay", [1, 3])
def test_the_actor_learns_at_every_so_many_steps(delay):
    algorithm = make(policy_delay=delay)
    moved, last = [], weights(algorithm.policy.network)
    names = set()
    for update in range(1, 10):
        names.add(frozenset(algorithm.learn(make_batch(update))))
        now = weights(algorithm.policy.network)
        if not torch.equal(now, last):
            moved.append(update)
        last = now
    assert moved == list(range(delay, 10, delay))
    assert len(names) == 1, "metrics come and go"


def test_metrics_go_on_from_a_saved_state():
    algorithm, other = make(policy_delay=4), make(policy_delay=4)
    for seed in range(5):
        metrics = algorithm.learn(make_batch(seed))
    assert float(metrics["policy/entropy"]) != 0.0
    other.load_state_dict(algorithm.state_dict())
    again = other.learn(make_batch(9))
    for name in ("loss/actor", "policy/entropy", "policy/alpha"):
        assert torch.equal(again[name], metrics[name])


def test_priorities_get_the_mean_error_of_the_critics(monkeypatch):
    algorithm = make(replay={"capacity": 64, "prioritized": True})
    constant_critics(algorithm.critic, [2.0, 5.0])
    seen = {}
    monkeypatch.setattr(algorithm.replay, "update_priorities", lambda i, e: seen.update(index=i, error=e))
    batch = make_batch(discount=torch.zeros(B), reward=torch.full((B,), 3.0))
    algorithm.learn(batch)
    assert torch.equal(seen["index"], batch.index)
    torch.testing.assert_close(seen["error"], torch.full((B,), 1.5))


# --- acting -----------------------------------------------------------------------------------------------------------


def test_the_warm_up_is_uniform_and_its_end_is_part_of_the_policys_state(draws):
    policy = make(warmup_steps=10).policy
    noise = policy.noise((20_000,), draws, torch.device("cpu"))
    obs = torch.randn(20_000, OBS, generator=draws)
    random = policy.act(obs, noise)[0].detach()
    expected = torch.linspace(-1, 1, 20_000).unsqueeze(-1)
    assert float((random.sort(0).values - expected).abs().max()) < 0.03
    assert abs(float(torch.corrcoef(random.T)[0, 1])) < 0.03
    policy.warmup.fill_(False)
    other = make(init=1, warmup_steps=10).policy
    other.load_state_dict(policy.state_dict())
    torch.testing.assert_close(other.act(obs, noise)[0], policy.distribution.sample(policy.params(obs), noise)[0])


def test_only_bounded_boxes_will_do():
    accepts = SAC.supports.accepts
    assert accepts(Box((1,), "float32", (-2.0,), (5.0,)))
    assert not accepts(Box((2,), "float32", (-1.0, -INF), (1.0, INF)))
    assert not accepts(Discrete(3)) and not accepts(MultiDiscrete((2, 2), (2,)))


# --- ModSAC -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "rate"), [(0.0, 1.0), (math.sqrt(math.log(2)), 1 / 1.5), (50.0, 0.5)])
def test_the_actors_rate_follows_the_critics_loss(loss, rate):
    algorithm = make("mod_sac")
    algorithm.loss.fill_(loss)
    assert algorithm.read_loss() == {"schedule/actor_rate": pytest.approx(rate)}
    algorithm.loss.fill_(3.0)  # within a rollout the rate stays
    for seed in range(60):
        algorithm.learn(make_batch(seed))
    assert algorithm.updates == 60
    assert algorithm.optimizers["actor"].updates == round(60 * rate)


@pytest.mark.parametrize("rate", [0.5, 0.55, 2 / 3, 0.9, 1.0])
def test_at_a_constant_rate_it_is_the_formula(rate):
    algorithm = make("mod_sac")
    algorithm.rate = rate
    actor_updates = 0
    for critic_updates in range(300):
        due = actor_updates / (critic_updates + 1) < rate - 1e-12
        assert algorithm.actor_due() is due, critic_updates
        actor_updates += due


def test_a_change_of_the_rate_takes_effect_at_once():
    algorithm = make("mod_sac")
    algorithm.rate = 1.0
    assert sum(algorithm.actor_due() for _ in range(1000)) == 1000
    algorithm.rate = 0.5
    assert sum(algorithm.actor_due() for _ in range(100)) == 50


def test_the_loss_is_a_moving_average_of_the_mean_squared_error():
    algorithm = make("mod_sac", loss_memory=0.75)
    constant_critics(algorithm.critic, [1.0, 3.0])
    batch = make_batch(discount=torch.zeros(B), reward=torch.zeros(B))
    before = float(algorithm.loss)
    algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))
    assert float(algorithm.loss) == pytest.approx(0.75 * before + 0.25 * (1 + 9) / 2)
    assert not algorithm.loss.requires_grad


def test_both_time_scales_are_saved():
    algorithm = make("mod_sac", loss_memory=0.9)
    for seed in range(5):
        algorithm.learn(make_batch(seed))
    algorithm.read_loss()
    state = algorithm.state_dict()
    scales = {k: v for k, v in state["time_scales"].items() if not isinstance(v, torch.Tensor)}
    state["time_scales"].update(json.loads(json.dumps(scales)))
    other = make("mod_sac", init=1)
    other.load_state_dict(state)
    assert (other.rate, other.credit) == (algorithm.rate, algorithm.credit)
    assert torch.equal(other.loss, algorithm.loss) and algorithm.credit != 0.0
