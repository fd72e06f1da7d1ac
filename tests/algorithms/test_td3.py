"""TD3: what it adds to DDPG.

Dimension letters: B rows of a batch, A action dimensions.
"""

import copy

import pytest
import torch

from erlcli.algorithms.config.td3 import TD3Config
from erlcli.algorithms.td3 import TD3
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, EnvSpec

B, OBS, A = 16, 3, 2
INF = float("inf")


def make(**settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-2.0,) * A, (5.0,) * A), 2
    )
    torch.manual_seed(0)
    algorithm = TD3(TD3Config.model_validate(settings), Context(spec, NetworkConfig((16, 16), "relu"), seed=3))
    with torch.no_grad():
        for p in algorithm.policy.network.parameters():
            p.add_(torch.randn(p.shape) * 0.2)
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


def test_steps_are_those_of_the_paper():
    algorithm = make(tau=0.1, target_noise=0.3, target_noise_clip=0.35)
    config = algorithm.config
    actor, critics = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.critic)
    target_actor, target_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_adam, critic_adam = (torch.optim.Adam(m.parameters(), lr=1e-2, eps=config.adam_eps) for m in (actor, critics))
    source = torch.Generator()
    source.set_state(algorithm.generator.get_state())
    for step in range(1, 6):
        batch = make_batch(step)
        algorithm.learn(batch)
        with torch.no_grad():
            noise = torch.normal(torch.zeros(B, A), 0.3, generator=source).clamp(-0.35, 0.35)
            next_action = (target_actor(batch.next_obs).tanh() + noise).clamp(-1, 1)
            first, second = target_critics.q(batch.next_obs, next_action)
            y = batch.reward + batch.discount * torch.minimum(first, second)
        q1, q2 = critics.q(batch.obs, batch.action)
        critic_adam.zero_grad()
        (0.5 * ((q1 - y) ** 2).mean() + 0.5 * ((q2 - y) ** 2).mean()).backward()
        critic_adam.step()
        if step % 2 == 0:
            actor_adam.zero_grad()
            (-critics.q(batch.obs, actor(batch.obs).tanh())[0].mean()).backward()
            actor_adam.step()
            for target, online in ((target_actor, actor), (target_critics, critics)):
                for p, q in zip(target.parameters(), online.parameters(), strict=True):
                    p.data = 0.9 * p.data + 0.1 * q.data
    for fast, slow in (
        (algorithm.policy.network, actor),
        (algorithm.critic, critics),
        (algorithm.target_actor.module, target_actor),
        (algorithm.target_critic.module, target_critics),
    ):
        torch.testing.assert_close(weights(fast), weights(slow), atol=1e-5, rtol=1e-4)


def smoothing(algorithm, rows=40_000):
    """Noise on target actions of 0, (rows, A)."""
    with torch.no_grad():
        for p in algorithm.target_actor.module.parameters():
            p.zero_()
        return algorithm.target_action(torch.zeros(rows, OBS), *algorithm.draws(rows))


def test_target_noise_has_its_scale_and_its_bound_in_each_dimension_by_itself():
    wide = smoothing(make(target_noise=0.2, target_noise_clip=1.0))
    torch.testing.assert_close(wide.std(0), torch.full((A,), 0.2), atol=0.005, rtol=0)
    assert abs(float(torch.corrcoef(wide.T)[0, 1])) < 0.02, "dimensions share a draw"
    clipped = smoothing(make(target_noise=0.2, target_noise_clip=0.3))
    assert float(clipped.max()) == pytest.approx(0.3) and float(clipped.min()) == pytest.approx(-0.3)
    share = float((clipped.abs() > 0.2999).float().mean())
    assert share == pytest.approx(0.1336, abs=0.01)  # P(|z| > 1.5)


def test_without_noise_the_target_is_plain():
    assert not smoothing(make(target_noise=0.0)).any()


def test_smoothed_actions_stay_within_the_bounds():
    algorithm = make(target_noise=2.0, target_noise_clip=5.0)
    action = algorithm.target_action(torch.randn(500, OBS), *algorithm.draws(500))
    assert float(action.abs().max()) == 1.0


def test_the_lower_critic_gives_the_target():
    algorithm = make()
    with torch.no_grad():
        for p in algorithm.target_critic.module.parameters():
            p.zero_()
        algorithm.target_critic.module.biases[-1].copy_(torch.tensor([10.0, 4.0]).view(2, 1, 1))
    batch = make_batch(reward=torch.ones(B), discount=torch.full((B,), 0.5))
    torch.testing.assert_close(algorithm.target(batch, *algorithm.draws(B)), torch.full((B,), 3.0))


@pytest.mark.parametrize(("delay", "interval"), [(2, 2), (1, 1), (3, 1), (1, 4)])
def test_actor_and_targets_move_at_their_own_pace(delay, interval):
    algorithm = make(policy_delay=delay, target_interval=interval)
    moved = {"actor": [], "target": []}
    modules = {"actor": algorithm.policy.network, "target": algorithm.target_critic.module}
    last = {name: weights(module) for name, module in modules.items()}
    for update in range(1, 13):
        metrics = algorithm.learn(make_batch(update))
        assert set(metrics) == {"loss/critic", "loss/actor", "value/q"}
        for name, module in modules.items():
            now = weights(module)
            if not torch.equal(now, last[name]):
                moved[name].append(update)
            last[name] = now
    assert moved == {"actor": list(range(delay, 13, delay)), "target": list(range(interval, 13, interval))}


def test_metrics_go_on_from_a_saved_state():
    algorithm, other = make(policy_delay=4), make(policy_delay=4)
    for seed in range(5):
        metrics = algorithm.learn(make_batch(seed))
    assert float(metrics["loss/actor"]) != 0.0
    other.load_state_dict(algorithm.state_dict())
    assert torch.equal(other.learn(make_batch(9))["loss/actor"], metrics["loss/actor"])


def test_the_actor_climbs_the_first_critic_alone():
    algorithm = make()
    obs = torch.randn(B, OBS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for p in algorithm.critic.parameters():
            p[1].fill_(float("nan"))
    before = weights(algorithm.policy.network)
    assert torch.isfinite(algorithm.actor_step(obs)[0])
    now = weights(algorithm.policy.network)
    assert torch.isfinite(now).all() and not torch.equal(now, before)


def test_an_update_waits_for_nothing_and_multiplies_no_matrix_twice():
    algorithm = make(policy_delay=1, target_interval=1)
    batch = make_batch()
    algorithm.learn(batch)
    with torch.profiler.profile() as profile:
        algorithm.learn(batch)
    names = [event.name for event in profile.events()]
    assert names.count("aten::baddbmm") == 9  # three layers: targets, values, the actor's value
    assert names.count("aten::bmm") == 5 + 3  # weights and activations of the values; activations for the actor
    assert names.count("aten::addmm") == 6 and names.count("aten::mm") == 5
    assert names.count("aten::_fused_adam_") == 2 and names.count("aten::lerp_") == 2
    assert names.count("aten::_local_scalar_dense") == 4, "a sync beside those of Adam's kernel for the CPU"
