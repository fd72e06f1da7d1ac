"""Processes that never outlive their parent.

A child inherits the reading end of a pipe that its parent never writes to: the end of file says that the parent is
gone, however it died. Children run in sessions of their own, so that Ctrl+C reaches the parent alone, which decides,
and so that what a child has started can be ended with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from erlcli.core.cpus import LIMIT, usable_cpus
from erlcli.engine import forks
from erlcli.engine.forks import Fork


class _Command:
    """A process of a new interpreter, with the methods of `Fork`."""

    is_born = True

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, fds: Sequence[int]
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            pass_fds=fds,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.poll, self.send_signal = self._process.poll, self._process.send_signal

    def wait(self, seconds: float | None = None) -> int | None:
        """Exit code, or None where it still runs after `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _environment(threads: int) -> dict[str, str]:
    count = str(threads)
    return os.environ | {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        # Idle threads that spin for long would take the cores from the environments; none that wait for the next
        # matrix product should sleep, which makes updates of wide layers half as fast. 10,000 turns are some 30 us.
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "10000",
        "PYTHONUNBUFFERED": "1",
    }


def prepare() -> None:
    """Begin with what children of this process, or of one that it starts, will need: the import of PyTorch."""
    if forks.possible():
        forks.warm_up(_environment(usable_cpus()))


class Child:
    """A running process of the engine.

    Attributes:
        name: e.g. `learner` or `worker-0`.
    """

    def __init__(self, name: str, process: Fork | _Command, lifeline: int) -> None:
        self.name = name
        self._process = process
        self._lifeline = lifeline

    @staticmethod
    def spawn(
        name: str,
        module: str,
        arguments: Sequence[str],
        log: Path,
        threads: int | None = None,
        inherit: Sequence[int] = (),
        *,
        light: bool = False,
    ) -> Child:
        """Start `python -m module arguments... lifeline_fd`, or a fork that looks like that, where the system can.

        Args:
            name: for messages.
            module: with a `main` that takes the arguments, the last of which is the lifeline.
            arguments: of the command line.
            log: where its standard output and error go.
            threads: of its numeric libraries; None for all cores.
            inherit: file descriptors that it shall keep.
            light: it needs no PyTorch, so an interpreter of its own costs less than a fork.
        """
        reading, writing = os.pipe()
        environment = _environment(threads or usable_cpus())
        start = _Command if light or not forks.possible() else forks.fork
        try:
            with log.open("ab") as output:
                process = start(module, [*arguments, str(reading)], environment, output.fileno(), (reading, *inherit))
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return Child(name, process, writing)

    @property
    def is_born(self) -> bool:
        """Whether there is a process yet: a fork waits for the first import of PyTorch."""
        return self._process.is_born

    @property
    def pid(self) -> int:
        """Its process id; waits until it has one."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code; negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Like `poll`, after at most `seconds`."""
        return self._process.wait(seconds)

    def terminate(self) -> None:
        """Ask it to leave."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, grace_seconds: float = 0.0) -> None:
        """See to it that it is gone, with what it has started: ask, wait, kill."""
        if self.poll() is None and grace_seconds > 0:
            self.terminate()
            self.wait(grace_seconds)
        if self.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            if self._process.is_born:
                with contextlib.suppress(OSError):  # what it has started goes with it: a compiler, say
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        elif self.pid:
            end_rest(self.pid)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def end_rest(pid: int) -> None:
    """Kill what is left of the group of a process that has left, and whose parent knows.

    Nobody else gets its number while its group has members: where there is a process of that number, there are none.
    """
    with contextlib.suppress(OSError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            os.killpg(pid, signal.SIGKILL)


def limit_cpus(count: int) -> None:
    """Have processes that are started from here on use at most so many CPUs, without pinning them."""
    os.environ[LIMIT] = str(count)


def give_way(niceness: int) -> None:
    """Have this process run in the gaps that others leave.

    Linux with autogroups shares the CPUs between sessions first, and each child is one: niceness alone then only counts
    among its own threads, so that the session gets it too.
    """
    with contextlib.suppress(OSError):
        os.nice(niceness)
    with contextlib.suppress(OSError):  # not Linux, or no autogroups
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(niceness))


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"left by itself with code {code}"


def on_orphaned(lifeline: int, then: Callable[[], None]) -> None:
    """In a child: call `then`, from a thread, once the parent is gone."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        then()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def outlive_sigterm() -> None:
    """In a child that leaves when its parent says so, or with it.

    Batch systems send SIGTERM to all processes of a job, and the parent needs this one for the last checkpoint. What an
    env starts still ends of it.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)


def leave_now() -> None:
    """End this process at once, with what it has started; for children whose parent is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
