"""Several learners do what one would do with all their environments, for every algorithm that can have them."""

import copy
import threading

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.core.types import FinalObs, Rollout
from erlcli.engine import build, checkpoint
from erlcli.engine.loop import Loop
from erlcli.engine.requests import Requests
from erlcli.engine.samplers import InlineSampler
from erlcli.engine.sharing import digests
from erlcli.envs.config import env_config
from erlcli.errors import ErlError, PeerLostError, RecipeError
from erlcli.runs import control
from erlcli.runs.jsonl import read
from erlcli.runs.writer import EventLog, Heartbeat

NAMES = [name for name, config in registry.configs().items() if config.distributes]
every_algorithm = pytest.mark.parametrize("name", NAMES)
BUILDING = threading.Lock()  # fresh networks draw from the one generator of a process
SECTIONS = {
    "train": {"total_steps": 512},
    "algorithm": {"batch_size": 128, "epochs": 1, "learning_rate": 1e-2},
    "normalize": {"obs": True, "reward": True},
    "checkpoint": {"every_steps": 256},
}


class Learner:
    """A loop of a group, and what it learns from."""

    def __init__(self, run, group):
        recipe, rank = run.recipe, group.rank
        self.beat = Heartbeat(run.layout, f"learner-{rank}")
        events = EventLog(run.layout, f"learner-{rank}", 1)
        config = env_config(recipe.env, recipe.envs_per_learner, 1)
        self.sampler = InlineSampler(
            config, recipe.algorithm.rollout_length, self.beat, events, lambda: False, 0, None, rank * config.num_envs
        )
        with BUILDING:
            self.algorithm = build.algorithm(recipe, self.sampler.spec, torch.device("cpu"), group)
        self.loop = Loop(run.layout, recipe, self.algorithm, self.sampler, self.beat, events, lambda: False, 1, group)
        self.rollouts, self.hashes = [], []
        update = self.algorithm.update

        def watched(rollout, *progress):
            self.rollouts.append(copy.deepcopy(rollout))
            metrics = update(rollout, *progress)
            self.hashes.append(digests(self.algorithm))
            return metrics

        self.algorithm.update = watched

    def run(self):
        try:
            self.loop.share()
            self.loop.run()
        finally:
            self.sampler.close()
            self.beat.close()
        return self


def joined(rollouts):
    """The columns of several learners' rollouts side by side."""
    names = ("obs", "action", "reward", "terminated", "truncated", "valid")
    columns = {name: torch.cat([getattr(r, name) for r in rollouts], dim=1) for name in names}
    extras = {name: torch.cat([r.extras[name] for r in rollouts], dim=1) for name in rollouts[0].extras}
    shift = [torch.tensor([0, rank * r.reward.shape[1]]) for rank, r in enumerate(rollouts)]
    index = torch.cat([r.final_obs.index + s for r, s in zip(rollouts, shift, strict=True)])
    final = FinalObs(index, torch.cat([r.final_obs.obs for r in rollouts]))
    return Rollout(**columns, final_obs=final, extras=extras, version=rollouts[0].version)


def tensors(algorithm):
    return checkpoint.flatten({"policy": algorithm.policy.state_dict(), "learner": algorithm.state_dict()})[0]


def two(make_run, together, name, **sections):
    run = make_run(name, "Corridor", engine={"learners": 2}, **{**SECTIONS, **sections})
    return run, together(lambda group: Learner(run, group).run())


@every_algorithm
def test_two_learners_do_what_one_does_with_all_rows(make_run, together, name):
    """With one minibatch of all rows nothing but rounding can differ."""
    run, (first, second) = two(make_run, together, name)
    assert len(first.rollouts) >= 4
    with make_run(name, "Corridor", **SECTIONS).sampler() as (_, alone):
        steps = 0
        for k, rollouts in enumerate(zip(first.rollouts, second.rollouts, strict=True)):
            if k and k % first.loop.plan.checkpoint == 0:
                alone.restart(0)
            alone.update(joined(rollouts), steps / run.recipe.train.total_steps)
            steps += run.recipe.steps_per_rollout
    expected, found = tensors(alone), tensors(first.algorithm)
    assert expected.keys() == found.keys()
    for tensor in expected:
        torch.testing.assert_close(found[tensor], expected[tensor], rtol=1e-4, atol=1e-5, msg=tensor)


