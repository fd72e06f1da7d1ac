"""Real members on real slots of this machine: warm processes, faults, kill -9."""

import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from erlcli.cli.tournament import create
from erlcli.errors import ErlError
from erlcli.runs.jsonl import Tail, read, read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock, is_owned
from erlcli.tournament.backends import local
from erlcli.tournament.backends.base import Order
from erlcli.tournament.backends.local import LocalBackend, _Worker
from erlcli.tournament.ledger import fold
from erlcli.tournament.session import conduct
from erlcli.tournament.slots import lay_out

SMALL = [
    "env.backend=gymnasium", "env.num_envs=2", "algorithm.rollout_length=32", "algorithm.batch_size=64",
    "train.total_steps=3_200", "tournament.slice.steps=320", "tournament.members=3",
    "tournament.budget.steps=2_560", "tournament.evaluation.episodes=3", "tournament.evaluation.confirm_episodes=4",
    "eval.num_envs=2", "network.hidden=[8]",
]  # fmt: skip
FAULTY = '''
import os, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Env(CartPoleEnv):
    """CartPole that does what the file beside it says, once: at the next step of whoever takes the file."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        order = os.path.join(os.path.dirname(__file__), "order")
        try:
            with open(order) as file:
                what = file.read()
            os.unlink(order)
        except FileNotFoundError:
            what = ""
        if what == "die":
            os._exit(9)
        if what == "hang":
            time.sleep(3600)
        if what == "raise":
            raise ValueError("ordered to")
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated or self.steps >= 50, info
'''


def directory(root, *overrides):
    return create("tournament_cartpole", [*SMALL, *overrides], None, root)


def rows_of(layout):
    return read(layout.root / "journal.jsonl")


def events(layout, name):
    return [row for row in rows_of(layout) if row["event"] == name]


def conducted(layout, slots=("cpu:0", "cpu:1"), tick=lambda: None):
    lock = RunLock.acquire(layout.lock)
    try:
        return conduct(layout, lock, slots, tick)
    finally:
        lock.release()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    layout = directory(tmp_path_factory.mktemp("t") / "run")
    outcome = conducted(layout)
    assert outcome.state == "finished", outcome.error
    return layout


def test_members_are_ordinary_runs_with_curves_and_best(finished):
    ledger = fold(rows_of(finished))
    assert ledger.completed == 8
    assert ledger.spent_steps >= 2_560
    for row in events(finished, "evaluate"):
        member = RunLayout(finished.root / "members" / row["member"])
        assert (member.checkpoints / "best").exists()
        steps = [r["steps"] for r in read(member.metrics)]
        assert steps == sorted(set(steps))
        assert read_json(member.status)["state"] in ("interrupted", "finished")
        if row["kind"] == "slice":
            [written] = [r for r in read(member.evals) if r["steps"] == row["steps"]]
            assert (written["return_mean"], written["episodes"]) == (row["mean"], row["episodes"])
        assert not list(member.snapshots.iterdir())


