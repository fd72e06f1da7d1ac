"""Slots on a real Ray cluster of this machine, with several raylets: nodes that die, drivers that die."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

import ray
from ray.cluster_utils import Cluster

from erlcli.cli.tournament import create
from erlcli.errors import OwnedError, RecipeError
from erlcli.runs.control import tournament_request
from erlcli.runs.jsonl import Tail, read
from erlcli.runs.lock import RunLock
from erlcli.tournament.backends import cluster
from erlcli.tournament.backends.base import Order
from erlcli.tournament.backends.ray import RayBackend
from erlcli.tournament.backends.settings import RaySettings
from erlcli.tournament.ledger import fold
from erlcli.tournament.session import conduct

SMALL = [
    "env.backend=gymnasium", "env.num_envs=2", "algorithm.rollout_length=32", "algorithm.batch_size=64",
    "train.total_steps=3_200", "tournament.slice.steps=320", "tournament.members=3",
    "tournament.budget.steps=2_560", "tournament.evaluation.episodes=3", "tournament.evaluation.confirm_episodes=4",
    "eval.num_envs=2", "network.hidden=[8]", "train.target_return=10_000",
]  # fmt: skip
SLICES = 8
STORE = 80 << 20
ENV = '''
import os
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv


class Env(CartPoleEnv):
    """CartPole with a GPU's memory for one: whoever comes to a second one beside the first runs out of it."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        here = Path(__file__).with_name("owner")
        try:
            owner = int(here.read_text())
            os.kill(owner, 0)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            here.write_text(str(os.getpid()))
            owner = os.getpid()
        if owner != os.getpid():
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated or self.steps >= 50, info
'''


@pytest.fixture(scope="module")
def head():
    """A cluster with a head that has no room for slots; nodes are added by the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_worker_niceness", "0")  # 15 starves them beside the other tests
        patch.delenv("RAY_ADDRESS", raising=False)
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False,
                                                  "object_store_memory": STORE},
        )  # fmt: skip
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def node(head):
    """Adds a node; all are gone after the test."""
    added = []

    def add(cpus=1, **options):
        added.append(head.add_node(num_cpus=cpus, object_store_memory=STORE, **options))
        return added[-1]

    yield add
    ray.shutdown()
    for one in added:
        if one in head.worker_nodes:
            head.remove_node(one, allow_graceful=False)


def directory(root, address, *overrides, cpus=1, gpus=0.0):
    layout = create("tournament_cartpole", [*SMALL, *overrides], None, root)
    RaySettings(address, cpus, gpus).save(layout)
    return layout


def rows_of(layout):
    return read(layout.root / "journal.jsonl")


def events(layout, name):
    return [row for row in rows_of(layout) if row["event"] == name]


def conducted(layout, slots=(), tick=lambda: None):
    lock = RunLock.acquire(layout.lock)
    try:
        return conduct(layout, lock, slots, tick)
    finally:
        lock.release()


def processes_of(root):
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.05)
    return found


def check(layout):
    """Each slice counted once, and one member at a slot at a time."""
    rows, at = rows_of(layout), {}
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        if row["event"] == "slice_start":
            assert row["slot"] not in at.values() and row["member"] not in at
            at[row["member"]] = row["slot"]
        elif row["event"] == "slice_end":
            at.pop(row["member"])
    ledger = fold(rows)
    assert not at
    assert not any(entry.begun or entry.needs_score for entry in ledger.alive.values())
    return ledger


def test_one_of_two_nodes_dies_and_as_many_slices_are_completed(head, node, tmp_path, capfd):
    node()
    doomed = node()
    layout = directory(tmp_path / "run", head.address)
    tail, lost = Tail(layout.root / "journal.jsonl"), []

    def tick():
        for row in tail.read():
            if row["event"] == "slice_start" and not lost and len(events(layout, "slice_start")) >= 3:
                head.remove_node(doomed, allow_graceful=False)
                lost.append(row)

    assert conducted(layout, tick=tick).state == "finished"  # as many slots as there is room for
    assert lost
    assert events(layout, "slots")[0]["slots"] == ["ray:0", "ray:1"]
    ledger = check(layout)
    assert ledger.completed == SLICES
    assert ledger.spent_steps == SLICES * 320
    ends = [row for row in events(layout, "slice_end") if row["why"] not in ("budget", "done")]
    assert {row["why"] for row in ends} <= {"lost"} and len(ends) <= 1
    assert all("gone" in row["reason"] for row in ends)
    assert not [row for row in events(layout, "retire") if "node" in row["reason"]]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "ray" not in printed.err
    wait_until(lambda: not processes_of(layout.root))


@pytest.mark.slow
def test_slots_wait_for_nodes_and_take_them_as_they_come(head, node, tmp_path):
    """What an autoscaler sees: more is asked for than there is."""
    node()
    layout = directory(tmp_path / "run", head.address, "tournament.budget.steps=6_400")
    came, tail = [], Tail(layout.root / "journal.jsonl")

    def tick():
        for row in tail.read():
            if row["event"] == "capacity" and not came:
                came.append(row)
                node(cpus=1)

    assert conducted(layout, [f"ray:{i}" for i in range(3)], tick).state == "finished"
    assert len(came[0]["missing"]) == 2
    assert len({row["slot"] for row in events(layout, "slice_start")}) >= 2
    assert check(layout).completed == 20


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nobody_behind_and_is_resumed(head, node, tmp_path):
    node(cpus=2)
    layout = directory(tmp_path / "run", head.address)
    lock = RunLock.acquire(layout.lock)
    process = subprocess.Popen(
        [sys.executable, "-m", "erlcli.tournament.session", str(layout.root), str(lock.fd), "ray:0", "ray:1"],
        pass_fds=(lock.fd,), start_new_session=True,
    )  # fmt: skip
    lock.release()
    wait_until(lambda: events(layout, "slice_end"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert conducted(layout).state == "finished"
    assert len(events(layout, "open")) == 2
    assert check(layout).completed == SLICES
    wait_until(lambda: not processes_of(layout.root))


@pytest.mark.slow
def test_an_env_that_takes_its_process_is_the_members_failure_and_no_loss(head, node, tmp_path):
    node()
    (tmp_path / "env.py").write_text(ENV.replace("raise RuntimeError", "os._exit(7)  #"))
    (tmp_path / "owner").write_text("1")  # a process that lives, and isn't ours
    layout = directory(tmp_path / "run", head.address, f"env.id='{tmp_path / 'env.py'}:Env'", "tournament.members=1",
                       "tournament.mode=independent", "tournament.max_failures=2")  # fmt: skip
    outcome = conducted(layout)
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    [retired] = events(layout, "retire")
    assert "failed 2 times in a row" in retired["reason"]
    assert "left by itself with code 7" in retired["reason"]


@pytest.mark.slow
def test_a_gpu_that_runs_out_of_memory_gets_fewer_members(head, node, tmp_path):
    """Ray believes what it is told of GPUs: one that two share, and that has memory for one of them."""
    node(cpus=2, num_gpus=1)
    (tmp_path / "env.py").write_text(ENV)
    layout = directory(tmp_path / "run", head.address, f"env.id='{tmp_path / 'env.py'}:Env'", gpus=0.5)
    assert conducted(layout).state == "finished"
    first, second = events(layout, "slots")
    assert (first["slots"], second["slots"]) == (["ray:0", "ray:1"], ["ray:0"])
    assert "out of memory" in second["why"]
    ledger = check(layout)
    assert (ledger.completed, ledger.failed) == (SLICES, 0)
    assert not [row for row in events(layout, "slice_end") if row["why"] == "failed"]


@pytest.mark.slow
def test_a_slot_that_is_taken_during_an_evaluation_costs_no_slice(head, node, tmp_path):
    node(cpus=2)
    layout = directory(tmp_path / "run", head.address, "tournament.members=1", "tournament.mode=independent",
                       "tournament.budget.steps=640", "tournament.evaluation.episodes=800")  # fmt: skip
    asked, tail = [], Tail(layout.root / "journal.jsonl")

    def tick():
        for row in tail.read():
            if row["event"] == "slice_start":
                asked.append(row["slot"])
            if row["event"] == "slice_end" and len(asked) == 1:
                [other] = {"ray:0", "ray:1"} - {asked[0]}
                tournament_request(layout.root, "slots", slots=[other])

    assert conducted(layout, ["ray:0", "ray:1"], tick).state == "finished"
    ledger = check(layout)
    assert (ledger.completed, len(ledger.board.slots)) == (2, 1)
    rows = rows_of(layout)
    [gone] = [row["seq"] for row in rows if row["event"] == "slots" and len(row["slots"]) == 1]
    scored = [row for row in events(layout, "evaluate") if row["kind"] == "slice"]
    assert [row["steps"] for row in scored] == [320, 640]
    assert gone < scored[0]["seq"], "it was taken after the evaluation"


@pytest.mark.slow
def test_a_cluster_of_its_own_ends_with_a_driver_that_is_killed(tmp_path, monkeypatch):
    """Whatever other cluster there is on this machine: it is not joined."""
    monkeypatch.setattr(RaySettings, "resolved", lambda self: None)
    layout = directory(tmp_path / "run", "auto", "tournament.budget.steps=1_000_000")
    code = (
        "import ray, sys\n"
        "from erlcli.tournament import session\n"
        "init = ray.init\n"
        "def refuse(address, **options):\n"
        "    if address == 'auto': raise ConnectionError\n"
        "    return init(address=address, **options)\n"
        "ray.init = refuse\n"
        "session.main(sys.argv[1:])"
    )
    lock = RunLock.acquire(layout.lock)
    process = subprocess.Popen([sys.executable, "-c", code, str(layout.root), str(lock.fd), "ray:0"],
                               pass_fds=(lock.fd,))  # fmt: skip
    lock.release()
    wait_until(lambda: events(layout, "slice_start"), 60.0)
    everyone = psutil.Process(process.pid).children(recursive=True)
    names = " ".join(child.name() for child in everyone)
    assert "raylet" in names and "gcs_server" in names
    threading.Event().wait(2.5)  # the reaper looks every two seconds
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs([child for child in everyone if child.is_running()], timeout=15.0)
    assert not alive


JOIN = """
import sys, ray
from erlcli.tournament.backends import cluster
from erlcli.tournament.backends.settings import RaySettings
if sys.argv[1] == "first":  # whatever other cluster there is on this machine
    init = ray.init
    def refuse(address, **options):
        if address == "auto": raise ConnectionError
        return init(address=address, **options)
    ray.init = refuse
own = cluster.join(RaySettings(), 1)
print(own, ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.readline()
ray.shutdown()
"""


@pytest.mark.slow
def test_nobody_joins_a_cluster_that_ends_with_another_tournament():
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    processes, said = [], []
    try:
        for which in ("first", "second"):
            processes.append(subprocess.Popen([sys.executable, "-c", JOIN, which], **pipes))
            said.append(processes[-1].stdout.readline().split())
        assert said[0][0] == "True"
        assert said[0][1] != said[1][1]  # a cluster of its own, or that of the tests above, where it is up
    finally:
        for process in processes:
            process.communicate("\n", timeout=60)


@pytest.fixture(scope="module")
def shared(head, tmp_path_factory):
    """One connection for the tests below; a process can have only one at a time, so those above come first."""
    head.add_node(num_cpus=2, object_store_memory=STORE)
    layout = directory(tmp_path_factory.mktemp("shared") / "run", head.address)
    made = RayBackend(layout, RaySettings(head.address), 60.0, 0)
    yield made, layout.root
    made.close()


@pytest.fixture
def backend(shared):
    made, _ = shared
    proof = made._proof
    yield made
    made._proof = proof
    made.resize([])


@pytest.fixture
def root(shared):
    return shared[1]


def reports_of(backend, seconds=30.0):
    return wait_until(lambda: backend.poll(0.1), seconds)


def test_a_member_whose_nodes_are_lost_again_and_again_is_blamed_in_the_end(backend, tmp_path):
    backend.resize(["ray:0"])
    seen = []
    for _ in range(4):
        wait_until(lambda: backend.poll(0.1) or backend.capacity())
        backend.start("ray:0", Order("m000", str(tmp_path), True, 100))
        ray.kill(backend._seats["ray:0"].actor)
        seen += reports_of(backend)
    assert [report.event for report in seen] == ["lost", "lost", "lost", "failed"]
    assert "lost 4 times in a row" in seen[-1].facts["error"]["message"]


def test_a_slot_that_goes_ends_its_process_and_makes_room(backend):
    backend.resize(["ray:0", "ray:1", "ray:2"])
    wait_until(lambda: backend.poll(0.1) or len(backend.capacity()) == 2)
    [waiting] = {"ray:0", "ray:1", "ray:2"} - set(backend.capacity())
    backend.resize([waiting, next(iter(backend.capacity()))])
    wait_until(lambda: backend.poll(0.1) or len(backend.capacity()) == 2)
    assert waiting in backend.capacity()


def test_a_node_that_does_not_see_the_directory_is_told(backend, root, tmp_path):
    with pytest.raises(RecipeError, match="1 node can't train") as caught:
        cluster.check_nodes(tmp_path / "elsewhere", backend._proof, RaySettings())
    assert "can't read" in caught.value.found
    with pytest.raises(RecipeError) as caught:
        cluster.check_nodes(root, "another proof", RaySettings())
    assert "another directory" in caught.value.found
    assert "same path" in caught.value.remedy


def test_another_version_of_erl_is_told(backend, root, monkeypatch):
    monkeypatch.setattr("erlcli.__version__", "9.9")
    with pytest.raises(RecipeError) as caught:
        cluster.check_nodes(root, backend._proof, RaySettings())
    assert "and 9.9 here" in caught.value.found
    backend.resize(["ray:0"])  # as for a node that came later
    with pytest.raises(RecipeError, match="1 node can't train") as caught:
        wait_until(lambda: backend.poll(0.1))
    assert "and 9.9 here" in caught.value.found


def test_a_node_that_can_have_no_slot_leaves_the_others_at_work(backend):
    backend.resize(["ray:0"])
    wait_until(lambda: backend.poll(0.1) or backend.capacity())
    backend._proof = "other"  # as for a node that mounts another volume
    backend.resize(["ray:0", "ray:1"])
    wait_until(lambda: backend.poll(0.1) or backend._seats["ray:1"].retry)
    assert backend.capacity() == ["ray:0"]


def test_an_actor_that_dies_before_its_slot_is_there_is_called_again(backend, monkeypatch):
    monkeypatch.setattr("erlcli.tournament.backends.ray.ATTEMPT_SECONDS", 0.0)
    backend.resize(["ray:0"])
    ray.kill(backend._seats["ray:0"].actor)
    wait_until(lambda: backend.poll(0.1) or backend.capacity())
    backend.resize([])
    backend.resize(["ray:0"])
    with pytest.raises(RecipeError, match="1 node can't train") as caught:
        for _ in range(200):
            if backend._seats["ray:0"].actor is not None:
                ray.kill(backend._seats["ray:0"].actor)
            backend.poll(0.1)
    assert "5 times in a row" in caught.value.found


def test_room_is_counted_by_cores_and_shares_of_gpus(backend):
    assert cluster.room(RaySettings(cpus=1)) == 2
    assert cluster.room(RaySettings(cpus=2)) == 1
    assert cluster.room(RaySettings(cpus=3)) == 0
    assert cluster.room(RaySettings(gpus=0.25)) == 0


def test_who_takes_over_waits_for_the_slots_of_the_last_owner(backend, root, monkeypatch):
    backend.resize(["ray:0"])
    wait_until(lambda: backend.poll(0.1) or backend.capacity())
    monkeypatch.setattr(cluster, "LEAVE_SECONDS", 0.2)
    with pytest.raises(OwnedError, match="still at work"):
        cluster.supersede(root)
    backend.resize([])
    monkeypatch.setattr(cluster, "LEAVE_SECONDS", 20.0)
    cluster.supersede(root)
