"""How processes of a run fail, and how the others learn why."""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from erlcli.engine.child import describe_exit
from erlcli.envs.position import read_position
from erlcli.errors import EnvError, ErlError, PeerLostError
from erlcli.runs.jsonl import Row, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import quoted, shorten

DISK_ERRORS = {errno.ENOSPC: "no space left on the disk", errno.EROFS: "read-only file system", errno.EIO: "disk error",
               errno.EDQUOT: "disk quota used up"}  # fmt: skip


OUT_OF_MEMORY = ("out of memory", "status_alloc_failed", "cublas_status_not_initialized")


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """Raised inside a rollout when the run is asked to stop; the rollout is dropped."""


def explain_os_error(error: OSError, layout: RunLayout) -> ErlError | None:
    """A full or failing disk in the user's words; None for any other kind."""
    what = DISK_ERRORS.get(error.errno or 0)
    if what is None and not isinstance(error, PermissionError):
        return None
    return ErlError(
        f"{error.filename or layout.root}: {what or 'not writable'}",
        expected="a writable run directory with free space",
        found=str(error),
        remedy=f"the last checkpoint is kept: free space, then erl resume {quoted(layout.root)}",
    )


def gone(layout: RunLayout) -> ErlError | None:
    """What to say of a run whose directory was moved or deleted while it was trained; None where it is there."""
    try:
        layout.recipe.stat()
    except FileNotFoundError:
        return ErlError(
            f"{shorten(layout.root)} is gone: moved or deleted",
            expected="a run directory that stays where it is while the run trains",
            remedy="erl resume goes on from its last checkpoint, wherever it is now",
        )
    except OSError:
        return None  # a disk that fails has more to say elsewhere
    return None


def run_child(process: str, layout: RunLayout, body: Callable[[], int]) -> int:
    """Run a process's body; its exit code. What it fails of is written to `errors/<process>.json`."""
    layout.error(process).unlink(missing_ok=True)
    stacks = open(_stack_path(layout, process), "w")  # noqa: SIM115 - faulthandler needs it for the process's life
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    try:
        return body()
    except PeerLostError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code  # no error file: the cause is another's to tell
    except SystemExit as request:  # sys.exit in an env must not look like a learner that is done
        return report(process, layout, EnvError(f"{process}: the env called sys.exit({request.code!r})"))
    except Exception as error:
        return report(process, layout, error)


def report(process: str, layout: RunLayout, error: Exception) -> int:
    """Write down why a process failed; the exit code that goes with it."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    if isinstance(error, OSError):
        error = gone(layout) or explain_os_error(error, layout) or error
    known = error if isinstance(error, ErlError) else _internal(process, layout, error)
    try:
        write_json(layout.error(process), {**known.to_json(), "traceback": text})
    except OSError as disk:
        print(f"{layout.error(process)}: {disk}", file=sys.stderr, flush=True)
    return known.exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU has no memory left, in the words of PyTorch or of one of NVIDIA's libraries."""
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(words in text for words in OUT_OF_MEMORY)


def _internal(process: str, layout: RunLayout, error: Exception) -> ErlError:
    if is_out_of_memory(error):
        return ErlError(
            f"{process}: out of memory: {error}",
            expected="memory for environments, networks, a minibatch and the replay",
            remedy="lower env.num_envs, algorithm.batch_size or algorithm.replay.capacity, or keep the replay on the "
            'host: algorithm.replay.device = "cpu"',
        )
    return ErlError(
        f"{process} failed: {type(error).__name__}: {error}",
        remedy=f"this is a defect; its traceback is in {layout.error(process)}",
    )


def reported(process: str, layout: RunLayout) -> ErlError | None:
    """Why `process` failed, if it got to say so."""
    row = read_json(layout.error(process))
    return ErlError.from_json(row) if row else None


def point_to_traceback(error: ErlError, layout: RunLayout) -> None:
    """Say where the traceback of an env's fault is, unless there is better advice."""
    if error.remedy is None and error.details.get("traceback"):
        error.remedy = f"the env's own traceback is in {layout.error('any').parent}"


