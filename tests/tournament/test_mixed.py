"""Several algorithms in one population, with real members: each trains, has children, and costs what it steps."""

import pytest

from erlcli.algorithms import registry
from erlcli.engine import checkpoint
from erlcli.engine.fusion import forget, fuse
from erlcli.recipe.load import read_toml
from erlcli.recipe.shipped import find
from erlcli.recipe.tournament import check_tournament
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.members import Member
from erlcli.tournament import evolve
from erlcli.tournament.ledger import Ledger, fold
from erlcli.tournament.members import MemberStore
from erlcli.tournament.session import HEADER, conduct

SLICE = 256
OFF_POLICY = {"algorithm.rollout_length": 16, "algorithm.warmup_steps": 64, "algorithm.batch_size": 32}
POPULATIONS = {
    "CartPole-v1": {"ppo": {}, "dqn": OFF_POLICY, "sac_discrete": OFF_POLICY},
    "Pendulum-v1": {"ppo": {}, "sac": OFF_POLICY, "td3": OFF_POLICY},
}


def population(env, **section):
    algorithms = POPULATIONS[env]
    search = {"algorithm.name": {"kind": "choice", "values": list(algorithms)},
              "algorithm.learning_rate": {"kind": "loguniform", "low": 1e-4, "high": 1e-3}}  # fmt: skip
    search |= {name: {**keys, "algorithm.gamma": {"kind": "uniform", "low": 0.9, "high": 0.99}}
               for name, keys in algorithms.items()}  # fmt: skip
    data = {
        "train": {"total_steps": 100_000, "seed": 1},
        "env": {"id": env, "num_envs": 2, "backend": "gymnasium"},
        "network": {"hidden": [16]},
        "eval": {"num_envs": 2},
        "log": {"tensorboard": False},
        "algorithm": {"name": "ppo", "rollout_length": 32, "batch_size": 64, "epochs": 1},
        "tournament": {"members": 5, "leaderboard": 4, "slice": {"steps": SLICE}, "budget": {"steps": 14 * SLICE},
                       "selection": {"temperature": 100.0},
                       "evaluation": {"episodes": 2, "confirm_episodes": 2}, "search": search, **section},
    }  # fmt: skip
    return check_tournament(data, "test")


def conducted(root, recipe, slots=("cpu:0", "cpu:1")):
    layout = RunLayout(root)
    root.mkdir()
    for folder in ("control", "errors", "events", "processes", "members"):
        (root / folder).mkdir()
    (root / "journal.jsonl").touch()
    layout.recipe.write_text(HEADER + recipe.dump())
    lock = RunLock.acquire(layout.lock)
    try:
        outcome = conduct(layout, lock, slots)
    finally:
        lock.release()
    assert outcome.state == "finished", outcome.error
    return layout, read(root / "journal.jsonl")


def events(rows, name):
    return [row for row in rows if row["event"] == name]


@pytest.fixture(scope="module", params=sorted(POPULATIONS))
def finished(request, tmp_path_factory):
    recipe = population(request.param)
    layout, rows = conducted(tmp_path_factory.mktemp("mixed") / "run", recipe)
    return recipe, layout, rows


def test_every_algorithm_trains_and_is_scored(finished):
    recipe, layout, rows = finished
    ledger = fold(rows)
    assert not [row for row in events(rows, "slice_end") if row["why"] not in ("budget", "done")]
    used = {member.algorithm for member in ledger.board.members.values()}
    assert used == set(recipe.space.algorithms)
    scored = {ledger.board.members[row["member"]].algorithm for row in events(rows, "evaluate")}
    assert scored == used
    for member in ledger.board.members.values():
        metrics = read(layout.root / "members" / member.id / "metrics.jsonl")
        if metrics:
            names = set().union(*metrics)
            # PPO's clipping, or a replay: it is really that algorithm which trained
            assert ("replay/size" in names) == (member.algorithm != "ppo")
            assert any(name.startswith("grad_norm") or name == "policy/kl" for name in names)


def test_a_slice_costs_what_it_steps_whatever_the_algorithm(finished):
    recipe, _, rows = finished
    ledger = fold(rows)
    longest = 32 * 2  # a rollout: a slice ends behind the one that reaches its end
    for row in events(rows, "slice_end"):
        start = [r for r in events(rows, "slice_start") if r["member"] == row["member"] and r["seq"] < row["seq"]][-1]
        assert SLICE <= row["to_steps"] - start["from_steps"] <= SLICE + longest
    assert recipe.budget_steps <= ledger.spent_steps <= recipe.budget_steps + 3 * (SLICE + longest)


