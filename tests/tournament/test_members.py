"""Members' directories: made from parents' checkpoints, which live as long as they are needed."""

import errno
import os
import shutil

import pytest
import torch

from erlcli.core.seeding import derive as torch_derive
from erlcli.core.types import Box, Discrete, EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.fusion import average, fuse
from erlcli.errors import DamagedError
from erlcli.recipe.load import load
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.layout import RunLayout, open_run
from erlcli.runs.lock import RunLock
from erlcli.tournament.draws import derive
from erlcli.tournament.ledger import Crown, Ledger
from erlcli.tournament.members import MemberStore, link_folder, name_of

SPEC = EnvSpec(Box((4,), "float32", (-1.0,) * 4, (1.0,) * 4), Discrete(2), 8)


def made(recipe, seed=0, steps=100):
    """An algorithm with moments in all of its optimiser, and its checkpoint."""
    torch.manual_seed(seed)
    algorithm = build.algorithm(recipe, SPEC, torch.device("cpu"))
    algorithm.optimizer.exp_avg.normal_()
    algorithm.optimizer.exp_avg_sq.uniform_()
    algorithm.optimizer.updates = seed
    state = {"steps": steps, "version": 3, "updates": seed, "seconds": 1.0, "attempt": 1, "planned": True,
             "episodes": {"episodes": 0, "returns": [], "lengths": []}}  # fmt: skip
    return algorithm, Checkpoint(algorithm.policy.state_dict(), algorithm.state_dict(), state)


class Disk:
    """A tournament with members that have checkpoints."""

    def __init__(self, root, *overrides):
        self.recipe = load_tournament("tournament_cartpole", ["tournament.members=2", *overrides])
        self.root, self.ledger, self.rows = root, Ledger(), {}
        self.store = MemberStore(root, self.recipe)

    def add(self, event, **facts):
        row = {"seq": self.ledger.board.seq + 1, "time": float(self.ledger.board.seq), "event": event, **facts}
        assert self.ledger.add(row)
        return row

    def spawn(self, name, parent=None, steps=0, changes=None, **facts):
        row = self.add("spawn", member=name, parent=parent, algorithm="ppo", steps=steps, seed=len(self.rows),
                       changes=changes or {}, **facts)  # fmt: skip
        self.rows[name] = row
        self.store.create(self.ledger.board.members[name], row)
        return RunLayout(self.store.path(name))

    def train(self, name, steps, seed=0):
        layout = RunLayout(self.store.path(name))
        _, saved = made(load(layout.recipe), seed, steps)
        checkpoint.save(layout.checkpoints / name_of(steps), saved)
        self.add("slice_end", member=name, to_steps=steps, why="budget")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


@pytest.mark.parametrize(("wanted", "found"), [("auto", "off"), ("on", "on")])
def test_members_compile_their_steps_only_if_asked_to(tmp_path, wanted, found):
    layout = Disk(tmp_path, "train.total_steps=100_000_000", f"engine.compile={wanted}").spawn("m0000")
    assert load(layout.recipe).engine.compile == found


def test_a_founder_is_a_run_that_has_not_begun(disk):
    layout = open_run(disk.spawn("m000", changes={"algorithm.learning_rate": 1e-4}).root)
    recipe = load(layout.recipe)
    assert recipe.algorithm.learning_rate(0) == 1e-4
    assert recipe.train.seed == 0
    assert not list(layout.checkpoints.iterdir())


def test_a_child_has_its_parents_checkpoint_and_its_own_recipe(disk):
    disk.spawn("m000", changes={"algorithm.gamma": 0.95})
    disk.train("m000", 100)
    child = disk.spawn("m001", "m000", 100, {"algorithm.learning_rate": 1e-4})
    recipe = load(child.recipe)
    assert (recipe.algorithm.gamma, recipe.algorithm.learning_rate(0)) == (0.95, 1e-4)
    saved = checkpoint.load(child.checkpoints / name_of(100))
    parent = checkpoint.load(disk.store.path("m000") / "checkpoints" / name_of(100))
    for name, tensor in parent.policy.items():
        assert torch.equal(saved.policy[name], tensor)


