"""Asking for forks of a process that has imported PyTorch already; see `forkserver`.

The first request of a process starts a server of its own, unless this process is a fork itself and has inherited a
channel to the server it came from. Where that server has died, its forks can't be watched any more: they count as
killed, and the next request starts another.

A server may also be started before there is anything to ask for, and be handed on to another process, which then owns
it: a command does so before its own imports, which take half a second.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_MESSAGE = 1 << 18  # bytes; the kernel's own limit of what it sends is below that
MAX_FDS = 32
SEND_SECONDS = 0.1  # between two looks whether the server waits, too
PADDING = 5000  # bytes for the command lines of forks, which stand where the server's own stood
MODULE = "erlcli.engine.forkserver"
CHANNEL = "ERL_FORKS"  # environment variable: file descriptor of a channel that is handed on


def possible() -> bool:
    """Whether this system can: on macOS a fork of a process that has used its frameworks is not safe."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and _command_line() is not None


class Fork:
    """A process that has been asked for.

    Args:
        server: that forks it.
        order: the number of the request.
    """

    def __init__(self, server: _Server, order: int) -> None:
        self._server, self._order = server, order
        self._pid: int | None = None
        self._pidfd = -1
        self._code: int | None = None

    @property
    def is_born(self) -> bool:
        """Whether it has been forked: not while the server still imports."""
        if self._pid is None:
            self._server.read(0.0)
        return self._pid is not None

    @property
    def pid(self) -> int:
        """Its process id; waits until it has one. 0 for one that never had."""
        while self._pid is None and self._code is None:
            self._server.read(1.0)
        return self._pid or 0

    def poll(self) -> int | None:
        """Exit code; negative for a signal; None while it runs, or is about to."""
        if self._code is None:
            self._server.read(0.0)
        return self._code

    def wait(self, seconds: float | None = None) -> int | None:
        """Like `poll`, after at most `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._code is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            self._server.read(max(0.0, left))
            if left <= 0:
                break
        return self._code

    def send_signal(self, number: int) -> None:
        """Signal it, if it is there."""
        if self.is_born:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, number)
        else:
            self._server.cancel(self._order)

    def born(self, pid: int) -> None:
        """It runs."""
        self._pid = pid
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._pidfd = os.pidfd_open(pid)

    def lose(self, code: int) -> None:
        """Its server is gone: end it, and what it has started, since nobody can watch it any more."""
        if self._pidfd >= 0 and self._pid is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                os.killpg(self._pid, signal.SIGKILL)  # its number still: the line above has found it
        self.ended(code)

    def ended(self, code: int) -> None:
        """It is gone."""
        self._code = code
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class _Server:
    """A server as its clients see it.

    Args:
        channel: to it.
        process: where this process has started it.
    """

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._channel, self._process = channel, process
        self._forks: dict[int, Fork] = {}
        self._orders = 0
        self._mutex = threading.Lock()
        self._owner = os.getpid()
        self.lost = False

    @classmethod
    def start(cls, environment: Mapping[str, str], log: int) -> _Server:
        """Start one; what it prints goes to `log`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), " " * PADDING],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # OpenBLAS starts its threads at NumPy's import, and a process with threads is not safe to fork.
                # Only envs multiply in NumPy, and small matrices.
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return cls(ours, process)

    def fork(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, fds: Sequence[int]
    ) -> Fork:
        """Ask for a process; see `fork`."""
        with self._mutex:
            self._orders += 1
            row = {
                "order": self._orders,
                "module": module,
                "arguments": list(arguments),
                "environment": dict(environment),
                "cwd": _cwd(),
                "fds": list(fds),
            }
            fork = self._forks[self._orders] = Fork(self, self._orders)
            try:
                self._send(json.dumps(row).encode(), [log, *fds])
            except ConnectionError:
                self._lose()
            return fork

    def cancel(self, order: int) -> None:
        """Take a request back."""
        with self._mutex, contextlib.suppress(OSError):
            self._send(json.dumps({"cancel": order}).encode(), [])

    def _send(self, message: bytes, fds: Sequence[int]) -> None:
        """Send, even if it has to be waited for: a server that still imports reads nothing, and little fits before it.

        Raises:
            ConnectionError: it is gone.
        """
        while True:
            try:
                self._channel.settimeout(SEND_SECONDS)
                socket.send_fds(self._channel, [message], fds)
                return
            except (BlockingIOError, TimeoutError):
                self._drain()  # it may be waiting for its answers to be read

    def _drain(self) -> None:
        """Take in the answers that are there.

        Raises:
            ConnectionError: the server is gone.
        """
        with contextlib.suppress(BlockingIOError):
            self._channel.settimeout(0.0)
            while data := self._channel.recv(MAX_MESSAGE):
                self._take(json.loads(data))
            raise ConnectionResetError

    def read(self, seconds: float) -> None:
        """Take in what the server tells, for at most `seconds` until the first of it."""
        with self._mutex:
            try:
                self._channel.settimeout(seconds)
                self._channel.recv(1, socket.MSG_PEEK)
                self._drain()
            except (BlockingIOError, TimeoutError):
                return
            except ConnectionError:
                self._lose()

    def is_usable(self) -> bool:
        """Whether it can be asked: alive, and not one of the process that forked this one by itself."""
        if self._owner != os.getpid():
            return False  # without a look: its answers are the other's
        self.read(0.0)
        return not self.lost

    def hand_on(self) -> int:
        """The channel's file descriptor, to whose new owner it belongs from now on."""
        self.lost = True
        return self._channel.detach()

    def end(self) -> None:
        """End it; its forks go on."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()

    def _take(self, row: dict[str, int]) -> None:
        if "pid" in row:
            self._forks[row["order"]].born(row["pid"])
        else:
            self._forks.pop(row["order"]).ended(row["code"])

    def _lose(self) -> None:
        """The server is gone."""
        self.lost = True
        code = -signal.SIGKILL if self._process is None else self._process.wait() or -signal.SIGKILL
        for fork in self._forks.values():
            fork.lose(code)
        self._forks.clear()


_server: _Server | None = None
_starting = threading.Lock()


def fork(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, fds: Sequence[int] = ()
) -> Fork:
    """A process that calls `module.main(arguments)` and leaves with what it returns, in a session of its own.

    Args:
        module: by its full name.
        arguments: what `ps` shows, too.
        environment: all of its variables.
        log: file descriptor that its standard output and error go to.
        fds: file descriptors that it shall keep, with their numbers.
    """
    with _starting:
        server = _server
        if server is None or not server.is_usable():
            server = _start(environment, log)
        return server.fork(module, arguments, environment, log, fds)


def _start(environment: Mapping[str, str], log: int) -> _Server:
    global _server
    _server = _Server.start(environment, log)
    atexit.register(_server.end)
    return _server


def warm_up(environment: Mapping[str, str]) -> None:
    """Start the server: it imports while this process finds out what to ask it for.

    What it prints goes nowhere. Imports that fail, fail again in its forks, which have a log.
    """
    with Path(os.devnull).open("wb") as log:
        _start(environment, log.fileno())


def hand_on() -> int | None:
    """The file descriptor of the server's channel, for a child that finds it by `CHANNEL`; None without a server.

    The caller closes it. The server ends with the child then, and this process has none any more.
    """
    global _server
    server, _server = _server, None
    if server is None or not server.is_usable():
        return None
    atexit.unregister(server.end)
    return server.hand_on()


def dismiss() -> None:
    """End the server, if there is one: nothing will be asked of it."""
    channel = hand_on()
    if channel is not None:
        os.close(channel)


def adopt() -> None:
    """Take over the server that was handed on to this process, if there is one."""
    number = os.environ.pop(CHANNEL, None)
    if number is not None:
        inherit(socket.socket(fileno=int(number)))


def inherit(channel: socket.socket) -> None:
    """In a fork: ask the server that it came from."""
    global _server
    _server = _Server(channel)


def show_as(command: Sequence[str]) -> None:
    """Have `ps` and others show `command` as this process's, cut where it is longer than the one it was started by."""
    place = _command_line()
    if place is None:
        return
    start, size = place
    text = b"".join(os.fsencode(argument) + b"\0" for argument in command)[: size - 1]
    ctypes.memmove(start, text.ljust(size, b"\0"), size)


def _command_line() -> tuple[int, int] | None:
    """Address and bytes of this process's command line; None where the system doesn't tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # fields 48 and 49 of proc(5), of which two are before the ")"
    except (OSError, IndexError, ValueError):
        return None
    return (start, end - start) if 0 < start < end else None


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None  # it has been deleted
