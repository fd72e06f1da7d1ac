import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from erlcli.errors import OwnedError, RecipeError
from erlcli.runs import lock as lock_module
from erlcli.runs.lock import RunLock, is_owned, read_owner

# A process that takes the lock, says so, and holds it until its stdin ends.
HOLDER = """
import sys
from pathlib import Path
from erlcli.errors import OwnedError
from erlcli.runs.lock import RunLock
print("ready", flush=True)
sys.stdin.readline()
try:
    lock = RunLock.acquire(Path(sys.argv[1]), patience_seconds=float(sys.argv[2]))
except OwnedError as error:
    print("refused", error.exit_code, flush=True)
    sys.exit(error.exit_code)
print("owner", flush=True)
sys.stdin.read()
"""
SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"


class Process:
    """A child that is told what to do by lines and answers by lines."""

    def __init__(self, *arguments, **options):
        self.popen = subprocess.Popen(
            [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        assert self.line() == "ready"

    def line(self):
        return self.popen.stdout.readline().strip()

    def go(self):
        self.popen.stdin.write("go\n")
        self.popen.stdin.flush()

    def leave(self):
        self.popen.stdin.close()
        return self.popen.wait(timeout=30)


@pytest.fixture
def spawn():
    children = []

    def start(*arguments, **options):
        children.append(Process(*arguments, **options))
        return children[-1]

    yield start
    for child in children:
        child.popen.kill()
        child.popen.wait()
        child.popen.stdin.close()
        child.popen.stdout.close()


def holder(spawn, path, patience=0.0):
    return spawn(HOLDER, str(path), str(patience))


def test_nobody_owns_a_run_without_a_lock_file(tmp_path):
    assert not is_owned(tmp_path / "lock")
    assert read_owner(tmp_path / "lock") == {}


def test_acquire_and_release(tmp_path):
    path = tmp_path / "lock"
    lock = RunLock.acquire(path)
    assert is_owned(path)
    assert read_owner(path)["pid"] == os.getpid()
    lock.release()
    assert not is_owned(path)
    RunLock.acquire(path).release()


def test_the_second_is_refused_with_the_owner_named(tmp_path):
    path = tmp_path / "lock"
    lock = RunLock.acquire(path)
    with pytest.raises(OwnedError) as caught:
        RunLock.acquire(path)
    assert caught.value.exit_code == 5
    assert str(os.getpid()) in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert read_owner(path)["pid"] == os.getpid()
    lock.release()


def test_a_refused_acquire_leaves_no_open_file(tmp_path):
    path = tmp_path / "lock"
    lock = RunLock.acquire(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OwnedError):
            RunLock.acquire(path)
        is_owned(path)
    assert len(os.listdir("/proc/self/fd")) == before
    lock.release()


def test_of_racing_processes_exactly_one_owns_it(tmp_path, spawn):
    path = tmp_path / "lock"
    for _ in range(3):
        racers = [holder(spawn, path) for _ in range(3)]
        for racer in racers:
            racer.go()
        answers = [racer.line() for racer in racers]
        assert sorted(answers) == ["owner", "refused 5", "refused 5"]
        winner = racers[answers.index("owner")]
        assert read_owner(path)["pid"] == winner.popen.pid
        assert [racer.leave() for racer in racers if racer is not winner] == [5, 5]
        assert is_owned(path)
        assert winner.leave() == 0
        assert not is_owned(path)


def test_sigkill_leaves_no_stale_lock(tmp_path, spawn):
    path = tmp_path / "lock"
    owner = holder(spawn, path)
    owner.go()
    assert owner.line() == "owner"
    assert is_owned(path)
    owner.popen.send_signal(signal.SIGKILL)
    owner.popen.wait(timeout=30)
    assert not is_owned(path)
    RunLock.acquire(path).release()


def test_a_child_that_inherited_it_keeps_it(tmp_path, spawn):
    path = tmp_path / "lock"
    lock = RunLock.acquire(path)
    child = spawn(SLEEPER, pass_fds=[lock.fd])
    lock.release()  # as if the supervisor had been killed
    assert is_owned(path)
    with pytest.raises(OwnedError):
        RunLock.acquire(path)
    child.leave()
    assert not is_owned(path)


def test_a_child_that_was_not_given_it_does_not_keep_it(tmp_path, spawn):
    path = tmp_path / "lock"
    lock = RunLock.acquire(path)
    spawn(SLEEPER, close_fds=False)  # the file closes on exec
    lock.release()
    assert not is_owned(path)


def test_patience_outlasts_a_dying_owner(tmp_path, spawn):
    path = tmp_path / "lock"
    owner = RunLock.acquire(path)
    waiting = holder(spawn, path, patience=60.0)
    waiting.go()
    owner.release()
    assert waiting.line() == "owner"


def test_a_look_at_the_lock_is_not_taken_for_an_owner(tmp_path, monkeypatch):
    """A dashboard asks `is_owned` again and again, which holds the lock for an instant each time."""
    import fcntl

    from erlcli.runs import lock as module

    path = tmp_path / "lock"
    path.touch()
    probe = os.open(path, os.O_RDONLY)
    fcntl.flock(probe, fcntl.LOCK_SH)
    monkeypatch.setattr(module.time, "sleep", lambda _: fcntl.flock(probe, fcntl.LOCK_UN))
    RunLock.acquire(path).release()
    os.close(probe)


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.touch()

    def flock(fd, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lock_module.fcntl, "flock", flock)
    with pytest.raises(RecipeError) as caught:
        RunLock.acquire(path)
    assert str(path) in caught.value.message and "--run-dir" in caught.value.remedy
    assert not is_owned(path)  # `erl ps` goes on


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_an_unreadable_owner_is_no_error(tmp_path, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    assert read_owner(path) == {}
    assert not is_owned(path)


def test_a_shorter_owner_row_replaces_a_longer_one(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b'{"pid": 1, "padding": "' + b"x" * 500 + b'"}')
    lock = RunLock.acquire(path)
    assert json.loads(path.read_bytes())["pid"] == os.getpid()
    lock.release()
