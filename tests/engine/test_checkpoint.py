"""Checkpoints: whole or not there, whenever the process dies; and nothing hostile is ever executed or believed."""

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import LEARNER, MANIFEST, POLICY, STATE, Checkpoint
from erlcli.errors import DamagedError
from erlcli.runs.layout import RunLayout

FILES = (POLICY, LEARNER, STATE, MANIFEST)


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    return made


def example(steps=100):
    policy = {"network.0.weight": torch.full((3, 2), float(steps)), "log_std": torch.tensor(-0.5)}
    learner = {
        "optimizer": {"updates": steps, "exp_avg": torch.arange(6.0), "inner": {"count": torch.tensor(3)}},
        "names": ["a", "b"],
    }
    return Checkpoint(policy, learner, {"steps": steps, "version": 1, "episodes": {"returns": [1.5]}})


def put(layout, steps):
    path = layout.checkpoints / checkpoint.name_of(steps)
    checkpoint.save(path, example(steps))
    return path


def steps_of(found):
    return found[1].state["steps"]


def hidden(layout):
    return [path.name for path in layout.checkpoints.iterdir() if path.name.startswith(".")]


# --- whole ------------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back(layout):
    policy = {
        "float64": torch.randn(3, 2, dtype=torch.float64), "bool": torch.tensor([True, False]),
        "int": torch.tensor(-(2**40)), "bfloat16": torch.randn(4).bfloat16(), "empty": torch.zeros(0, 3),
        "nan": torch.tensor([float("nan"), float("inf")]), "view": torch.arange(12.0).view(3, 4).T,
    }  # fmt: skip
    saved = Checkpoint(policy, example().learner, example().state)
    checkpoint.save(layout.checkpoints / "1", saved)
    found = checkpoint.load(layout.checkpoints / "1")
    assert set(found.policy) == set(policy)
    for name, tensor in policy.items():
        assert found.policy[name].dtype == tensor.dtype and found.policy[name].shape == tensor.shape
        assert torch.equal(found.policy[name].nan_to_num(), tensor.nan_to_num()), name
    assert found.state == {**saved.state, "format": checkpoint.FORMAT}
    assert found.learner["names"] == ["a", "b"]
    assert found.learner["optimizer"]["updates"] == 100
    assert torch.equal(found.learner["optimizer"]["exp_avg"], torch.arange(6.0))
    assert torch.equal(found.learner["optimizer"]["inner"]["count"], torch.tensor(3))


def test_tensors_that_share_memory_are_saved_each(layout):
    """The optimiser's parameters are views of one vector."""
    flat = torch.arange(6.0)
    checkpoint.save(layout.checkpoints / "1", Checkpoint({"a": flat[:2], "b": flat[2:], "all": flat}, {}, {}))
    found = checkpoint.load(layout.checkpoints / "1").policy
    assert (
        found["a"].tolist() == [0, 1] and found["b"].tolist() == [2, 3, 4, 5] and found["all"].tolist() == [*range(6)]
    )


def test_what_is_loaded_is_independent_of_the_file(layout):
    path = put(layout, 1)
    found = checkpoint.load(path)
    shutil.rmtree(path)
    assert found.policy["network.0.weight"].sum() == 6


def test_parameters_are_saved_without_their_graph(layout):
    weight = torch.nn.Parameter(torch.ones(2))
    checkpoint.save(layout.checkpoints / "1", Checkpoint({"w": weight * 2}, {}, {}))
    assert not checkpoint.load(layout.checkpoints / "1").policy["w"].requires_grad


def test_saving_again_replaces(layout):
    path = put(layout, 5)
    checkpoint.save(path, example(6))
    assert checkpoint.load(path).state["steps"] == 6
    assert [p.name for p in layout.checkpoints.iterdir()] == [path.name]


def test_state_that_json_has_no_word_for_is_refused_and_leaves_nothing(layout):
    with pytest.raises(ValueError, match="JSON"):
        checkpoint.save(layout.checkpoints / "1", Checkpoint({}, {}, {"loss": float("nan")}))
    assert list(layout.checkpoints.iterdir()) == []


def test_names_sort_like_numbers():
    numbers = [0, 9, 10, 99, 100, 5_000_000, 10**11]
    names = [checkpoint.name_of(n) for n in numbers]
    assert sorted(names) == names


# --- damaged ----------------------------------------------------------------------------------------------------------


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
    elif how == "flip first":
        data[0] ^= 0x80
    elif how == "flip last":
        data[-1] ^= 1
    elif how == "cut":
        data = data[:-1]
    elif how == "half":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = bytearray()
    elif how == "longer":
        data += b"\0"
    if how == "missing":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(data)