@every_algorithm
def test_weights_are_equal_after_every_rollout_and_rollouts_are_not(make_run, together, name):
    small = {"batch_size": 16, "epochs": 3}
    run, (first, second) = two(make_run, together, name, algorithm=small)
    assert first.hashes == second.hashes
    assert len({tuple(h.values()) for h in first.hashes}) == len(first.hashes) >= 4  # and they do change
    assert not torch.equal(first.rollouts[0].action, second.rollouts[0].action)
    assert first.loop.counters == second.loop.counters and first.loop.counters.steps == 512
    rows = read(run.layout.metrics)  # by the first learner alone
    assert [row["version"] for row in rows] == list(range(1, len(first.rollouts) + 1))
    assert rows[-1]["steps"] == 512
    ended = sum(int((r.terminated | r.truncated).sum()) for r in first.rollouts + second.rollouts)
    assert 0 < rows[-1]["episodes"] == ended - cut(first, second)
    assert [int(p.name) for p in checkpoint.numbered(run.layout)] == [0, 256, 512]


def cut(*learners):
    """Episodes that were open at restart points, which ends them without their being counted."""
    every = learners[0].loop.plan.checkpoint
    return sum(int(r.truncated[-1].sum()) for learner in learners for r in learner.rollouts[every - 1 :: every])


def test_drift_is_named(make_run, together):
    run = make_run("a2c", "Corridor", engine={"learners": 2}, **SECTIONS)

    def body(group):
        learner = Learner(run, group)
        learner.loop.share()
        if group.rank == 1:
            next(learner.algorithm.critic.parameters()).data[0] += 1e-6
        try:
            with pytest.raises(ErlError, match=r"learners 0 and 1 .*learner/critic/") as caught:
                learner.loop.run()
            return str(caught.value)
        finally:
            learner.sampler.close()
            learner.beat.close()

    one, other = together(body)
    assert one == other and "1 of" in one  # tensors
    assert not checkpoint.numbered(run.layout)


def test_requests_are_met_by_all_and_answered_once(make_run, together):
    run = make_run("a2c", "Corridor", engine={"learners": 2}, **SECTIONS)
    layout = run.layout
    control.request(layout, "set", key="algorithm.learning_rate", value=0.5)
    control.request(layout, "set", key="algorithm.gamma", value=0.5)  # can't be set
    control.request(layout, "pause")

    def body(group):
        learner, asked = Learner(run, group), threading.Event()
        loop = learner.loop
        loop.requests = Requests(layout, loop.events, asked)
        if group.leads:  # the other one has not noticed yet
            asked.set()
        still = loop.beat.progress

        def progress(phase):
            still(phase)
            if phase == "paused" and group.leads and not asked.is_set():
                control.request(layout, "resume")
                asked.set()

        loop.beat.progress = progress
        learner.run()
        return float(loop.algorithm.config.learning_rate(0.0)), loop.counters

    (rate, counters), (other_rate, other_counters) = together(body)
    assert rate == other_rate == 0.5 and counters.steps == other_counters.steps == 512
    answers = [row["message"] for row in read(layout.events("learner-0")) if row["event"] == "request"]
    assert [message.split()[0] for message in answers] == ["algorithm.learning_rate", "refused:", "paused", "training"]
    assert not [row for row in read(layout.events("learner-1")) if row["event"] == "request"]


def test_a_stop_within_a_rollout_of_one_drops_those_of_all(make_run, together):
    run = make_run("a2c", "Corridor", engine={"learners": 2}, **SECTIONS)

    def body(group):
        learner, asked = Learner(run, group), threading.Event()
        learner.loop.stop = learner.sampler._stop = asked.is_set
        recv, received = learner.sampler.recv, []

        def watched():
            received.append(0)
            if len(received) == 3 and group.rank == 1:
                asked.set()
            return recv()

        learner.sampler.recv = watched
        learner.run()
        return learner.loop.counters, len(learner.rollouts)

    (one, learnt), (other, also) = together(body)
    assert one.version == other.version == learnt == also == 2
    assert [int(p.name) for p in checkpoint.numbered(run.layout)] == [0, one.steps]


def test_a_disk_that_fails_ends_all(make_run, together, monkeypatch):
    run = make_run("a2c", "Corridor", engine={"learners": 2}, **SECTIONS)

    def full(path, saved):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)

    def body(group):
        with pytest.raises(OSError if group.leads else PeerLostError):
            Learner(run, group).run()

    together(body)


@pytest.mark.parametrize("name", [name for name in registry.configs() if name not in NAMES])
def test_others_have_one_learner(make_run, name):
    env = "Corridor" if registry.implementation(name).supports.discrete else "Target"
    with pytest.raises(RecipeError, match=r"engine.learners: .* has one learner") as caught:
        make_run(name, env, engine={"learners": 2})
    assert "ppo" in str(caught.value)
