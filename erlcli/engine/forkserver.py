"""A process that has imported PyTorch and the engine, and forks itself into learners, workers and others on request.

An import of PyTorch takes seconds of a core. With it done once, a process starts in milliseconds: at the start of a
run, after a crash, for a tournament's next slot. See `forks` for the side that asks.

Run as `python -m erlcli.engine.forkserver CHANNEL_FD PADDING`. The channel is a Unix socket of kind SEQPACKET. Each
message to here is one JSON object: `{"order": number, "module", "arguments", "environment", "cwd", "fds"}`, with file
descriptors of the log, then of those that are to have the numbers `fds`; or `{"cancel": number}`. Answers are
`{"order", "pid"}` once it runs and `{"order", "code"}` once it has ended. Each fork gets a channel of its own, so that
a learner's workers come from here, too. The server ends with its first channel; those it has forked watch their own
parents. It has one thread only, or forks would not be safe.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from erlcli.engine import forks

MODULES = ("learner", "evaluator", "worker", "slice", "evaluate_torch", "load_policy")  # of the engine
CANCELLED = -signal.SIGKILL  # as if it had been killed at once
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED = 71  # EX_OSERR: the system can't fork


@dataclass
class Task:
    """What a fork is to be."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    cwd: str | None
    numbers: list[int]
    fds: list[int]
    channel: socket.socket

    def become(self) -> None:
        """Turn this process, just forked, into one that looks as if it had been started by a command."""
        os.setsid()
        self._place()
        if self.cwd is not None:
            os.chdir(self.cwd)
            if not getattr(sys.flags, "safe_path", False):
                sys.path[0] = self.cwd  # as `python -m` has it
        os.environ.clear()
        os.environ.update(self.environment)
        forks.show_as([sys.executable, "-m", self.module, *self.arguments])
        forks.inherit(self.channel)

    def _place(self) -> None:
        """Give the file descriptors the numbers that the arguments call them by."""
        log, *others = self.fds
        null = os.open(os.devnull, os.O_RDONLY)
        targets = [0, 1, 2, *self.numbers]
        above = max([*targets, self.channel.fileno()]) + 1  # no copy may lie where another is to go
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (null, log, log, *others)]
        channel = fcntl.fcntl(self.channel.fileno(), fcntl.F_DUPFD_CLOEXEC, above)
        for fd in (null, *self.fds):
            os.close(fd)
        self.channel.close()
        for copy, number in zip(copies, targets, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        self.channel = socket.socket(fileno=channel)

    def run(self) -> int:
        """Do what it is for."""
        import numpy as np
        import torch

        np.random.seed()  # or all forks would draw the same; Python's own generator does so by itself
        torch.set_num_threads(int(self.environment.get("OMP_NUM_THREADS", "1")))
        module = importlib.import_module(self.module)
        sys.argv = [str(module.__file__), *self.arguments]
        return int(module.main(self.arguments))


@dataclass
class _Client:
    """Somebody who may ask: the server's owner, or a fork."""

    channel: socket.socket
    orders: dict[int, int] = field(default_factory=dict)  # pidfd by order

    def tell(self, **row: Any) -> None:  # noqa: ANN401 - JSON values
        with contextlib.suppress(OSError):  # it has left
            self.channel.send(json.dumps(row).encode())


class Server:
    """See the module's docstring.

    Args:
        channel: to the owner.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._owner = self._add(channel)

    def serve(self) -> Task | None:
        """Answer until the owner has left: None then. In a fork: its task."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, _Client):
                    orders, gone = self._receive(key.data)
                    if gone and key.data is self._owner:
                        return None
                    while orders:
                        row, fds = orders.pop(0)
                        if (task := self._fork(key.data, row, fds)) is not None:
                            for _, others in orders:  # a pipe would not end while the wrong process holds it
                                for fd in others:
                                    os.close(fd)
                            return task
                    if gone:
                        self._selector.unregister(key.fileobj)
                        key.data.channel.close()
                else:
                    self._reap(key.fd, *key.data)

    def _add(self, channel: socket.socket) -> _Client:
        client = _Client(channel)
        self._selector.register(channel, selectors.EVENT_READ, client)
        return client

    def _receive(self, client: _Client) -> tuple[list[tuple[dict[str, Any], list[int]]], bool]:
        """All that a client has sent, but what it has taken back, and whether it has left."""
        orders: dict[int, tuple[dict[str, Any], list[int]]] = {}
        gone = False
        while True:
            try:
                data, fds = _receive(client.channel)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                gone = True
                break
            row = json.loads(data)
            if "cancel" not in row:
                orders[row["order"]] = (row, fds)
            elif row["cancel"] in orders:
                for fd in orders.pop(row["cancel"])[1]:
                    os.close(fd)
                client.tell(order=row["cancel"], code=CANCELLED)
            elif row["cancel"] in client.orders:
                signal.pidfd_send_signal(client.orders[row["cancel"]], signal.SIGKILL)
        return list(orders.values()), gone

    def _fork(self, client: _Client, row: dict[str, Any], fds: list[int]) -> Task | None:
        """A task in the fork, None here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            os.write(fds[0], f"{error}: no process for {row['module']}\n".encode())
            client.tell(order=row["order"], code=FAILED)
            pid = -1
        if pid == 0:
            ours.close()
            self._forget()
            return Task(row["module"], row["arguments"], row["environment"], row["cwd"], row["fds"], fds, theirs)
        theirs.close()
        for fd in fds:
            os.close(fd)
        if pid < 0:
            ours.close()
            return None
        self._add(ours)
        client.orders[row["order"]] = pidfd = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, (pid, client, row["order"]))
        client.tell(order=row["order"], pid=pid)
        return None

    def _reap(self, pidfd: int, pid: int, client: _Client, order: int) -> None:
        self._selector.unregister(pidfd)
        del client.orders[order]
        os.close(pidfd)
        client.tell(order=order, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _forget(self) -> None:
        """In a fork: let go of what is the server's, or others would miss its end."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Client):
                key.data.channel.close()
            else:
                os.close(key.fd)
        self._selector.close()


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """A message and its file descriptors, if there is one; `socket.recv_fds` would wait, whatever its flags."""
    numbers = array.array("i")
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    room = socket.CMSG_SPACE(forks.MAX_FDS * numbers.itemsize)
    data, ancillary, _, _ = channel.recvmsg(forks.MAX_MESSAGE, room, flags)
    for _, _, content in ancillary:
        numbers.frombytes(content)
    return data, list(numbers)


def preload() -> None:
    """Import what forks need. What fails here fails in them again, where it is reported."""
    gc.disable()  # an import makes little that can be collected: looking for it takes a seventh of its time
    try:
        for name in MODULES:
            importlib.import_module(f"erlcli.engine.{name}")
    except Exception:
        traceback.print_exc()
    gc.freeze()  # collections in forks would copy the pages of all that is here
    gc.enable()


def main(arguments: Sequence[str]) -> int:
    """Entry point; see the module's docstring."""
    # A signal to all processes of a job is for those that have something to save: this one ends with its owner. Blocked
    # and not ignored, so that none is lost that comes to a fork before it is itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    forks.show_as([sys.executable, "-m", forks.MODULE, arguments[0]])  # without the padding
    server = Server(socket.socket(fileno=int(arguments[0])))
    preload()
    task = server.serve()
    if task is None:
        return 0
    task.become()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return task.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
