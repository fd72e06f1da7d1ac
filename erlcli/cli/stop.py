"""`erl stop`: ends runs, with a checkpoint or at once."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.output import count, quoted
from erlcli.cli.ps import engine_processes
from erlcli.errors import ErlError
from erlcli.runs.jsonl import read_json, write_json
from erlcli.runs.layout import RunLayout, open_run
from erlcli.runs.lock import is_owned, read_owner
from erlcli.runs.view import RunView

if TYPE_CHECKING:
    import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 10.0
INTERRUPTED = 130


def stop(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the last checkpoint.")] = 30.0,
    now: Annotated[bool, typer.Option("--now", help="Kill at once; the last checkpoint is kept.")] = False,
) -> None:
    """Stop runs: each saves a checkpoint and leaves; erl resume goes on from there."""
    layouts = [open_run(run) for run in runs]
    alive = [layout for layout in layouts if is_owned(layout.lock)]
    for layout in layouts:
        if layout not in alive:
            print(f"{layout.root}: not running ({_view(layout).state})")
    if now:
        for layout in alive:
            number = kill(layout)
            print(f"{layout.root}: killed ({number} {'process' if number == 1 else 'processes'})")
            print("\n".join(where_to_go_on(layout)))
        return
    try:
        with _feedback() as tell:
            left = wait(alive, timeout, tell)
    except KeyboardInterrupt:
        print("not waiting any longer; the runs are asked to stop and will", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    for layout in alive:
        if layout not in left:
            view = _view(layout)
            print(f"{layout.root}: {view.state} at {count(view.summary()['steps'])} steps")
            print("\n".join(where_to_go_on(layout)))
    if left:
        names = " ".join(quoted(layout.root) for layout in left)
        raise ErlError(
            f"{names}: still running after {timeout:g} s",
            expected="a checkpoint within that time",
            found=", ".join(f"the learner is at: {phase(layout)}" for layout in left),
            remedy=f"erl stop --now {names} kills at once, or wait: the request stands",
        )


def wait(layouts: Sequence[RunLayout], timeout: float, tell: Callable[[str], None]) -> list[RunLayout]:
    """Ask runs to stop and wait for it; those that haven't after `timeout` seconds."""
    started = time.monotonic()
    left = list(layouts)
    while left:
        for layout in left:
            _ask(layout, timeout)
        waited = time.monotonic() - started
        tell(", ".join(f"{layout.root.name}: {phase(layout)}" for layout in left) + f"  {waited:.0f} s")
        if waited > timeout:
            break
        time.sleep(POLL_SECONDS)
        left = [layout for layout in left if is_owned(layout.lock)]
    return left


def _ask(layout: RunLayout, timeout: float) -> None:
    if layout.stop_request.exists():
        return  # a run that was just starting clears older requests, so it may take a second one
    try:
        write_json(layout.stop_request, {"reason": "user", "seconds": timeout})
    except OSError as error:
        raise ErlError(
            f"{layout.stop_request}: can't be written",
            expected="a writable run directory",
            found=str(error),
            remedy="erl stop --now does without",
        ) from None


def phase(layout: RunLayout) -> str:
    """What the learner is at; of a tournament, its state."""
    if _is_tournament(layout):
        return str((read_json(layout.status) or {}).get("state", "starting"))
    return str((read_json(layout.process("learner")) or {}).get("phase", "starting"))


def _is_tournament(layout: RunLayout) -> bool:
    return (layout.root / "journal.jsonl").exists()


def where_to_go_on(layout: RunLayout) -> list[str]:
    """The newest checkpoint, and the command that takes it up."""
    if _is_tournament(layout):
        return [] if _view(layout).state == "finished" else [f"  go on   erl resume {quoted(layout.root)}"]
    saved = [path for path in layout.checkpoints.glob("[0-9]*") if (path / "manifest.json").exists()]
    if not saved:
        return ["  there is no checkpoint yet"]
    newest = max(saved, key=lambda path: int(path.name))
    lines = [f"  saved   {newest}"]
    if _view(layout).state != "finished":
        lines.append(f"  go on   erl resume {quoted(layout.root)}")
    return lines


def kill(layout: RunLayout) -> int:
    """Kill a run's processes, the owner first, which would start others anew; how many there were.

    Raises:
        ErlError: the run is owned by something else than a training of its own, or does not die.
    """
    import psutil

    killed: set[int] = set()
    owner = _owner(layout)
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        processes = engine_processes().get(layout.root.resolve(), [])
        for process in [owner, *processes] if owner is not None else processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                _kill_one(process)
                killed.add(process.pid)
        owner = None
        if not processes and not is_owned(layout.lock):
            return len(killed)
        time.sleep(POLL_SECONDS)
    raise ErlError(
        f"{layout.root}: does not die",
        expected="processes that leave when they are killed",
        found=f"the lock is held{', by ' + str(read_owner(layout.lock).get('pid')) if is_owned(layout.lock) else ''}",
        remedy="see ps aux; a process that waits for a disk or GPU dies only after that",
    )


def _kill_one(process: psutil.Process) -> None:
    import psutil

    try:
        process.kill()
    except psutil.AccessDenied:
        raise ErlError(
            f"process {process.pid}: can't be killed",
            expected="a process of your own",
            found=f"one of {process.username()}",
            remedy="as that user: erl stop --now",
        ) from None


def _owner(layout: RunLayout) -> psutil.Process | None:
    """The `erl train` or `erl resume` that supervises the run itself, if that is how it was started."""
    import psutil

    row = read_owner(layout.lock)
    if row.get("host") != socket.gethostname():
        raise ErlError(
            f"{layout.root}: runs on another machine",
            expected=socket.gethostname(),
            found=str(row.get("host")),
            remedy="erl stop without --now, or erl stop --now there",
        )
    try:
        process = psutil.Process(int(str(row["pid"])))
        command = process.cmdline()
        reused = process.create_time() > float(str(row["time"])) + 1.0  # its number went to a younger process
    except (psutil.NoSuchProcess, KeyError, ValueError):
        return None
    if reused or any(part.startswith(("erlcli.engine.", "erlcli.tournament.")) for part in command):
        return None
    if not {"train", "resume", "tournament"} & set(command):
        raise ErlError(
            f"{layout.root}: supervised by a process that does more than that",
            expected="erl train or erl resume",
            found=f"process {process.pid}: {' '.join(command)[:120]}",
            remedy="erl stop without --now, or stop that process",
        )
    return process


def _view(layout: RunLayout) -> RunView:
    view = RunView(layout)
    view.refresh()
    return view


@contextlib.contextmanager
def _feedback() -> Iterator[Callable[[str], None]]:
    """A function that shows what is waited for, where a person looks on."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("stopping") as status:
        yield lambda text: status.update(Text(f"stopping {text}"))
