"""A check of an environment: its contract, its numbers, and how it behaves inside `erl`.

The checks themselves (`probes`) run in a process of their own, because an environment under suspicion may hang, leave
or crash. This side only waits, with a deadline, so a check always ends with a named finding. It needs neither torch nor
gymnasium.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from erlcli.envs.config import AtariConfig, EnvConfig
from erlcli.envs.finding import Finding
from erlcli.errors import ErlError

START_SECONDS = 60.0  # for loading torch and gymnasium, which on a cold disk takes longer than the check
LAST_LINES = 60  # of what the process printed


@dataclass(frozen=True)
class CheckOptions:
    """What to check, and for how long.

    Attributes:
        config: the environment; `backend` is that of the recipe.
        episodes: of random play, at most.
        steps: of random play, at most.
        seed: of everything.
        timeout_seconds: for the whole check, once its process has started.
        only: names of the probes to run (see `probes.PROBES`); empty for all.
    """

    config: EnvConfig
    episodes: int = 10
    steps: int = 2000
    seed: int = 0
    timeout_seconds: float = 60.0
    only: tuple[str, ...] = ()

    def to_json(self) -> str:
        """What the checking process is told."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> CheckOptions:
        """The inverse of `to_json`."""
        row = json.loads(text)
        row["config"]["wrappers"] = tuple((path, kwargs) for path, kwargs in row["config"]["wrappers"])
        atari = row["config"].get("atari")
        row["config"]["atari"] = AtariConfig(**atari) if atari is not None else None
        row["only"] = tuple(row["only"])
        return CheckOptions(**(row | {"config": EnvConfig(**row["config"])}))


@dataclass(frozen=True)
class Report:
    """All that was found.

    Attributes:
        env_id: of the environment.
        findings: in the order of the checks.
    """

    env_id: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 where nothing fails, 2 where there is no such env, 3 where it fails."""
        failed = [f for f in self.findings if f.status == "fail"]
        if not failed:
            return 0
        return 2 if any("no_such_env" in f.details for f in failed) else 3

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        counts = {status: sum(f.status == status for f in self.findings) for status in ("ok", "warn", "fail")}
        return {
            "env": self.env_id,
            "exit_code": self.exit_code,
            **counts,
            "findings": [f.to_json() for f in self.findings],
        }


def check_env(
    options: CheckOptions,
    on_finding: Callable[[Finding], None] = lambda finding: None,
    on_start: Callable[[str], None] = lambda name: None,
) -> Report:
    """Check an environment in a process of its own.

    Args:
        options: what and how long.
        on_finding: called with each finding as soon as it is known.
        on_start: called with the name of each probe before it runs.

    Returns:
        All findings. A process that hangs, crashes or leaves is a finding too.

    Raises:
        ErlError: the process was not there in time.
    """
    findings: list[Finding] = []
    for event in _events(options):
        if isinstance(event, str):
            on_start(event)
        else:
            findings.append(event)
            on_finding(event)
    return Report(options.config.id, tuple(findings))


def _events(options: CheckOptions) -> Iterator[str | Finding]:
    """Names of probes that start, and findings."""
    probe = "start"
    ended = False
    with tempfile.TemporaryFile() as log:
        process, descriptor, lifeline = _spawn(options, log)
        results = _Results(descriptor, START_SECONDS)
        try:
            for line in results.lines():
                row = json.loads(line)
                if probe == "start":
                    results.allow(options.timeout_seconds)
                if "finding" in row:
                    yield Finding(**row["finding"])
                elif row["probe"] is None:
                    ended = True
                else:
                    probe = row["probe"]
                    yield probe
            if not ended:
                yield _died(probe, _exit_code(process), _tail(log))
        except TimeoutError:
            if probe == "start":
                raise _slow() from None
            yield _hung(probe, process, log, options.timeout_seconds)
        finally:
            _kill(process)
            process.wait()
            os.close(lifeline)
            os.close(descriptor)


def _slow() -> ErlError:
    """Nothing was asked of the env yet: there is nothing to find out about it."""
    return ErlError(
        f"the process of the check has not started within {START_SECONDS:g} s",
        expected="torch and gymnasium to be imported by then",
        found="a machine that is slow, or busy with something else",
        remedy="check again when the machine has less to do",
    )


def _spawn(options: CheckOptions, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, the descriptor of its results, and one whose end tells it that we are gone."""
    results, results_in_child = os.pipe()
    lifeline_in_child, lifeline = os.pipe()
    passed = (results_in_child, lifeline_in_child)
    arguments = [options.to_json(), *map(str, passed)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "erlcli.envs.check_process", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=passed,
            start_new_session=True,
        )
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return process, results, lifeline


class _Results:
    """Lines from the checking process, with a deadline that can be moved between them."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self.descriptor = descriptor
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """From now on."""
        self.deadline = time.monotonic() + seconds

    def lines(self) -> Iterator[bytes]:
        """Whole lines, until the end of file.

        Raises:
            TimeoutError: the deadline came first.
        """
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.descriptor, selectors.EVENT_READ)
            while selector.select(max(0.0, self.deadline - time.monotonic())):
                data = os.read(self.descriptor, 1 << 16)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                yield from lines
        raise TimeoutError


def _hung(probe: str, process: subprocess.Popen[bytes], log: IO[bytes], seconds: float) -> Finding:
    """Ask the process where it is: its faulthandler answers even from within C code."""
    process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + 2.0
    stack = ""
    while "most recent call first" not in stack and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
        stack = _tail(log)
    frame = _innermost(stack)
    where = f", in {frame}" if frame else ""
    return Finding(
        probe,
        "warn" if probe == "render" else "fail",
        f"no answer within {seconds:g} s{where}",
        "end the loop or the wait in it; a slow env gets more time with --timeout",
        {"stack": stack},
    )


def _innermost(stack: str) -> str | None:
    """The frame of a faulthandler dump that the user is looking for: the first that is in no library of ours."""
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack.rpartition("most recent call first")[2])
    for path, line, function in frames:
        if Path(path).parent != Path(__file__).parent:
            return f"{function} ({path}:{line})"
    return None


def _died(probe: str, code: int, tail: str) -> Finding:
    """A process that left before it was through."""
    if code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    else:
        how = f"left by itself with exit code {code}"
    frame = _innermost(tail)
    where = f", in {frame}" if frame else ""
    if probe == "render":
        remedy = "training goes on without; for pictures try another MUJOCO_GL: egl or osmesa"
        return Finding(probe, "warn", f"the process that renders {how}{where}", remedy, {"output": tail})
    remedy = "an env must not end its process; native crashes are reported to the env's maker"
    return Finding(probe, "fail", f"the env's process {how}{where}", remedy, {"output": tail})


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Of a process that has closed its results; one that lingers on is ended."""
    try:
        return process.wait(5.0)
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.wait()


def _tail(log: IO[bytes]) -> str:
    """The end of what the process printed; read without moving the offset, which the process shares."""
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
    return "\n".join(text.splitlines()[-LAST_LINES:])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and whatever it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
