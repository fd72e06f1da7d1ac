"""The replay in checkpoints: written once, whole in each of them, and back in its place bit for bit."""

import errno
import os
import shutil
import threading
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from erlcli.core.prioritized import Priorities
from erlcli.core.replay import Replay
from erlcli.core.types import Box, FinalObs, Rollout
from erlcli.engine import checkpoint, replay_parts
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.replay_parts import ReplaySpool
from erlcli.errors import DamagedError
from erlcli.runs.layout import RunLayout

N, ROWS = 2, 20
SPOOL = ".replay"


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    return made


class Run:
    """A replay that fills up, and its checkpoints.

    Args:
        layout: of the run.
        rows: capacity.
        spool: name of its folder.
    """

    def __init__(self, layout, rows=ROWS, spool=SPOOL):
        self.layout = layout
        box = Box((3,), "float32", (-9.0,) * 3, (9.0,) * 3)
        self.replay = Replay(
            box, (), torch.int64, num_envs=N, capacity=rows * N, gamma=0.9, n_step=2, priorities=Priorities()
        )
        self.spool = ReplaySpool(layout.checkpoints / spool, self.replay)
        self.draws = torch.Generator().manual_seed(0)
        self.last = torch.zeros(N, 3)

    def collect(self, length):
        """Add a rollout that follows from the rows so far."""
        obs = torch.randn(length + 1, N, 3, generator=self.draws)
        obs[0] = self.last
        self.last = obs[-1].clone()
        ends = torch.rand(length, N, generator=self.draws) < 0.2
        index = ends.nonzero()
        flags = torch.zeros(length, N, dtype=torch.bool)
        self.replay.add(
            Rollout(
                obs,
                torch.ones(length, N, dtype=torch.int64),
                torch.randn(length, N, generator=self.draws),
                ends,
                flags,
                ~flags,
                FinalObs(index, torch.randn(len(index), 3, generator=self.draws)),
                {},
                0,
            )
        )
        self.spool.spill()

    def save(self):
        """A checkpoint of it."""
        path = self.layout.checkpoints / checkpoint.name_of(self.replay.end)
        state = {"steps": self.replay.end}
        learner = {"replay": self.replay.state_dict()}
        checkpoint.save(path, Checkpoint({"w": torch.ones(2)}, learner, state, self.spool.flush()))
        return path

    def restored(self, path, name=".again"):
        """Another replay, from a checkpoint."""
        other = Run(self.layout, self.replay.rows, name)
        found = checkpoint.load(path)
        other.spool.restore(found.replay)
        other.replay.load_state_dict(found.learner["replay"])
        return other


def assert_same(one, other):
    assert (one.replay.end, one.replay.size, len(one.replay)) == (
        other.replay.end,
        other.replay.size,
        len(other.replay),
    )
    if not one.replay.size:
        return
    batches = [run.replay.sample(200, torch.Generator().manual_seed(1)) for run in (one, other)]
    for f in fields(batches[0]):
        assert torch.equal(*(getattr(batch, f.name) for batch in batches)), f.name


def names(path):
    return sorted(p.name for p in path.glob("replay-*"))


@pytest.mark.parametrize("part_bytes", [1, 700, 1 << 20], ids=["many", "some", "one"])
def test_every_checkpoint_brings_back_its_replay_over_many_wraps(layout, monkeypatch, part_bytes):
    monkeypatch.setattr(replay_parts, "PART_BYTES", part_bytes)
    run = Run(layout)
    for k in range(25):
        run.collect(1 + k % 7)
        if k % 3:
            continue
        path = run.save()
        assert_same(run, run.restored(path))
        checkpoint.prune(layout, 2)
        for kept in checkpoint.numbered(layout):
            checkpoint.verify(kept)  # pruning the others took nothing from these
    assert run.replay.end > 4 * ROWS
    again = run.restored(run.save())
    again.last = run.last.clone()
    again.draws.set_state(run.draws.get_state())
    for follower in (run, again):
        follower.collect(5)
    assert_same(run, again)
    assert names(run.save()) == names(again.save()), "a resumed run writes the parts that the untouched one writes"