HARMS = ("flip", "flip first", "flip last", "cut", "half", "empty", "longer", "missing", "folder")


# A bit in the middle of a manifest may be one without meaning: the next test tries them all.
@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in FILES for how in HARMS if (name, how) != (MANIFEST, "flip")]
)
def test_damage_is_found_and_the_one_before_is_taken(layout, name, how):
    older, newer = put(layout, 100), put(layout, 200)
    damage(newer / name, how)
    with pytest.raises(DamagedError) as caught:
        checkpoint.load(newer)
    assert caught.value.exit_code == 6 and str(newer) in caught.value.message
    path, found, problems = checkpoint.newest(layout)
    assert path == older and found.state["steps"] == 100
    assert len(problems) == 1 and str(newer) in problems[0].message


def test_no_flipped_bit_in_a_manifest_changes_what_is_loaded(layout):
    path = put(layout, 100)
    whole = checkpoint.load(path)
    data = (path / MANIFEST).read_bytes()
    refused = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        (path / MANIFEST).write_bytes(flipped)
        try:
            found = checkpoint.load(path)
        except DamagedError:
            refused += 1
            continue
        assert found.state == whole.state
        assert all(torch.equal(found.policy[key], whole.policy[key]) for key in whole.policy)
    assert refused > 0.9 * len(data)


def test_files_of_two_checkpoints_do_not_mix(layout):
    older, newer = put(layout, 100), put(layout, 200)
    shutil.copy(older / POLICY, newer / POLICY)
    with pytest.raises(DamagedError, match="policy"):
        checkpoint.load(newer)


def test_newest_of_none_is_none(layout):
    assert checkpoint.newest(layout) is None


def test_newest_of_only_damaged_ones_says_so_with_all_their_faults(layout):
    for steps in (100, 200):
        (put(layout, steps) / POLICY).unlink()
    with pytest.raises(DamagedError) as caught:
        checkpoint.newest(layout)
    assert "100" in str(caught.value) and "200" in str(caught.value)


def test_what_is_no_checkpoint_is_passed_over(layout):
    put(layout, 7)
    (layout.checkpoints / ".000000000009.123").mkdir()
    (layout.checkpoints / "9extra").mkdir()
    (layout.checkpoints / "12").write_text("a file")
    checkpoint.set_best(layout, example(7).policy, {"steps": 7})
    assert [p.name for p in checkpoint.numbered(layout)] == [checkpoint.name_of(7)]
    assert steps_of(checkpoint.newest(layout)) == 7


def test_newest_goes_by_number_not_by_time_or_text(layout):
    for name in ("9", "1000", "200"):
        checkpoint.save(layout.checkpoints / name, example(int(name)))
    assert steps_of(checkpoint.newest(layout)) == 1000


# --- death at any moment ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: from here on nothing more reaches the disk."""


