"""Who owns a run directory.

The lock is the kernel's (flock): it goes with the last process that holds the file open, so a SIGKILL leaves no stale
lock behind. The supervisor takes it and hands the open file to learner and evaluator: a run whose supervisor was killed
stays owned until they have left too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from erlcli.errors import OwnedError, RecipeError
from erlcli.runs.jsonl import naming
from erlcli.runs.text import quoted

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)  # of file systems without flock
PROBE_SECONDS = 0.1  # `is_owned` holds the lock for an instant; whoever wants it must not take that for an owner


class RunLock:
    """An acquired lock; `fd` may be inherited by children."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @staticmethod
    def acquire(path: Path, patience_seconds: float = 0.0) -> RunLock:
        """Take the lock.

        Args:
            path: the lock file.
            patience_seconds: how long to wait for a dying owner to leave.

        Raises:
            OwnedError: a live process has it.
            RecipeError: the file system has no locks.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + max(patience_seconds, PROBE_SECONDS)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    owner = read_owner(path)
                    os.close(fd)
                    raise OwnedError(
                        f"{path.parent}: the run is owned by a live process",
                        expected="a run that nobody trains",
                        found=f"process {owner.get('pid', '?')} on {owner.get('host', '?')}",
                        remedy=f"erl stop {quoted(path.parent)}, or wait until it has left",
                    ) from None
                time.sleep(0.01)
            except OSError as error:
                os.close(fd)
                if error.errno not in NO_LOCKS:
                    raise
                raise RecipeError(
                    f"{path}: can't be locked: {error.strerror}",
                    expected="a file system with flock, which tells whether a run has a live owner",
                    remedy="--run-dir on another file system; Lustre has it when mounted with -o flock",
                ) from None
        lock = RunLock(path, fd)
        lock._sign()
        return lock

    @staticmethod
    def inherited(path: Path, fd: int) -> RunLock:
        """The lock that a parent has taken and handed over."""
        os.set_inheritable(fd, False)
        lock = RunLock(path, fd)
        lock._sign()
        return lock

    def _sign(self) -> None:
        """Write down who has it, for the messages that others get."""
        row = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        with naming(self.path):
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps(row).encode(), 0)

    def release(self) -> None:
        """Let go of it; children that inherited it hold on."""
        os.close(self.fd)


def read_owner(path: Path) -> dict[str, object]:
    """Process and host that took the lock last."""
    try:
        row = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def is_owned(path: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False  # nobody can have taken it here
    finally:
        os.close(fd)
    return False
