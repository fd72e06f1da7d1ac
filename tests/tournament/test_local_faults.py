"""What may go wrong at real slots of this machine: slots that go, members that always fail, GPUs without memory."""

import pytest

from erlcli.cli.tournament import create
from erlcli.runs.control import tournament_request
from erlcli.runs.jsonl import Tail, read
from erlcli.runs.lock import RunLock
from erlcli.tournament.backends import local
from erlcli.tournament.ledger import fold
from erlcli.tournament.session import conduct
from erlcli.tournament.slots import Gpu

SMALL = [
    "env.backend=gymnasium", "env.num_envs=2", "algorithm.rollout_length=32", "algorithm.batch_size=64",
    "train.total_steps=3_200", "tournament.slice.steps=320", "tournament.members=3",
    "tournament.budget.steps=2_560", "tournament.evaluation.episodes=3", "tournament.evaluation.confirm_episodes=4",
    "eval.num_envs=2", "network.hidden=[8]", "train.target_return=10_000", "tournament.mode=independent",
]  # fmt: skip
ENV = '''
import os
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv


class Env(CartPoleEnv):
    """CartPole that is broken, or that lives on a GPU with memory for one process."""

    def __init__(self, broken=False, gpu=False):
        super().__init__()
        self.broken, self.gpu, self.steps = broken, gpu, 0

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        if self.broken:
            raise ValueError("the left wheel came off")
        if self.gpu and not self.fits():
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated or self.steps >= 50, info

    def fits(self):
        here = Path(__file__).with_name("owner")
        try:
            owner = int(here.read_text())
            os.kill(owner, 0)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            here.write_text(str(os.getpid()))
            owner = os.getpid()
        return owner == os.getpid()
'''


@pytest.fixture
def env(tmp_path):
    (tmp_path / "env.py").write_text(ENV)
    return f"env.id='{tmp_path / 'env.py'}:Env'"


def conducted(tmp_path, overrides, slots=("cpu:0", "cpu:1"), tick=lambda layout: None):
    layout = create("tournament_cartpole", [*SMALL, *overrides], None, tmp_path / "run")
    lock = RunLock.acquire(layout.lock)
    try:
        outcome = conduct(layout, lock, slots, lambda: tick(layout))
    finally:
        lock.release()
    return outcome, read(layout.root / "journal.jsonl")


def events(rows, name):
    return [row for row in rows if row["event"] == name]


@pytest.mark.slow
def test_a_slot_that_is_taken_during_an_evaluation_costs_no_slice(tmp_path):
    asked = []

    def tick(layout):
        for row in tails.setdefault("tail", Tail(layout.root / "journal.jsonl")).read():
            if row["event"] == "slice_start":
                asked.append(row["slot"])
            if row["event"] == "slice_end" and len(asked) == 1:
                tournament_request(layout.root, "slots", slots=["cpu:1" if asked[0] == "cpu:0" else "cpu:0"])

    tails = {}
    overrides = ["tournament.members=1", "tournament.budget.steps=640", "tournament.evaluation.episodes=3000"]
    outcome, rows = conducted(tmp_path, overrides, tick=tick)
    assert outcome.state == "finished"
    assert fold(rows).completed == 2
    [gone] = [row["seq"] for row in events(rows, "slots") if len(row["slots"]) == 1]
    scored = [row for row in events(rows, "evaluate") if row["kind"] == "slice"]
    assert [row["steps"] for row in scored] == [320, 640]
    assert gone < scored[0]["seq"], "it was taken after the evaluation"


def test_a_member_that_always_fails_is_retired_with_its_reason_and_the_others_go_on(env, tmp_path):
    search = 'tournament.search={"env.kwargs.broken"={kind="bool"}}'
    outcome, rows = conducted(tmp_path, [env, "env.kwargs={broken=false}", search, "train.seed=3"])
    assert outcome.state == "finished"
    ledger = fold(rows)
    broken = {name for name, member in ledger.board.members.items() if member.parameters["env.kwargs.broken"]}
    assert 0 < len(broken) < 3
    assert {row["member"] for row in events(rows, "retire")} == broken
    for row in events(rows, "retire"):
        assert row["reason"].startswith("failed 3 times in a row: ")
        assert "the left wheel came off" in row["reason"]
        assert ledger.board.members[row["member"]].reason == row["reason"]  # what the leaderboard shows
    assert ledger.completed == 8
    assert ledger.spent_steps >= 2_560


def test_a_gpu_that_runs_out_of_memory_gets_fewer_members_and_the_slice_is_tried_again(env, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "gpus", lambda: [Gpu(0, "", "a GPU that is not there")])
    overrides = [env, "env.kwargs={gpu=true}", "train.device=cpu"]
    outcome, rows = conducted(tmp_path, overrides, ["cuda:0/0", "cuda:0/1"])
    assert outcome.state == "finished"
    first, second = events(rows, "slots")
    assert (len(first["slots"]), second["slots"]) == (2, ["cuda:0/0"])
    assert "out of memory" in second["why"]
    ledger = fold(rows)
    assert (ledger.completed, ledger.failed) == (8, 0)
    assert not events(rows, "retire")
    assert not [row for row in events(rows, "slice_end") if row["why"] == "failed"]
