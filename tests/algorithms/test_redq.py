"""REDQ and DroQ: SAC with an ensemble, and SAC with dropout.

Dimension letters: B rows of a batch, E critics, M of a subset, A action dimensions.
"""

from collections import Counter
from itertools import combinations

import pytest
import torch

from erlcli.algorithms.config.sac import DroQConfig, REDQConfig
from erlcli.algorithms.sac import REDQ, DroQ
from erlcli.core.algorithm import Context, NetworkConfig
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, EnvSpec

B, OBS, A = 16, 3, 2
INF = float("inf")
KINDS = {"redq": (REDQ, REDQConfig), "droq": (DroQ, DroQConfig)}


def make(kind="redq", **settings):
    settings = {"batch_size": B, "learning_rate": 1e-2, "warmup_steps": 0, "replay": {"capacity": 64}, **settings}
    algorithm_class, config_class = KINDS[kind]
    spec = EnvSpec(
        Box((OBS,), "float32", (-INF,) * OBS, (INF,) * OBS), Box((A,), "float32", (-1.0,) * A, (1.0,) * A), 2
    )
    torch.manual_seed(0)
    return algorithm_class(
        config_class.model_validate(settings), Context(spec, NetworkConfig((16, 16), "relu"), seed=3)
    )


def make_batch(seed=0, **fields):
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source)

    values = {
        "obs": draw(B, OBS), "action": draw(B, A).clamp(-1, 1), "reward": draw(B), "next_obs": draw(B, OBS),
        "discount": torch.full((B,), 0.9), "weight": torch.ones(B), "index": torch.arange(B),
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def weights(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def constant_critics(module, values):
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        module.biases[-1].copy_(torch.tensor(values).view(-1, 1, 1))


def test_its_settings_are_those_of_the_papers():
    redq, droq = REDQConfig(), DroQConfig()
    assert (redq.critics, redq.subset, redq.updates_per_step, redq.policy_delay) == (10, 2, 20.0, 20)
    assert (redq.target, redq.actor_value) == ("subset", "mean")
    assert (droq.critics, droq.updates_per_step, droq.policy_delay) == (2, 20.0, 20)
    assert (droq.dropout, droq.critic_layer_norm, droq.actor_value) == (0.01, True, "mean")


def test_every_subset_is_as_likely_as_any_other():
    algorithm = make(critics=4, subset=2)
    draws = 6000
    counts = Counter(tuple(sorted(algorithm.subset().tolist())) for _ in range(draws))
    assert set(counts) == set(combinations(range(4), 2)), "a critic was drawn twice, or some pair never"
    expected = draws / 6
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 20.5  # 5 degrees of freedom, 0.1 %


def test_the_target_is_the_least_of_the_subset(monkeypatch):
    algorithm = make(critics=5, alpha=1e-9)
    constant_critics(algorithm.target_critic.module, [5.0, 1.0, 3.0, 2.0, 4.0])
    batch = make_batch(reward=torch.zeros(B), discount=torch.ones(B))
    for subset, least in (([0, 4], 4.0), ([2, 0], 3.0), ([1, 2], 1.0)):
        monkeypatch.setattr(algorithm, "subset", lambda chosen=subset: torch.tensor(chosen))
        torch.testing.assert_close(algorithm.target(batch, *algorithm.draws(B)), torch.full((B,), least))


def test_each_target_has_a_subset_of_its_own():
    algorithm = make(critics=5, alpha=1e-9)
    constant_critics(algorithm.target_critic.module, [5.0, 1.0, 3.0, 2.0, 4.0])
    batch = make_batch(reward=torch.zeros(B), discount=torch.ones(B))
    means = Counter(round(float(algorithm.target(batch, *algorithm.draws(B))[0])) for _ in range(2000))
    # P(min of 2 of 5 is the k-th lowest) = (5 - k) / 10
    for value, share in ((1, 0.4), (2, 0.3), (3, 0.2), (4, 0.1)):
        assert means[value] / 2000 == pytest.approx(share, abs=0.04)
    assert means[5] == 0


def test_the_actor_climbs_the_mean_over_all():
    algorithm = make(critics=5)
    constant_critics(algorithm.critic, [5.0, 1.0, 3.0, 2.0, 9.0])
    torch.testing.assert_close(algorithm.actor_value(torch.zeros(B, OBS), torch.zeros(B, A)), torch.full((B,), 4.0))


def test_all_critics_learn_from_the_same_target():
    algorithm = make()
    before = [p.detach().clone() for p in algorithm.critic.parameters()]
    algorithm.learn(make_batch())
    for p, old in zip(algorithm.critic.parameters(), before, strict=True):
        if p.shape[1] > 1:
            assert all(not torch.equal(p[e], old[e]) for e in range(10))


def test_one_step_of_the_actor_for_20_of_the_critics():
    algorithm = make()
    for update in range(1, 41):
        algorithm.learn(make_batch(update))
        assert algorithm.optimizers["actor"].updates == update // 20


def test_ten_critics_cost_as_many_operations_as_two():
    counts = []
    for critics in (2, 10):
        algorithm = make(critics=critics, policy_delay=1)
        batch = make_batch()
        algorithm.learn(batch)
        with torch.profiler.profile() as profile:
            algorithm.learn(batch)
        counts.append(Counter(event.name for event in profile.events() if "mm" in event.name))
    assert counts[0] == counts[1] and counts[0]["aten::baddbmm"] == 9


def test_a_subset_larger_than_the_ensemble_is_refused():
    assert "subset" in REDQConfig(critics=3, subset=4).problems(1)
    assert not REDQConfig(critics=4, subset=4).problems(1)


# --- DroQ -------------------------------------------------------------------------------------------------------------


def test_dropout_is_on_wherever_critics_are_asked_and_drawn_from_the_algorithms_own_stream():
    algorithm = make("droq", dropout=0.5)
    batch = make_batch()
    state = algorithm.generator.get_state()
    torch.manual_seed(0)

    def asked():
        return (
            algorithm.target(batch, *algorithm.draws(B)),
            algorithm.critic_loss(batch, batch.obs, *algorithm.draws(B))[0],
            algorithm.actor_value(batch.obs, batch.action),
        )

    first, second = asked(), asked()
    algorithm.generator.set_state(state)
    torch.manual_seed(1)
    again = asked()
    for one, other, repeated in zip(first, second, again, strict=True):
        assert not torch.equal(one, other)
        assert torch.equal(one, repeated)


def test_its_critics_have_layer_norm_and_its_actor_has_not():
    algorithm = make("droq")
    assert len(algorithm.critic.norm_weights) == 2
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in algorithm.policy.modules())


def test_acting_knows_no_dropout(draws):
    policy = make("droq", dropout=0.5).policy
    obs = torch.randn(8, OBS, generator=draws)
    noise = policy.noise((8,), draws, torch.device("cpu"))
    assert torch.equal(policy.act(obs, noise)[0], policy.act(obs, noise)[0])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_it_learns_the_value_of_a_fixed_point(kind):
    """A reward of 1 for ever is worth 1 / (1 - gamma); with next to no temperature, and a subset for pessimism."""
    algorithm = make(kind, learning_rate=3e-3, tau=0.1, alpha=1e-6, learn_alpha=False, policy_delay=1)
    source = torch.Generator().manual_seed(0)
    for seed in range(700):
        action = torch.rand(B, A, generator=source) * 2 - 1
        algorithm.learn(make_batch(seed, action=action, reward=torch.ones(B), discount=torch.full((B,), 0.8)))
    batch = make_batch(5)
    assert 4.3 < float(algorithm.critic.q(batch.obs, batch.action).detach().mean()) < 5.6
