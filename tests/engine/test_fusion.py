"""Averaging by hand-computed numbers, and that a fused member trains on."""

import numpy as np
import pytest
import torch

from erlcli.core.batch_norm import EPS, BatchRenorm
from erlcli.core.normalize import EPSILON, ObsNormalizer, RewardNormalizer, RunningMoments
from erlcli.core.types import Box, EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.fusion import average, difference, fuse
from erlcli.errors import DamagedError

F64 = torch.float64


def moments(values):
    made = RunningMoments(values.shape[1:])
    made.update(values)
    return made


def test_weights_are_shares_in_any_unit():
    states = [{"w": torch.tensor([4.0, 0.0])}, {"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([0.0, 0.0])}]
    assert average(states, weights=[2, 1, 1])["w"].tolist() == [2.0, 2.0]
    assert average(states, weights=[0.2, 0.1, 0.1])["w"].tolist() == [2.0, 2.0]
    assert average(states, weights=[0, 1, 0])["w"].tolist() == [0.0, 8.0]
    assert average(states)["w"].tolist() == pytest.approx([4 / 3, 8 / 3])


def test_what_disjoint_normalisers_have_seen_adds_up(draws):
    """Pooled statistics are those of all samples together, and the shift and scale follow from them."""
    samples = [torch.randn(50, 3, generator=draws) * 2 + 7, torch.randn(150, 3, generator=draws) - 4]
    states = []
    for part in samples:
        normalizer = ObsNormalizer((3,), 10.0)
        normalizer.update(part)
        states.append(normalizer.state_dict())
    merged = average(states, disjoint=True)
    whole = torch.cat(samples).double()
    assert merged["moments.count"] == 200
    assert torch.allclose(merged["moments.mean"], whole.mean(0))
    assert torch.allclose(merged["moments.var"], whole.var(0, correction=0))
    assert torch.allclose(merged["shift"], whole.mean(0).float())
    assert torch.allclose(merged["scale"], (whole.var(0, correction=0) + EPSILON).rsqrt().float())


def test_what_siblings_share_does_not_count_again_and_again():
    """Ten generations of four siblings: a count that added up would have grown a million times."""
    state = moments(torch.ones(100, 2)).state_dict()
    for _ in range(10):
        state = average([state] * 4)
    assert state["count"] == 100


def test_one_that_has_seen_nothing_has_no_say():
    fresh, seen = RunningMoments((2,)), moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    merged = average([fresh.state_dict(), seen.state_dict()], disjoint=True)
    assert merged["mean"].tolist() == [2.0, 5.0]
    assert merged["var"].tolist() == [1.0, 0.0]
    both = average([fresh.state_dict()] * 2)
    assert (both["count"], both["var"].tolist()) == (0, [1.0, 1.0])


def test_weights_hold_for_statistics_too():
    one, two = moments(torch.zeros(10, 1)), moments(torch.ones(10, 1))
    merged = average([one.state_dict(), two.state_dict()], weights=[3, 1], disjoint=True)
    assert merged["mean"].item() == pytest.approx(0.25)
    assert merged["var"].item() == pytest.approx(0.1875)  # of 3/4 zeros and 1/4 ones
    assert merged["count"].item() == pytest.approx(20)


def test_returns_of_open_episodes_are_left_out():
    one, two = RewardNormalizer(2, 0.9, 10.0), RewardNormalizer(5, 0.9, 10.0)  # another number of envs is no obstacle
    one.carry.fill_(3.0)
    assert difference(one.state_dict(), two.state_dict()) is None
    assert "carry" not in average([one.state_dict(), two.state_dict()])


def test_statistics_of_batch_norm_are_pooled_and_the_scale_follows():
    """The mean of two scales is neither's, nor that of both together."""
    one, two = BatchRenorm((1,)), BatchRenorm((1,))
    two.mean.fill_(50.0), two.var.fill_(100.0)
    merged = average([one.state_dict(), two.state_dict()])
    assert merged["mean"].item() == 25.0
    assert merged["var"].item() == pytest.approx(50.5 + 625.0)
    assert merged["scale"].item() == pytest.approx((50.5 + 625.0 + EPS) ** -0.5)


def test_remembered_episodes_belong_to_one_run_as_they_are():
    one = {"h_term/episodes/action": torch.ones(3, 1), "w": torch.ones(1)}
    two = {"h_term/episodes/action": torch.zeros(4, 1), "w": torch.zeros(1)}
    merged = average([one, two])
    assert merged["h_term/episodes/action"].tolist() == [[1.0]] * 3 and merged["w"].tolist() == [0.5]


def test_the_first_difference_is_named():
    here = {"a": torch.zeros(2), "b": torch.zeros(3, 4)}
    there = {"a": torch.zeros(2), "b": torch.zeros(3, 5), "c": torch.zeros(1)}
    assert difference(here, there) == ("b", "float32[3, 4]", "float32[3, 5]")
    assert difference(here, {"a": torch.zeros(2)}) == ("b", "float32[3, 4]", "none")
    with pytest.raises(DamagedError) as caught:
        average([here, there], ["run-1", "run-2"])
    assert caught.value.message.startswith("run-2")
    assert caught.value.expected == "b: float32[3, 4]"


def test_batches_of_random_states_match_numpy(draws):
    states = [{"x": torch.randn(4, 5, generator=draws), "n": torch.tensor(i)} for i in range(3)]
    merged = average(states, weights=[5, 2, 1])
    expected = np.average([state["x"].numpy().astype(np.float64) for state in states], axis=0, weights=[5, 2, 1])
    np.testing.assert_allclose(merged["x"].numpy(), expected, rtol=1e-6)
    assert merged["n"] == 0


def test_the_source_that_got_furthest_gives_counters_and_experience(tmp_path):
    """A fused learner of an off-policy algorithm has the rows that its replay says it has."""
    from erlcli.core.replay import Replay  # noqa: F401 - the state below is that of its ring
    from erlcli.engine.replay_parts import ReplaySpool
    from erlcli.recipe.load import load

    recipe = load("pendulum_sac", ["network.hidden=[8]", "algorithm.batch_size=4", "env.num_envs=2"])
    spec = EnvSpec(Box((3,), "float32", (-1.0,) * 3, (1.0,) * 3), Box((1,), "float32", (-2.0,), (2.0,)), 2, 200)
    folders = []
    for seed, steps in ((0, 300), (1, 200)):
        torch.manual_seed(seed)
        algorithm = build.algorithm(recipe, spec, torch.device("cpu"))
        spool = ReplaySpool(tmp_path / f"spool-{seed}", algorithm.replay)
        algorithm.replay.add(rollout(spec, rows=5 + seed))
        state = {"steps": steps, "version": steps, "seconds": 1.0, "attempt": 1, "planned": True}
        folders.append(tmp_path / f"{steps:012d}")
        saved = Checkpoint(algorithm.policy.state_dict(), algorithm.state_dict(), state, spool.flush())
        checkpoint.save(folders[-1], saved)
    fuse(folders[::-1], tmp_path / "fused")
    loaded = checkpoint.load(tmp_path / "fused")
    assert loaded.state["steps"] == 300
    fresh = build.algorithm(recipe, spec, torch.device("cpu"))
    ReplaySpool(tmp_path / "again", fresh.replay).restore(loaded.replay)
    fresh.policy.load_state_dict(loaded.policy)
    fresh.load_state_dict(loaded.learner)  # refuses a replay that is not whole
    assert len(fresh.replay) == 10


def rollout(spec, rows):
    from erlcli.core.types import FinalObs, Rollout

    n = spec.num_envs
    flags = torch.zeros(rows, n, dtype=torch.bool)
    return Rollout(
        obs=torch.zeros(rows + 1, n, 3),
        action=torch.zeros(rows, n, 1),
        reward=torch.ones(rows, n),
        terminated=flags,
        truncated=flags.clone(),
        valid=~flags,
        final_obs=FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 3)),
        extras={},
        version=0,
    )