def erl(*arguments):
    command = [sys.executable, "-m", "erlcli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_champion_and_the_members_are_taken_by_the_other_commands(finished):
    done = erl("eval", finished.root / "champion", "--episodes", "3", "--json")
    assert done.returncode == 0, done.stderr
    crown = fold(rows_of(finished)).crown
    assert json.loads(done.stdout)["steps"] == crown.steps
    done = erl("resume", finished.root / "champion", "--no-tui", "--json", "--set",
               f"train.total_steps={crown.steps + 64}", "--set", "eval.episodes=2", "--set",
               "eval.probe_episodes=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] >= crown.steps + 64
    racing = next(iter(fold(rows_of(finished)).alive))
    assert erl("resume", finished.root / "members" / racing, "--no-tui").returncode == 2


def test_nobody_is_left_behind(finished):
    assert not is_owned(finished.lock)
    for process in psutil.process_iter():
        try:
            assert str(finished.root) not in process.cmdline()
        except psutil.Error:
            continue


def test_a_child_goes_on_from_its_parents_steps(finished):
    children = [row for row in events(finished, "spawn") if row["parent"] and row["steps"]]
    assert children
    starts = {row["member"]: row for row in events(finished, "slice_start")}
    for row in children:
        if row["member"] in starts:
            assert starts[row["member"]]["from_steps"] == row["steps"]
            first = read(finished.root / "members" / row["member"] / "metrics.jsonl")[0]
            assert first["steps"] == row["steps"] + 64


def test_real_pods_are_fused_and_the_fused_one_is_scored(tmp_path):
    layout = directory(tmp_path / "run", "tournament.pods_per_member=2", "tournament.members=2",
                       "tournament.mode=generational", "tournament.budget.steps=2_000")  # fmt: skip
    outcome = conducted(layout)
    assert outcome.state == "finished", outcome.error
    assert not [row for row in events(layout, "slice_end") if row["why"] == "failed"]
    fused = [row for row in events(layout, "spawn") if row.get("fused")]
    assert len(fused) >= 2
    scored = {row["member"] for row in events(layout, "evaluate")}
    assert {row["member"] for row in fused} <= scored
    parents = {row["parent"] for row in events(layout, "spawn") if row["parent"] and not row.get("fused")}
    assert parents
    for row in fused:  # one of the two seeds and of their average goes on, whichever is best
        assert len(parents & {row["member"], *row["fused"]}) <= 1


def test_slices_in_seconds_end_by_the_clock(tmp_path):
    layout = directory(tmp_path / "run", "tournament.slice={seconds=0.3}", "tournament.budget.steps=500",
                       "tournament.members=1")  # fmt: skip
    assert conducted(layout, ["cpu:0"]).state == "finished"
    ends = events(layout, "slice_end")
    assert ends
    assert all(row["why"] in ("budget", "done") for row in ends)
    assert fold(rows_of(layout)).spent_steps >= 500


@pytest.mark.parametrize(
    "event", ["evaluate", *(pytest.param(event, marks=pytest.mark.slow) for event in ("slice_start", "promote"))]
)
def test_kill_9_of_the_orchestrator_and_resume(event, tmp_path):
    layout = directory(tmp_path / "run")
    names = ["cpu:0", "cpu:1"]
    lock = RunLock.acquire(layout.lock)
    process = subprocess.Popen(
        [sys.executable, "-m", "erlcli.tournament.session", str(layout.root), str(lock.fd), *names],
        pass_fds=(lock.fd,), start_new_session=True,
    )  # fmt: skip
    lock.release()
    tail, seen = Tail(layout.root / "journal.jsonl"), []
    while event not in seen:
        seen += [row["event"] for row in tail.read()]
        threading.Event().wait(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    lock = RunLock.acquire(layout.lock, patience_seconds=10.0)  # the slots leave by themselves
    assert conduct(layout, lock, []).state == "finished"
    lock.release()
    rows, ledger = rows_of(layout), fold(rows_of(layout))
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert len([row for row in rows if row["event"] == "open"]) == 2
    assert ledger.completed == 8
    assert not any(entry.begun or entry.needs_score for entry in ledger.alive.values())
    assert (layout.root / "champion" / "recipe.toml").exists()


@pytest.fixture
def faulty(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    overrides = [f"env.id='{tmp_path / 'faulty.py'}:Env'", "engine.hang_seconds=1.0", "engine.max_restarts=0",
                 "tournament.mode=independent"]  # fmt: skip
    layout = directory(tmp_path / "run", *overrides)
    return layout, tmp_path / "order"


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("die", "learner left by itself"),
        pytest.param("hang", "learner hangs in", marks=pytest.mark.slow),
        pytest.param("raise", "ordered to", marks=pytest.mark.slow),
    ],
)
def test_a_member_that_dies_hangs_or_raises_is_tried_again_elsewhere(order, reason, faulty):
    layout, file = faulty

    def tick():
        if not given and any(row["event"] == "slice_start" for row in tail.read()):
            file.write_text(order)
            given.append(order)

    tail, given = Tail(layout.root / "journal.jsonl"), []
    assert conducted(layout, tick=tick).state == "finished"
    failures = [row for row in events(layout, "slice_end") if row["why"] == "failed"]
    assert len(failures) == 1
    assert reason in failures[0]["reason"]
    assert fold(rows_of(layout)).completed == 8
    assert not events(layout, "retire")


def test_a_slot_process_that_is_killed_costs_one_slice(tmp_path):
    layout = directory(tmp_path / "run")
    lock = RunLock.acquire(layout.lock)
    killed = []

    def tick():
        if killed:
            return
        for process in psutil.Process().children(recursive=True):
            if "erlcli.engine.slice" in process.cmdline() and events(layout, "slice_start"):
                process.kill()
                killed.append(process.pid)
                return

    outcome = conduct(layout, lock, ["cpu:0", "cpu:1"], tick)
    lock.release()
    assert (outcome.state, len(killed)) == ("finished", 1)
    assert fold(rows_of(layout)).completed == 8


def test_a_slot_on_a_gpu_that_is_not_there_is_an_error(tmp_path):
    layout = directory(tmp_path / "run")
    backend = LocalBackend(layout, RunLock.acquire(layout.lock).fd, 60.0)
    with pytest.raises(ErlError, match="no such GPU"):
        backend.resize(["cuda:99"])
    backend.close()


@pytest.mark.slow
def test_a_warm_process_stays_as_it_is(tmp_path):
    """Slice after slice, no descriptors and no threads are left open."""
    overrides = ["tournament.budget.steps=4_000", "train.total_steps=100_000", "train.target_return=1_000"]
    layout = directory(tmp_path / "run", *overrides)
    seen = []

    def tick():
        ends = len([row for row in events(layout, "slice_end")])
        if ends > len(seen):
            [process] = [p for p in psutil.Process().children(recursive=True) if "erlcli.engine.slice" in p.cmdline()]
            seen.extend([(process.num_fds(), process.num_threads())] * (ends - len(seen)))

    assert conducted(layout, ["cpu:0"], tick).state == "finished"
    assert len(seen) >= 12
    fds, threads = zip(*seen[2:], strict=True)
    assert max(fds) - min(fds) <= 6
    assert max(threads) - min(threads) <= 4


def test_a_slice_is_waited_for_as_long_as_it_was_given(tmp_path, monkeypatch):
    layout, now, ended = RunLayout(tmp_path), [1000.0], []
    layout.create()
    backend = LocalBackend(layout, -1, 60.0, {})
    [slot] = lay_out(["cpu:0"], (0,))
    worker = backend._workers["cpu:0"] = _Worker(slot, SimpleNamespace(pid=os.getpid()), -1, -1)
    worker.order, worker.heard = Order("m0", str(tmp_path / "m0"), train=True, until_steps=100), now[0]
    monkeypatch.setattr(local.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(backend, "_send", lambda worker, row: None)
    monkeypatch.setattr(backend, "_replace", lambda worker, code: ended.append(code) or [])
    backend.stop("cpu:0", 300.0)
    now[0] += 299.9
    assert backend._watch(worker, now[0]) == [] and not ended
    now[0] += 0.2
    assert [report.event for report in backend._watch(worker, now[0])] == ["stopped"]
    assert ended == [None]


@pytest.mark.slow
def test_a_process_that_falls_silent_in_an_evaluation_is_replaced(tmp_path):
    layout = directory(tmp_path / "run", "tournament.evaluation.episodes=500", "tournament.budget.steps=400",
                       "engine.hang_seconds=6.0", "tournament.members=1")  # fmt: skip
    stopped = []

    def tick():
        if not stopped and any(row["event"] == "slice_end" for row in events(layout, "slice_end")):
            [process] = [p for p in psutil.Process().children(recursive=True) if "erlcli.engine.slice" in p.cmdline()]
            process.suspend()
            stopped.append(process.pid)

    assert conducted(layout, ["cpu:0"], tick).state == "finished"
    [failure] = [row for row in events(layout, "slice_end") if row["why"] == "failed"]
    assert "no sign of life" in failure["reason"]
    assert stopped
    assert not psutil.pid_exists(stopped[0])