def test_children_keep_their_parents_algorithm_and_its_own_keys(finished):
    recipe, _, rows = finished
    board = fold(rows).board
    children = [member for member in board.members.values() if member.parent is not None]
    assert children
    for child in children:
        assert child.algorithm == child.parent.algorithm
        made = recipe.member(child.parameters, 0)
        assert made.algorithm.name == child.algorithm


def off_policy_parent(root, finished):
    """The checkpoint of a member with a replay."""
    _, layout, rows = finished
    for member in fold(rows).board.members.values():
        for path in sorted((layout.root / "members" / member.id / "checkpoints").glob("0*")):
            if list(path.glob("replay-*")):
                return member, path
    raise AssertionError("none has a replay")


def restored(recipe, member, path, root):
    """The algorithm that trains on from a checkpoint, and its loop's counters."""
    import torch

    from erlcli.engine.learner import StopFlag, assemble
    from erlcli.engine.slice import PROCESS
    from erlcli.runs.writer import EventLog, Heartbeat

    layout = RunLayout(root)
    layout.create()
    path.rename(layout.checkpoints / path.name)
    beat, log = Heartbeat(layout, PROCESS), EventLog(layout, PROCESS, 1)
    loop, sampler = assemble(
        layout, recipe.member(member.parameters, 0), 1, StopFlag(layout), beat, log, torch.device("cpu")
    )
    loop.enough = lambda: loop.counters.steps >= int(path.name) + 128
    loop.run()
    sampler.close()
    beat.close()
    log.close()
    return loop


def test_a_replay_can_be_left_behind_and_training_goes_on(finished, tmp_path):
    recipe = finished[0]
    member, path = off_policy_parent(tmp_path, finished)
    target = tmp_path / path.name
    forget(path, target)
    checkpoint.verify(target)
    assert not list(target.glob("replay-*"))
    before, after = checkpoint.load(path), checkpoint.load(target)
    assert after.state["steps"] == before.state["steps"]
    assert all((before.policy[name] == after.policy[name]).all() for name in before.policy)
    loop = restored(recipe, member, target, tmp_path / "run")
    assert 128 <= loop.algorithm.replay.size * 2 <= 192  # what it saw since, not what its parent had
    assert loop.algorithm.updates > 0


def test_fused_members_have_the_replay_of_one_of_them(finished, tmp_path):
    recipe = finished[0]
    member, path = off_policy_parent(tmp_path, finished)
    target = tmp_path / path.name
    fuse([path, path], target, int(path.name))
    assert {p.name for p in target.glob("replay-*")} == {p.name for p in path.glob("replay-*")}
    loop = restored(recipe, member, target, tmp_path / "run")
    assert loop.algorithm.replay.size * 2 > 192


@pytest.mark.parametrize("copies", [True, False])
def test_copy_replay_decides_what_a_child_gets(copies, finished, tmp_path):
    member, path = off_policy_parent(tmp_path, finished)
    store = MemberStore(tmp_path, population(finished[0].base.env.id, copy_replay=copies))
    parent = RunLayout(store.path(member.id))
    parent.create()
    (parent.checkpoints / path.name).symlink_to(path)
    child = Member("m900", member, member.algorithm, {}, member.parameters, 5, 0.0)
    store.create(child, {"steps": int(path.name), "member": "m900"})
    made = store.path("m900") / "checkpoints" / path.name
    checkpoint.verify(made)
    assert bool(list(made.glob("replay-*"))) == copies


def test_founders_take_the_algorithms_in_turn():
    recipe = population("CartPole-v1", members=7)
    ledger = Ledger()
    for seq in range(1, 8):
        ledger.add({"seq": seq, "time": 1.0, **evolve.settle(ledger, recipe)})
    names = [member.algorithm for member in ledger.board.members.values()]
    assert names == ["ppo", "dqn", "sac_discrete"] * 2 + ["ppo"]


def test_the_shipped_one_has_three_algorithms_that_take_every_value():
    recipe = check_tournament(read_toml(find("tournament_mixed_cartpole")), "x")
    assert recipe.space.algorithms == ["ppo", "dqn", "sac_discrete"]
    assert set(recipe.space.algorithms) <= set(registry.configs())