class Watch:
    """How long this process has watched others without a pause.

    A job that is suspended, or a laptop that is shut, stops watchers and watched alike. What a process said before is
    old then, and no sign of anything until it has had the time to speak again.

    Args:
        limit_seconds: of silence.

    Attributes:
        PAUSE_SECONDS: at least this long between two questions is a pause, and half of the limit.
    """

    PAUSE_SECONDS = 3.0

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._began = self._asked = time.time()

    def exceeds(self, silent_seconds: float) -> bool:
        """Whether a silence, of which this process has seen as much as it was awake, is longer than may be."""
        now = time.time()
        if not 0.0 <= now - self._asked < max(self.limit_seconds / 2, self.PAUSE_SECONDS):
            self._began = now
        self._asked = now
        return min(silent_seconds, now - self._began) >= self.limit_seconds


def hung(process: str, pid: int, layout: RunLayout, watch: Watch) -> EnvError | None:
    """Whether `process` is stuck in an environment for longer than may be: which one, its seed and step, its stack."""
    row = read_json(layout.process(process)) or {}
    phase = str(row.get("phase", ""))
    if not watch.exceeds(_stuck_seconds(row, phase) if row.get("pid") == pid else 0.0):
        return None
    stack = stack_of(process, pid, layout)
    position = read_position(layout.position(process)) if phase != "env make" else None
    return EnvError(
        f"{process} hangs in {position or phase} for more than {watch.limit_seconds:g} s",
        expected="an env that answers; engine.hang_seconds sets the limit",
        found=stack or "no Python stack: it hangs in native code",
        remedy="look at the stack above, or raise engine.hang_seconds for a slow env",
        details={"traceback": stack, **(position.facts() if position is not None else {})},
    )


def _stuck_seconds(row: Row, phase: str) -> float:
    """How long a process has been in one call into an environment; 0 for one that is at something else."""
    if not phase.startswith("env"):
        return 0.0
    unheard = time.time() - float(row["time"])  # a native hang holds the interpreter: no more beats at all
    return max(float(row["idle_seconds"]) + unheard, unheard)


def silent(process: str, pid: int, layout: RunLayout, watch: Watch) -> ErlError | None:
    """Whether `process` has not been heard of for longer than may be: stopped from outside, or stuck in native code."""
    row = read_json(layout.process(process)) or {}
    if row.get("pid") != pid or not watch.exceeds(time.time() - float(row["time"])):
        return None
    return ErlError(
        f"{process} has been silent for more than {watch.limit_seconds:g} s",
        expected="a sign of life every second; engine.hang_seconds sets the limit",
        found=f"its last word: {row.get('phase')}",
        remedy="it was stopped from outside, or hangs in native code",
    )


def died(process: str, code: int | None, layout: RunLayout, remedy: str) -> EnvError:
    """A process that is gone without a word: how, its last call into an environment, what it printed last."""
    position = read_position(layout.position(process))
    how = describe_exit(code) if code is not None else "closed its connection"
    last_call = f"; its last env call was {position}" if position is not None else ""
    return EnvError(
        f"{process} {how}{last_call}",
        expected=f"a {process.partition('-')[0]} that lives as long as the run",
        found=tail_of(layout.output(process)) or "no last words",
        remedy=remedy,
        details=position.facts() if position is not None else {},
    )


def stack_of(process: str, pid: int, layout: RunLayout, patience_seconds: float = 1.0) -> str:
    """Where the threads of a hung process are, by its fault handler; empty where it can't even do that."""
    path = _stack_path(layout, process)
    try:
        before = path.stat().st_size
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return ""
    waited = threading.Event()
    for _ in range(int(patience_seconds / 0.05)):
        waited.wait(0.05)
        if path.stat().st_size > before:
            waited.wait(0.1)  # the other threads' stacks
            break
    with path.open() as file:
        file.seek(before)
        return file.read()


def _stack_path(layout: RunLayout, process: str) -> Path:
    return layout.error(process).with_suffix(".stack")


def tail_of(path: Path, lines: int = 5) -> str:
    """The last lines that a process printed."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