def test_after_each_mutation_the_optimisers_state_covers_every_parameter(disk):
    disk.spawn("m000")
    disk.train("m000", 100, seed=5)
    from random import Random

    settings = dict.fromkeys(disk.recipe.space.common, None)
    settings = disk.recipe.space.sample(Random(1))
    for number in range(1, 6):
        settings = disk.recipe.space.mutate(settings, Random(number), disk.recipe.mutation)
        child = disk.spawn(f"m{number:03d}", "m000", 100, settings)
        algorithm = build.algorithm(load(child.recipe), SPEC, torch.device("cpu"))
        saved = checkpoint.load(child.checkpoints / name_of(100))
        algorithm.policy.load_state_dict(saved.policy)
        algorithm.load_state_dict(saved.learner)
        size = sum(p.numel() for module in (algorithm.policy, algorithm.critic) for p in module.parameters())
        assert algorithm.optimizer.exp_avg.numel() == algorithm.optimizer.exp_avg_sq.numel() == size
        assert (algorithm.optimizer.exp_avg != 0).all()


def test_the_checkpoint_that_was_scored_is_held_however_few_are_kept(disk):
    """keep = 1: the donor trains on and prunes, and its child still gets what was scored."""
    disk.spawn("m000")
    disk.train("m000", 100, seed=1)
    disk.store.hold("m000", 100)
    disk.train("m000", 200, seed=2)
    checkpoint.prune(RunLayout(disk.store.path("m000")), keep=1)
    child = disk.spawn("m001", "m000", 100)
    assert checkpoint.load(child.checkpoints / name_of(100)).learner["optimizer"]["updates"] == 1
    disk.store.hold("m000", 200)
    assert [path.name for path in (disk.store.path("m000") / "held").iterdir()] == [name_of(200)]


def test_a_donor_that_is_gone_leaves_nothing_behind(disk):
    disk.spawn("m000")
    disk.train("m000", 100)
    shutil.rmtree(disk.store.path("m000"))
    with pytest.raises(DamagedError, match="m000"):
        disk.spawn("m001", "m000", 100)
    assert [path.name for path in (disk.root / "members").iterdir()] == []


@pytest.mark.parametrize("left", ["the one that trains on", "none"])
def test_a_parents_checkpoint_that_goes_while_it_is_copied(left, disk, monkeypatch):
    disk.spawn("m000")
    disk.train("m000", 100)
    disk.store.hold("m000", 100)
    parent, link = disk.store.path("m000"), os.link

    def linked(source, target):
        if "/held/" in str(source) and str(source).endswith("policy.safetensors"):
            shutil.rmtree(parent / "held")
            if left == "none":
                shutil.rmtree(parent / "checkpoints")
        return link(source, target)

    monkeypatch.setattr(os, "link", linked)
    if left == "none":
        with pytest.raises(DamagedError, match="no checkpoint at 100"):
            disk.spawn("m001", "m000", 100)
        assert not disk.store.path("m001").exists()
        assert not list(disk.store.path("m001").parent.glob(".*"))
    else:
        checkpoint.verify(disk.spawn("m001", "m000", 100).checkpoints / name_of(100))