def test_the_version_before_the_first_step_has_no_parts(layout):
    run = Run(layout)
    path = run.save()
    assert names(path) == []
    assert_same(run, run.restored(path))


def test_only_what_is_new_is_written(layout, monkeypatch):
    monkeypatch.setattr(replay_parts, "PART_BYTES", 1)
    run = Run(layout)
    written = []
    write = replay_parts.write

    def noted(path, rollout):
        written.append(len(rollout.reward))
        return write(path, rollout)

    monkeypatch.setattr(replay_parts, "write", noted)
    run.collect(8)
    first = run.save()
    run.collect(3)
    second = run.save()
    assert written == [8, 3]
    assert set(names(first)) < set(names(second))
    for name in names(first):
        assert os.path.samefile(first / name, second / name)


@pytest.mark.parametrize("rows", [6, 15, 20, 33, 200])
def test_a_replay_comes_back_with_more_room_or_less(layout, rows):
    """The newest rows are there, as many as fit and were there; also those that a part had kept for nobody are not."""
    run = Run(layout)
    for _ in range(10):
        run.collect(7)
    found = checkpoint.load(run.save())
    other = Run(layout, rows, ".other")
    other.spool.restore(found.replay)
    other.replay.load_state_dict(found.learner["replay"])
    assert (other.replay.end, other.replay.size) == (run.replay.end, min(rows, ROWS))
    kept = other.replay.rollout(other.replay.end - other.replay.size, other.replay.end)
    wanted = run.replay.rollout(run.replay.end - other.replay.size, run.replay.end)
    for name in replay_parts.COLUMNS:
        assert torch.equal(getattr(kept, name), getattr(wanted, name)), name
    for drawn in other.replay.sample(500, torch.Generator().manual_seed(0)).obs:
        assert (drawn == wanted.obs[:-1].reshape(-1, 3)).all(1).any()
    other.collect(5)  # and goes on


def test_small_parts_are_put_together(layout, monkeypatch):
    run = Run(layout, rows=500)
    monkeypatch.setattr(replay_parts, "PART_BYTES", 100 * run.replay.row_bytes)
    for _ in range(100):
        run.collect(5)
        path = run.save()
        checkpoint.prune(layout, 1)
    assert 4 <= len(names(path)) <= 10
    assert_same(run, run.restored(path))


def test_a_full_part_does_not_wait_for_the_checkpoint(layout, monkeypatch):
    run = Run(layout)
    monkeypatch.setattr(replay_parts, "PART_BYTES", 5 * run.replay.row_bytes)
    run.collect(4)
    assert not (layout.checkpoints / SPOOL).exists()
    run.collect(4)
    assert len(names(layout.checkpoints / SPOOL)) == 1


def test_rows_that_made_room_before_they_were_written_are_not_needed(layout):
    run = Run(layout)
    for _ in range(9):
        run.collect(7)
    path = run.save()
    assert [part.rows for part in checkpoint.load(path).replay] == [(63 - ROWS, 63)]
    assert_same(run, run.restored(path))


def test_without_hard_links_parts_are_copied(layout, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    run = Run(layout)
    run.collect(8)
    path = run.save()
    run.spool.close()
    assert not (layout.checkpoints / SPOOL).exists()
    assert_same(run, run.restored(path))


# --- damage, death and full disks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "pipe"])
def test_a_damaged_part_is_found_and_the_checkpoint_before_taken(layout, monkeypatch, how):
    monkeypatch.setattr(replay_parts, "PART_BYTES", 1)
    run = Run(layout)
    run.collect(4)
    older = run.save()
    run.collect(4)
    path = run.save()
    part = path / names(path)[-1]
    data = bytearray(part.read_bytes())
    part.unlink()
    if how == "flip":
        data[len(data) // 2] ^= 1
    if how == "pipe":
        os.mkfifo(part)
    elif how != "missing":
        part.write_bytes(data[:-1] if how == "cut" else data)
    with pytest.raises(DamagedError, match="replay"):
        checkpoint.load(path)
    assert checkpoint.newest(layout)[0] == older
    checkpoint.verify(path, replay=False)  # the policy can be used


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "policy.safetensors", "replay-1-2.safetensors"])
def test_parts_with_strange_names_are_refused(layout, monkeypatch, name):
    real = checkpoint._read_json

    def lying(path):
        value = real(path)
        if path.name == checkpoint.MANIFEST:
            value["files"].setdefault(name, {"bytes": 1, "sha256": ""})
        return value | {"replay": [name]} if path.name == checkpoint.STATE else value

    run = Run(layout)
    path = run.save()
    monkeypatch.setattr(checkpoint, "_read_json", lying)
    with pytest.raises(DamagedError, match="strange name"):
        checkpoint.load(path)


