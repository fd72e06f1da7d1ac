"""The loop between restart points, with an algorithm that only looks."""

from dataclasses import replace

import pytest
import torch

from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, Rollout
from erlcli.engine.collector import Timing
from erlcli.engine.loop import Loop
from erlcli.errors import DivergedError
from erlcli.recipe.load import validate
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat

T, N = 4, 2


class Looker:
    """An algorithm whose update keeps what it was shown."""

    updates = 0
    replay = None

    def __init__(self):
        self.policy = torch.nn.Linear(1, 1)
        self.seen, self.seeds, self.acts = [], [], []

    def update(self, rollout, progress, following=None):
        self.updates += 1
        self.seen.append((rollout.truncated[-1].tolist(), round(progress, 4), rollout.version))
        return {"loss/x": torch.tensor(float(self.updates))}

    def settle(self):
        pass

    def restart(self, seed):
        self.seeds.append(seed)

    def set_acting(self, progress):
        self.acts.append(round(progress, 4))
        return {}

    def state_dict(self):
        return {"n": self.updates}

    def load_state_dict(self, state):
        self.updates = state["n"]


class Source:
    """A sampler of endless episodes; env 1 terminates in every last row."""

    timing = Timing()

    def __init__(self):
        self.restarts, self.version = [], 0

    def restart(self, policy, version, seed, rollouts):
        self.restarts.append((version, seed, rollouts))
        self.version = version

    def recv(self):
        terminated = torch.zeros(T, N, dtype=torch.bool)
        terminated[-1, 1] = True
        return Rollout(
            torch.zeros(T + 1, N, 1),
            torch.zeros(T, N, 1),
            torch.ones(T, N),
            terminated,
            torch.zeros(T, N, dtype=torch.bool),
            torch.ones(T, N, dtype=torch.bool),
            FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 1)),
            {},
            self.version,
        )

    def send(self, policy, version):
        self.version = version


def make(tmp_path, stop=lambda: False, **log):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    recipe = validate(
        {
            "train": {"total_steps": 56},
            "env": {"id": "Any-v0", "num_envs": N},
            "algorithm": {"name": "ppo", "rollout_length": T, "batch_size": 8},
            "checkpoint": {"every_steps": 24},
            "eval": {"every_steps": 16},
            "log": log,
        },
        "test",
    )
    beat = Heartbeat(layout, "learner")
    return Loop(layout, recipe, Looker(), Source(), beat, EventLog(layout, "learner", 1), stop, 1)


def test_open_episodes_end_truncated_at_restart_points_only(tmp_path):
    loop = make(tmp_path)
    loop.run()
    cut = [seen[0] for seen in loop.algorithm.seen]
    assert cut == [[False, False], [False, False], [True, False]] * 2 + [[False, False]]
    assert loop.episodes.now().episodes == 7  # a cut is no end of an episode


def test_restart_points_depend_on_seed_and_version_alone(tmp_path):
    loop = make(tmp_path)
    loop.run()
    assert [(version, rollouts) for version, _, rollouts in loop.sampler.restarts] == [(0, 3), (3, 3), (6, 3)]
    assert len({seed for _, seed, _ in loop.sampler.restarts} | set(loop.algorithm.seeds)) == 6
    other = make(tmp_path / "other")
    other.run()
    assert other.sampler.restarts == loop.sampler.restarts


def test_what_acts_beside_weights_is_set_at_restart_points(tmp_path):
    """A schedule that was changed there, or by a resume, holds from the next step on."""
    loop = make(tmp_path)
    loop.run()
    assert loop.algorithm.acts == [round(steps / 56, 4) for steps in (0, 24, 48)]


def test_counts_progress_and_versions(tmp_path):
    loop = make(tmp_path)
    loop.run()
    assert [p for _, p, _ in loop.algorithm.seen] == [round(8 * i / 56, 4) for i in range(7)]
    assert [v for _, _, v in loop.algorithm.seen] == list(range(7))
    assert [row["steps"] for row in read(loop.layout.metrics)] == [8 * i for i in range(1, 8)]
    assert sorted(int(p.stem) for p in loop.layout.snapshots.iterdir()) == [16, 32, 48, 56]
    assert sorted(int(p.name) for p in loop.layout.checkpoints.iterdir()) == [24, 48, 56]


@pytest.mark.parametrize(("limit", "ends", "told"), [(None, False, 1), (None, True, 0), (100, False, 0)])
def test_episodes_that_never_end_are_warned_of_once(tmp_path, monkeypatch, limit, ends, told):
    monkeypatch.setattr("erlcli.engine.loop.ENDLESS_STEPS", 12)
    loop = make(tmp_path)
    loop.sampler.spec = EnvSpec(Box((1,), "float32", (-1.0,), (1.0,)), Discrete(2), N, limit)
    recv = loop.sampler.recv
    if not ends:
        loop.sampler.recv = lambda: replace(recv(), terminated=torch.zeros(T, N, dtype=torch.bool))
    loop.run()
    events = [row for row in read(loop.layout.events("learner")) if row["event"] == "endless"]
    assert [row["steps"] for row in events] == [24] * told
    assert all(row["level"] == "warning" and "set env.max_episode_steps" in row["message"] for row in events)


def test_weights_that_are_not_known_to_be_finite_are_not_kept(tmp_path):
    """A GPU tells late that training diverged; until then there must be neither a checkpoint nor a snapshot."""
    loop = make(tmp_path)

    def settle():
        if loop.algorithm.updates >= 2:
            raise DivergedError("NaN")

    loop.algorithm.settle = settle
    with pytest.raises(DivergedError):
        loop.run()
    assert [row["steps"] for row in read(loop.layout.metrics)] == [8, 16]
    assert not list(loop.layout.snapshots.iterdir())
    assert [int(p.name) for p in loop.layout.checkpoints.iterdir()] == [0]


def test_a_stopped_run_has_a_row_for_its_last_update(tmp_path):
    loop = make(tmp_path, every=5)
    loop.stop = lambda: loop.algorithm.updates >= 3
    loop.run()
    assert [row["steps"] for row in read(loop.layout.metrics)] == [24]
    again = make(tmp_path / "again", every=5)
    again.until = 3
    again.run()
    assert read(again.layout.metrics) == []  # the uninterrupted run has none there either