class Grave:
    """Lets so many calls to the file system pass, then refuses all: the disk stays as a killed process leaves it.

    Attributes:
        calls: names of the calls so far, the refused one included.
    """

    CALLS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "fsync")

    def __init__(self, monkeypatch, error=None, lasting=True):
        self.calls, self.limit, self.error, self.lasting = [], None, error or Killed, lasting
        self.thread = threading.get_ident()  # calls of any other (a heartbeat of a test before) aren't the action's
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._guarded(name, getattr(os, name)))
        for name in ("write_bytes", "write_text"):
            monkeypatch.setattr(Path, name, self._guarded(name, getattr(Path, name), self._torn))

    def _guarded(self, name, call, torn=None):
        def guarded(*args, **kwargs):
            if self.limit is None or threading.get_ident() != self.thread:
                return call(*args, **kwargs)
            dead = len(self.calls) >= self.limit
            if dead and self.lasting:
                raise self.error
            self.calls.append(name)
            if len(self.calls) == self.limit:
                if torn is not None:
                    torn(call, *args, **kwargs)
                raise self.error
            return call(*args, **kwargs)

        return guarded

    @staticmethod
    def _torn(call, path, data, *args, **kwargs):
        call(path, data[: len(data) // 2], *args, **kwargs)

    def kill_at(self, number, action):
        """Run `action` and die in its call number `number`; False once it needs fewer calls."""
        self.calls, self.limit = [], number
        try:
            action()
        except self.error:
            return True
        finally:
            self.limit = None
        return False


def crash_points(grave, prepare, action, check):
    """`action` from the same start, killed in its first call, its second ...; how many there are."""
    number = 0
    while True:
        number += 1
        prepare()
        if not grave.kill_at(number, action):
            return number - 1
        check(number)


def emptied(layout):
    shutil.rmtree(layout.checkpoints)
    layout.checkpoints.mkdir()


def test_killed_at_any_call_of_a_save_it_is_whole_or_not_there(layout, monkeypatch):
    grave = Grave(monkeypatch)

    def prepare():
        emptied(layout)
        put(layout, 100)

    def check(number):
        for path in checkpoint.numbered(layout):
            checkpoint.verify(path)  # nothing half-written is ever visible
        path, found, problems = checkpoint.newest(layout)
        assert found.state["steps"] in (100, 200) and not problems, grave.calls
        put(layout, 200)  # and what is left behind is in nobody's way
        assert steps_of(checkpoint.newest(layout)) == 200
        assert not hidden(layout)

    points = crash_points(grave, prepare, lambda: put(layout, 200), check)
    assert points >= 10  # a folder, two tensor files, two texts, six syncs and a rename


def test_killed_at_any_call_of_overwriting_one_the_older_point_is_there(layout, monkeypatch):
    grave = Grave(monkeypatch)

    def prepare():
        emptied(layout)
        put(layout, 100)
        put(layout, 200)

    def check(number):
        for path in checkpoint.numbered(layout):
            checkpoint.verify(path)
        _, found, problems = checkpoint.newest(layout)
        assert found.state["steps"] in (100, 200, 201) and not problems, grave.calls

    def overwrite():
        checkpoint.save(layout.checkpoints / checkpoint.name_of(200), example(201))

    assert crash_points(grave, prepare, overwrite, check) >= 11


def test_killed_at_any_call_of_pruning_the_newest_ones_are_there(layout, monkeypatch):
    grave = Grave(monkeypatch)

    def prepare():
        emptied(layout)
        for steps in (100, 200, 300, 400):
            put(layout, steps)

    def check(number):
        for path in checkpoint.numbered(layout)[-2:]:
            checkpoint.verify(path)
        assert steps_of(checkpoint.newest(layout)) == 400
        checkpoint.prune(layout, 2)
        assert len(checkpoint.numbered(layout)) == 2

    assert crash_points(grave, prepare, lambda: checkpoint.prune(layout, 2), check) >= 10


def test_killed_at_any_call_of_crowning_the_best_is_the_old_or_the_new_one(layout, monkeypatch):
    grave = Grave(monkeypatch)

    def prepare():
        emptied(layout)
        checkpoint.set_best(layout, example(1).policy, {"steps": 1})

    def check(number):
        assert checkpoint.load(layout.checkpoints / "best").state["steps"] in (1, 2), grave.calls
        checkpoint.set_best(layout, example(2).policy, {"steps": 2})
        assert checkpoint.load(layout.checkpoints / "best").state["steps"] == 2
        assert sorted(p.name for p in layout.checkpoints.iterdir()) == ["best", f"best-{checkpoint.name_of(2)}"]

    points = crash_points(grave, prepare, lambda: checkpoint.set_best(layout, example(2).policy, {"steps": 2}), check)
    assert points >= 12


def test_killed_at_any_call_of_a_snapshot_no_half_of_it_is_seen(layout, monkeypatch):
    grave = Grave(monkeypatch)

    def prepare():
        for path in layout.snapshots.iterdir():
            path.unlink()

    def check(number):
        for path in layout.snapshots.glob("*.safetensors"):
            assert set(load_file(path)) == set(example().policy)

    def snapshot():
        checkpoint.save_snapshot(layout, example().policy, 5, {"steps": "5"})

    assert crash_points(grave, prepare, snapshot, check) >= 2
    assert [p.name for p in layout.snapshots.glob("*.safetensors")] == [f"{checkpoint.name_of(5)}.safetensors"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_at_any_call_costs_no_checkpoint_and_leaves_nothing(layout, monkeypatch, number):
    class DiskError(OSError):
        def __init__(self):
            super().__init__(number, os.strerror(number))

    grave = Grave(monkeypatch, DiskError, lasting=False)

    def prepare():
        emptied(layout)
        put(layout, 100)

    def check(call):
        if grave.calls[-1] == "fsync" and (layout.checkpoints / checkpoint.name_of(200)).exists():
            assert steps_of(checkpoint.newest(layout)) == 200  # renamed already
        else:
            assert steps_of(checkpoint.newest(layout)) == 100
        assert not hidden(layout), grave.calls

    assert crash_points(grave, prepare, lambda: put(layout, 200), check) >= 10


def test_everything_is_on_disk_before_it_gets_its_name(layout, monkeypatch):
    order = []
    sync, rename = os.fsync, os.rename

    def noted_sync(fd):
        order.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        sync(fd)

    def noted_rename(source, target):
        order.append("rename")
        rename(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name file descriptors")
    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", noted_rename)
    put(layout, 100)
    at = order.index("rename")
    assert set(order[:at]) >= set(FILES)
    assert order[at - 1].startswith(".")  # the folder itself, with the names of its files
    assert order[at + 1 :] == ["checkpoints"]  # and its new name


# --- pruning and the best ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3, 10])
def test_prune_keeps_the_newest_and_never_the_best(layout, keep):
    for steps in (100, 200, 300, 400):
        put(layout, steps)
    checkpoint.set_best(layout, example(200).policy, {"steps": 200})
    checkpoint.prune(layout, keep)
    assert [int(p.name) for p in checkpoint.numbered(layout)] == [100, 200, 300, 400][-keep:]
    assert checkpoint.load(layout.checkpoints / "best").state["steps"] == 200


def test_what_a_reader_keeps_from_being_removed_is_removed_the_next_time(layout, monkeypatch):
    for steps in (100, 200, 300):
        put(layout, steps)
    real = shutil.rmtree

    def busy(path):
        raise OSError(number, os.strerror(number), str(path))

    for number in (errno.ENOTEMPTY, errno.EBUSY, errno.EACCES):
        monkeypatch.setattr(shutil, "rmtree", busy)
        if number == errno.EACCES:
            with pytest.raises(PermissionError):
                checkpoint.prune(layout, 1)
        else:
            checkpoint.prune(layout, 1)
    monkeypatch.setattr(shutil, "rmtree", real)
    checkpoint.prune(layout, 1)
    assert [int(p.name) for p in checkpoint.numbered(layout)] == [300]


def test_a_new_best_takes_the_place_of_the_old_one(layout):
    for steps in (1, 2, 2):
        folder = checkpoint.set_best(layout, example(steps).policy, {"steps": steps, "return_mean": 3.5})
    assert (layout.checkpoints / "best").resolve() == folder.resolve()
    found = checkpoint.load(layout.checkpoints / "best")
    assert found.learner == {} and found.state["return_mean"] == 3.5
    assert sorted(p.name for p in layout.checkpoints.iterdir()) == ["best", folder.name]


def test_a_run_whose_links_were_followed_by_its_copy_gets_a_new_best(layout, tmp_path):
    checkpoint.set_best(layout, example().policy, {"steps": 100})
    shutil.copytree(layout.root, tmp_path / "copy", symlinks=False)
    copy = RunLayout(tmp_path / "copy")
    assert not (copy.checkpoints / "best").is_symlink()
    folder = checkpoint.set_best(copy, example(200).policy, {"steps": 200})
    assert (copy.checkpoints / "best").resolve() == folder.resolve()
    assert sorted(path.name for path in copy.checkpoints.iterdir()) == ["best", folder.name]


def test_the_best_moves_with_its_run(layout):
    checkpoint.set_best(layout, example(1).policy, {"steps": 1})
    moved = layout.root.rename(layout.root.with_name("moved"))
    assert checkpoint.load(moved / "checkpoints" / "best").state["steps"] == 1


def test_a_snapshot_is_a_policy_with_facts(layout):
    path = checkpoint.save_snapshot(layout, example().policy, 123, {"steps": "123", "attempt": "2"})
    assert path.name == "000000000123.safetensors"
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"steps": "123", "attempt": "2"}
        assert set(file.keys()) == set(example().policy)


# --- hostile ----------------------------------------------------------------------------------------------------------


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return (os.system, (f"touch {self.flag}",))


def tensors_with_header(header, body=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def tensor(start, stop, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def zipped(size):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", b"\0" * size)
    return buffer.getvalue()


HUGE = 2**62
HOSTILE_TENSORS = {
    "zip bomb": zipped(50_000_000),
    "header beyond the file": tensors_with_header({}, length=1_000_000),
    "header of 2^63 bytes": tensors_with_header(b"", length=2**63),
    "overlapping tensors": tensors_with_header({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, bytes(12)),
    "tensor of 2^62 bytes": tensors_with_header({"a": tensor(0, HUGE, [HUGE // 4])}, bytes(8)),
    "shape that overflows": tensors_with_header({"a": tensor(0, 8, [2**32, 2**32, 2])}, bytes(8)),
    "shape unlike its bytes": tensors_with_header({"a": tensor(0, 8, [3])}, bytes(8)),
    "negative offset": tensors_with_header({"a": tensor(-8, 0, [2])}, bytes(8)),
    "bytes that no tensor owns": tensors_with_header({"a": tensor(0, 8, [2])}, bytes(64)),
    "unknown dtype": tensors_with_header({"a": tensor(0, 8, [2], "OBJECT")}, bytes(8)),
    "deep header": tensors_with_header(b'{"a":' * 50_000),
    "no json": tensors_with_header(b"import os"),
    "nothing": b"",
}
HOSTILE_STATES = {
    "no json": b"print(1)",
    "a list": b"[]",
    "a number": b"3",
    "deep": b"[" * 200_000,
    "no learner": b'{"format": 1}',
    "a learner that is a list": b'{"format": 1, "learner": []}',
    "a learner that is no tree": b'{"format": 1, "learner": {"a": 1, "a/b": 2}}',
    "another format": b'{"format": 999, "learner": {}}',
    "not utf-8": b"\xff\xfe{}",
    "nothing": b"",
}


def forge(path, name, data):
    """Put a file into a checkpoint, with a manifest that vouches for it."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))
    checkpoint.verify(path)  # the forgery is a good one


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", [POLICY, LEARNER, STATE, MANIFEST])
def test_a_pickle_is_refused_without_a_look_inside(layout, tmp_path, name, protocol):
    flag = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(flag), protocol)
    path = put(layout, 100)
    if name == MANIFEST:
        (path / name).write_bytes(bomb)
    else:
        forge(path, name, bomb)
    with pytest.raises(DamagedError):
        checkpoint.load(path)
    assert not flag.exists()


def test_a_torch_file_is_refused_without_a_look_inside(layout, tmp_path):
    flag, path = tmp_path / "executed", put(layout, 100)
    buffer = io.BytesIO()
    torch.save({"w": Bomb(flag)}, buffer)
    forge(path, POLICY, buffer.getvalue())
    with pytest.raises(DamagedError):
        checkpoint.load(path)
    assert not flag.exists()


@pytest.mark.parametrize("name", [POLICY, LEARNER])
@pytest.mark.parametrize("what", sorted(HOSTILE_TENSORS))
def test_tensor_files_that_lie_are_refused(layout, name, what):
    path = put(layout, 100)
    forge(path, name, HOSTILE_TENSORS[what])
    with pytest.raises(DamagedError, match="can't be read"):
        checkpoint.load(path)


@pytest.mark.parametrize("what", sorted(HOSTILE_STATES))
def test_states_that_lie_are_refused(layout, what):
    path = put(layout, 100)
    forge(path, STATE, HOSTILE_STATES[what])
    with pytest.raises(DamagedError):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "manifest",
    [
        b"[]", b"{}", b'{"files": []}', b'{"files": {"policy.safetensors": 3}}', b"[" * 200_000, b"null", b"\xff",
        b'{"files": {"policy.safetensors": {"bytes": "many", "sha256": ""}}}',
        b'{"files": {"policy.safetensors": {"bytes": 1e400, "sha256": ""}}}',
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)  # fmt: skip
def test_manifests_that_lie_are_refused(layout, manifest):
    path = put(layout, 100)
    (path / MANIFEST).write_bytes(manifest)
    with pytest.raises(DamagedError):
        checkpoint.load(path)


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "..", ".", "sub/../../x", "a\x00b"])
def test_names_in_a_manifest_lead_nowhere(layout, monkeypatch, name):
    """Only the three known files are ever opened, whatever else a manifest names."""
    path = put(layout, 100)
    (layout.root / "secret").write_text("secret")
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))
    opened = []
    real = checkpoint._describe
    monkeypatch.setattr(checkpoint, "_describe", lambda p: opened.append(p) or real(p))
    checkpoint.load(path)
    assert opened == [path / known for known in (POLICY, LEARNER, STATE)]


def test_a_manifest_that_vouches_for_too_little_is_refused(layout):
    path = put(layout, 100)
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["files"][LEARNER]
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match="learner"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", [STATE, MANIFEST])
def test_json_of_absurd_size_is_refused_before_it_is_read(layout, name):
    path = put(layout, 100)
    os.truncate(path / name, 1 << 40)  # a hole: it takes no space, but reading it would take a terabyte of memory
    with pytest.raises(DamagedError):
        checkpoint.load(path)


def test_a_pipe_or_device_in_the_place_of_a_file_is_refused_and_does_not_hang(layout):
    for name in FILES:
        path = put(layout, 100)
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(DamagedError):
            checkpoint.load(path)
        shutil.rmtree(path)