def test_a_part_that_the_manifest_leaves_out_is_refused(layout, monkeypatch):
    run = Run(layout)
    run.collect(4)
    path = run.save()
    real = checkpoint._read_json

    def silent(path):
        value = real(path)
        for name in names(path.parent):
            value.get("files", {}).pop(name, None)
        return value

    monkeypatch.setattr(checkpoint, "_read_json", silent)
    with pytest.raises(DamagedError):
        checkpoint.load(path)


class Stop(BaseException):
    """Stands for SIGKILL."""


class Grave:
    """Lets so many calls to the file system pass; then one fails, and with `lasting` all others too."""

    def __init__(self, monkeypatch, error, lasting):
        self.count, self.limit, self.error, self.lasting = 0, None, error, lasting
        self.thread = threading.get_ident()  # calls of any other (a heartbeat of a test before) aren't the action's
        for owner, name in [(os, n) for n in ("rename", "link", "unlink", "mkdir", "fsync")] + [(Path, "write_bytes")]:
            monkeypatch.setattr(owner, name, self._guarded(name, getattr(owner, name)))

    def _guarded(self, name, call):
        def guarded(*args, **kwargs):
            if self.limit is not None and threading.get_ident() == self.thread:
                self.count += 1
                if self.count == self.limit or (self.lasting and self.count > self.limit):
                    if name == "write_bytes":
                        call(args[0], args[1][: len(args[1]) // 2])
                    raise self.error
            return call(*args, **kwargs)

        return guarded

    def strike(self, number, action):
        """Run `action` with its call number `number` failing; False once it needs fewer calls."""
        self.count, self.limit = 0, number
        try:
            action()
        except (Stop, OSError):
            pass
        finally:
            self.limit = None
        return self.count >= number


def crash_points(layout, grave, check):
    """A second checkpoint that fails at its first call, its second ...; how many there are."""
    number = 0
    while True:
        number += 1
        shutil.rmtree(layout.checkpoints)
        layout.checkpoints.mkdir()
        run = Run(layout)
        run.collect(6)
        first = run.save()
        before = run.restored(first, ".before")
        run.collect(6)
        struck = grave.strike(number, run.save)
        checkpoint.verify(first)
        path, _, problems = checkpoint.newest(layout)
        assert not problems
        assert_same(run.restored(path), before if path == first else run)
        check(run, struck)
        if not struck:
            return number - 1


def test_killed_at_any_call_of_a_save_a_whole_replay_is_there(layout, monkeypatch):
    monkeypatch.setattr(replay_parts, "PART_BYTES", 1)
    assert crash_points(layout, Grave(monkeypatch, Stop, lasting=True), lambda run, struck: None) >= 12


def test_a_full_disk_at_any_call_costs_no_checkpoint_and_the_next_save_works(layout, monkeypatch):
    """Merged parts too: the old one goes only once the new one is there."""
    full = OSError(errno.ENOSPC, "full")

    def check(run, struck):
        path = run.save()
        assert_same(run.restored(path, ".check"), run)

    # A failed hard link is answered by a copy, so that only one that fails too would be a failure.
    assert crash_points(layout, Grave(monkeypatch, full, lasting=False), check) > 8


def test_a_spool_forgets_what_a_killed_process_left(layout):
    run = Run(layout)
    run.collect(4)
    run.spool.flush()
    assert names(layout.checkpoints / SPOOL)
    Run(layout)
    assert not (layout.checkpoints / SPOOL).exists()
