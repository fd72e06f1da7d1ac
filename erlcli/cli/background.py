"""What runs and tournaments have in common: a directory of their own, and an owner process in a session of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from erlcli.cli import dashboard
from erlcli.cli.output import quoted, shorten
from erlcli.engine import forks
from erlcli.engine.child import describe_exit
from erlcli.engine.failures import reported
from erlcli.errors import ErlError, RecipeError, unwritable
from erlcli.runs import control
from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout, check_name, next_free
from erlcli.runs.lock import RunLock


def place(reference: str, name: str | None, run_dir: Path | None) -> RunLayout:
    """Where a new run or tournament goes: RUN_DIR, runs/NAME, or runs/ and the recipe's name, numbered if taken.

    A numbered directory is made at once: many jobs that start together shall not take the same.

    Raises:
        RecipeError: the name is none, or the directory can't be made.
    """
    if run_dir is not None:
        root = run_dir
    elif name is not None:
        root = Path("runs") / check_name(name)
    else:
        root = _reserved(Path("runs"), Path(reference).name.removesuffix(".toml"))
    return RunLayout(root.absolute())


def _reserved(folder: Path, name: str) -> Path:
    while True:
        root = next_free(folder, name)
        with making(RunLayout(root.absolute())):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # somebody was faster
                root.mkdir()
                return root


@contextlib.contextmanager
def making(layout: RunLayout) -> Iterator[None]:
    """Errors in the user's words while a directory is made, of which nothing is left then.

    Raises:
        RecipeError: it is there already (as `FileExistsError` says), or can't be written.
        ErlError: the disk is full.
    """
    root = shorten(layout.root)
    ours = _is_free(layout.root)
    try:
        yield
    except FileExistsError:
        raise RecipeError(
            f"{root}: exists and is not empty",
            expected="a new or empty directory",
            found=_content(layout),
            remedy=f"erl resume {quoted(layout.root)}, or another --name or --run-dir",
        ) from None
    except OSError as error:
        if ours:
            shutil.rmtree(layout.root, ignore_errors=True)
        raise unwritable(root, error, expected="a writable place", remedy="another --run-dir") from None


def _is_free(root: Path) -> bool:
    """Whether a directory is empty or not there; of one that can't be read nobody knows."""
    try:
        return not any(root.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _content(layout: RunLayout) -> str:
    if (layout.root / "journal.jsonl").exists():
        return "a tournament"
    return "a run" if layout.recipe.exists() else "other files"


def start(
    layout: RunLayout, lock: RunLock, module: str, role: str, arguments: Sequence[str] = (), *, wait: bool
) -> subprocess.Popen[bytes]:
    """Start the owner of a directory in a session of its own, and hand it the lock.

    Args:
        layout: the directory.
        lock: of it; released here.
        module: run as `python -m module DIRECTORY LOCK_FD arguments...`; writes its pid into `status.json`.
        role: its name, for its log.
        arguments: further ones.
        wait: until it has written its first status.

    Raises:
        ErlError: it does not come; what it says itself, if it got to that.
    """
    layout.error(role).unlink(missing_ok=True)  # of an earlier attempt
    log, channel = layout.output(role), forks.hand_on()
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(layout.root), str(lock.fd), *arguments],
            pass_fds=(lock.fd,) if channel is None else (lock.fd, channel),
            env=os.environ if channel is None else os.environ | {forks.CHANNEL: str(channel)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if channel is not None:
        os.close(channel)
    while wait and not _is_at_work(layout, process):
        if process.poll() is not None:
            unknown = ErlError(f"{layout.root}: the {role} did not start", found=log.read_text()[-500:].strip())
            raise reported(role, layout) or unknown
        time.sleep(0.02)
    lock.release()
    return process


def _is_at_work(layout: RunLayout, process: subprocess.Popen[bytes]) -> bool:
    """Whether the owner has begun: its status is its own, and doesn't say why it could not."""
    status = read_json(layout.status) or {}
    return status.get("pid") == process.pid and status.get("state") != "failed"


def beside_dashboard(layout: RunLayout, process: subprocess.Popen[bytes], detached: Sequence[str]) -> int | None:
    """Show the dashboard until it is left, and wait for the owner where it was asked to stop.

    Args:
        layout: the directory.
        process: its owner.
        detached: lines to print where it goes on in the background.

    Returns:
        The owner's exit code; None where it goes on.

    Raises:
        ErlError: it goes on, and the dashboard failed.
    """
    code = dashboard.show(layout.root, owns=True, on_signal=lambda number: control.stop(layout))
    if process.poll() is None and not layout.stop_request.exists():
        print("\n".join(detached), flush=True)
        if code:
            raise ErlError(f"the dashboard {describe_exit(code)}", remedy="training goes on without it")
        return None
    if process.poll() is None:
        print(f"{shorten(layout.root)}: saving", file=sys.stderr)
    return process.wait()