@pytest.mark.parametrize("how", ["whole", "a bit", "a file", "the folder"])
def test_what_children_would_start_from_is_checked(how, disk):
    layout = disk.spawn("m000")
    disk.train("m000", 100)
    folder = layout.checkpoints / name_of(100)
    if how == "a bit":
        data = bytearray((folder / "learner.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "learner.safetensors").write_bytes(data)
    elif how == "a file":
        (folder / "policy.safetensors").unlink()
    elif how == "the folder":
        shutil.rmtree(folder)
    if how == "whole":
        disk.store.check("m000", 100)
    else:
        with pytest.raises(DamagedError, match="m000"):
            disk.store.check("m000", 100)


def test_killed_in_the_middle_of_a_copy_it_is_made_anew(disk, monkeypatch):
    disk.spawn("m000")
    disk.train("m000", 100)
    real, calls = os.link, []

    def link(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(KeyboardInterrupt):
        disk.spawn("m001", "m000", 100)
    monkeypatch.undo()
    (disk.root / "members" / ".m001" / "checkpoints").mkdir(parents=True)  # as a kill -9 leaves it
    disk.store.create(disk.ledger.board.members["m001"], disk.rows["m001"])
    checkpoint.verify(disk.store.path("m001") / "checkpoints" / name_of(100))
    assert sorted(path.name for path in (disk.root / "members").iterdir()) == ["m000", "m001"]


@pytest.mark.parametrize("differs", ["settings", "steps", "recipe"])
def test_what_a_journal_that_was_cut_has_left_is_set_aside(differs, disk):
    """The rows after the cut give the name to somebody else."""
    layout = disk.spawn("m000", changes={"algorithm.gamma": 0.9})
    if differs == "steps":
        disk.train("m000", 100)
    if differs == "recipe":
        layout.recipe.write_text("torn")
    (disk.root / "champions" / f"m000-{name_of(100)}").mkdir(parents=True)
    gamma = 0.95 if differs == "settings" else 0.9
    again = Disk(disk.root).spawn("m000", changes={"algorithm.gamma": gamma})
    assert load(again.recipe).algorithm.gamma == gamma
    assert not list(again.checkpoints.iterdir())
    assert (disk.root / "aside" / "m000-1" / "recipe.toml").exists()
    assert not list((disk.root / "champions").iterdir())


def test_what_is_a_members_own_stays(disk):
    layout = disk.spawn("m000", changes={"algorithm.learning_rate": 1e-4, "network.hidden": [8]})
    inode = layout.root.stat().st_ino
    disk.store.create(disk.ledger.board.members["m000"], disk.rows["m000"])
    disk.train("m000", 100)
    layout.recipe.write_text("torn")  # it has trained: its checkpoints are worth more than its recipe
    disk.store.create(disk.ledger.board.members["m000"], disk.rows["m000"])
    assert layout.root.stat().st_ino == inode
    assert not (disk.root / "aside").exists()


def test_without_hard_links_files_are_copied(disk, monkeypatch):
    disk.spawn("m000")
    disk.train("m000", 100)

    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    child = disk.spawn("m001", "m000", 100)
    checkpoint.verify(child.checkpoints / name_of(100))


def test_a_link_is_not_hurt_by_what_becomes_of_its_source(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    link_folder(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    assert (tmp_path / "b" / "file").read_text() == "x"


def crowned(disk, name, steps, mean):
    row = {"time": 1.0, "ci": [mean - 1, mean + 1], "std": 2.0, "episodes": 50}
    disk.store.crown(Crown(name, steps, mean, mean), row)
    return RunLayout(disk.root / "champion")


def test_the_champion_is_a_run_of_its_own_and_replaced_in_one_step(disk):
    from erlcli.engine.load_policy import load_policy

    for name, steps, seed in (("m000", 100, 1), ("m001", 300, 2)):
        layout = disk.spawn(name)
        layout.spec.write_text(__import__("json").dumps(SPEC.to_json()))
        disk.train(name, steps, seed)
    first = crowned(disk, "m000", 100, 10.0)
    assert load_policy(first).facts["steps"] == 100
    before = first.root.resolve()
    second = crowned(disk, "m001", 300, 20.0)
    assert load_policy(second).facts["steps"] == load_policy(second, "last").facts["steps"] == 300
    assert not before.exists()
    shutil.rmtree(disk.store.path("m001"))
    assert load_policy(RunLayout(disk.root / "champion")).facts["steps"] == 300
    assert crowned(disk, "m001", 300, 20.0).root.resolve() == second.root.resolve()  # once more is nothing new


@pytest.mark.parametrize("made_of_it", ["export/policy.onnx", "videos/best.mp4", "checkpoints/000000000200", "lock"])
def test_a_former_champion_stays_while_its_users_need_it(disk, made_of_it):
    for name, steps in (("m000", 100), ("m001", 300)):
        disk.spawn(name)
        disk.train(name, steps)
    before = crowned(disk, "m000", 100, 10.0).root.resolve()
    lock = RunLock.acquire(before / "lock") if made_of_it == "lock" else None
    if lock is None:
        (before / made_of_it).mkdir(parents=True)
    crowned(disk, "m001", 300, 20.0)
    assert (before / made_of_it).exists() and (before / "recipe.toml").exists()
    if lock is not None:
        lock.release()


def test_a_champion_whose_folder_was_damaged_is_made_again(disk):
    disk.spawn("m000")
    disk.train("m000", 100)
    layout = crowned(disk, "m000", 100, 10.0)
    layout.recipe.unlink()
    assert crowned(disk, "m000", 100, 10.0).recipe.exists()
    (disk.root / "champion").unlink()
    assert crowned(disk, "m000", 100, 10.0).recipe.exists()


def test_members_follow_the_recipe_and_keep_what_is_their_own(disk):
    layout = disk.spawn("m000", changes={"algorithm.learning_rate": 1e-4})
    disk.recipe = load_tournament("tournament_cartpole", ["tournament.members=2", "algorithm.adam_eps=1e-6"])
    store = MemberStore(disk.root, disk.recipe)
    store.renew(disk.ledger.board.members["m000"])
    recipe = load(layout.recipe)
    assert (recipe.algorithm.adam_eps, recipe.algorithm.learning_rate(0), recipe.train.seed) == (1e-6, 1e-4, 0)
    disk.rows["m001"] = disk.add("spawn", member="m001", parent=None, algorithm="ppo", steps=0, seed=1, changes={})
    store.renew(disk.ledger.board.members["m001"])  # whose directory is yet to be made
    assert not store.path("m001").exists()


def test_the_disk_budget_takes_the_worst_and_oldest_of_the_retired_and_nobody_else(tmp_path):
    disk = Disk(tmp_path, "tournament.disk_gigabytes=0.0001")
    for number, score in enumerate((3.0, 1.0, 2.0, 0.0)):
        name = f"m{number:03d}"
        disk.spawn(name)
        disk.train(name, 100)
        disk.add("evaluate", member=name, steps=100, mean=score, std=1.0, episodes=5, ci=[score, score], kind="slice")
        if number < 3:
            disk.add("retire", member=name, reason="lowest")
    size = sum(f.stat().st_size for f in (disk.store.path("m000") / "checkpoints").glob("*/*"))
    assert size > 25_000
    gone = disk.store.prune(disk.ledger)
    keep = max(int(1e5 // size) - 1, 0)  # beside the one that is alive
    assert gone == ["m001", "m002", "m000"][: 3 - keep]
    assert (disk.store.path("m003") / "checkpoints" / name_of(100)).exists()
    assert (disk.store.path("m001") / "recipe.toml").exists()
    assert not (disk.store.path("m001") / "checkpoints").exists()


def test_fusion_is_the_mean_of_weights_and_moments(disk, tmp_path):
    sources = []
    for number in range(3):
        name = f"m{number:03d}"
        disk.spawn(name)
        disk.train(name, 100 + number, seed=number)
        sources.append(disk.store.path(name) / "checkpoints" / name_of(100 + number))
    fuse(sources, tmp_path / "fused", 102)
    loaded, fused = [checkpoint.load(path) for path in sources], checkpoint.load(tmp_path / "fused")
    for name, tensor in fused.policy.items():
        assert torch.allclose(tensor, sum(item.policy[name] for item in loaded) / 3, atol=1e-7)
    for name in ("exp_avg", "exp_avg_sq"):
        expected = sum(item.learner["optimizer"][name] for item in loaded) / 3
        assert torch.allclose(fused.learner["optimizer"][name], expected, atol=1e-6)
    assert fused.learner["optimizer"]["updates"] == 2  # of the one that got furthest
    assert fused.state["steps"] == 102
    algorithm = build.algorithm(load(disk.store.path("m000") / "recipe.toml"), SPEC, torch.device("cpu"))
    algorithm.load_state_dict(fused.learner)


def test_averages_by_hand():
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "replay/obs": torch.tensor([1.0])}
    second = {"w": torch.tensor([3.0, 6.0]), "n": torch.tensor(5), "replay/obs": torch.tensor([9.0])}
    fused = average([first, second])
    assert fused["w"].tolist() == [2.0, 4.0]
    assert (int(fused["n"]), fused["replay/obs"].item()) == (3, 1.0)


def test_other_shapes_are_not_fused():
    with pytest.raises(DamagedError, match="can't be fused"):
        average([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}])


def test_seeds_are_hashed_as_everywhere_else():
    assert derive(7, "member", "m003") == torch_derive(7, "member", "m003")


def test_a_member_whose_env_was_drawn_gets_the_backend_that_can_step_it(tmp_path):
    """envpool stacks no frames: a backend that was chosen once for all would refuse such a member, or train another."""
    pytest.importorskip("envpool", reason="the backend that auto takes where it can")
    disk = Disk(tmp_path, 'tournament.search={"env.frame_stack" = {kind = "choice", values = [1, 4]}}')
    backends = {
        frames: load(disk.spawn(f"m00{frames}", changes={"env.frame_stack": frames}).recipe).env.backend
        for frames in (1, 4)
    }
    assert backends == {1: "envpool", 4: "gymnasium"}


def test_the_backend_is_left_open_only_where_members_may_differ_in_it(tmp_path):
    from erlcli.cli.tournament import create

    search = 'tournament.search={"env.frame_stack" = {kind = "choice", values = [1, 4]}}'
    for name, overrides, backends in (("a", [search], {"auto"}), ("b", [], {"envpool", "gymnasium"})):
        layout = create("tournament_cartpole", overrides, None, tmp_path / name)
        assert load_tournament(layout.recipe).base.env.backend in backends
    chosen = create("tournament_cartpole", [search, "env.backend=gymnasium"], None, tmp_path / "c")
    assert load_tournament(chosen.recipe).base.env.backend == "gymnasium"
