"""`erl ps`: the runs that are alive on this machine, wherever their directories are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erlcli.cli.output import count, print_json, seconds
from erlcli.engine import forks
from erlcli.runs.curve import is_number
from erlcli.runs.layout import RunLayout, list_runs
from erlcli.runs.text import score
from erlcli.runs.view import RunView

if TYPE_CHECKING:
    import psutil

ENGINE = "erlcli.engine."  # `python -m erlcli.engine.<role> RUN_DIR ...`, as the engine starts its processes
TOURNAMENT = "erlcli.tournament."  # the same of a tournament's
NAME_WIDTH = 14  # the path below has it in full


def ps(
    show_all: Annotated[bool, typer.Option("--all", help="Also the runs under ./runs that are over.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """List the runs that are alive on this machine."""
    alive = engine_processes()
    rows = [row_of(root, processes) for root, processes in alive.items()]
    over = [layout.root for layout in list_runs(Path("runs")) if layout.root.resolve() not in alive]
    if show_all:
        rows += [row_of(root.resolve(), []) for root in over]
    if json_output:
        print_json(rows)
    elif rows:
        print("\n".join(table(rows)))
    else:
        print("no run is alive on this machine")
        print("  start   erl train RECIPE   (erl recipes lists the shipped ones)")
        if over and not show_all:
            print(f"  look    erl ps --all       shows the {len(over)} under ./runs that are over")


def engine_processes() -> dict[Path, list[psutil.Process]]:
    """The engine's processes on this machine by run directory (absolute): the oldest run and supervisors first."""
    import psutil

    found: dict[Path, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if (run := run_argument(command)) is None or process.status() == psutil.STATUS_ZOMBIE:
                continue
            root = (Path(run) if Path(run).is_absolute() else Path(process.cwd()) / run).resolve()
        except psutil.Error:
            continue  # gone meanwhile, or of someone else
        others = found.setdefault(root, [])
        leads = f"{ENGINE}supervisor" in command or f"{TOURNAMENT}session" in command
        others.insert(0 if leads else len(others), process)
    return dict(sorted(found.items(), key=lambda item: min(process.create_time() for process in item[1])))


def run_argument(command: Sequence[str]) -> str | None:
    """The run directory in the command line of an engine process; None for any other process."""
    from erlcli.tournament.backends import reaper

    for flag, module, *rest in (command[i:] for i in range(len(command) - 2)):
        if flag == "-m":
            ours = module.startswith((ENGINE, TOURNAMENT)) and module not in (forks.MODULE, reaper.MODULE)
            return rest[0] if ours else None
    return None


def row_of(root: Path, processes: Sequence[psutil.Process]) -> dict[str, Any]:
    """What `--json` prints of a run; alive if it has processes."""
    import psutil

    view = RunView(RunLayout(root))
    try:
        view.refresh()
        summary = view.summary() | ({} if root.is_dir() else {"state": "deleted"})
        if (root / "journal.jsonl").exists():
            summary["best_return"] = _champions_score(root)
    except PermissionError:
        summary = {"state": "unreadable"}  # of another user
    pids = sorted(process.pid for process in processes)
    born = min((process.create_time() for process in processes), default=None)
    owner, rate = view.status.get("pid"), view.last.get("time/steps_per_second")
    owned = isinstance(owner, int) and psutil.pid_exists(owner)  # by erl train itself, unless it was detached
    return {
        "name": root.name,
        "state": summary["state"],
        "env": view.status.get("env"),
        "algorithm": view.status.get("algorithm") or view.status.get("kind"),
        "steps": summary.get("steps", 0),
        "total_steps": summary.get("total_steps"),
        "steps_per_second": rate if pids and is_number(rate) else None,
        "best_return": summary.get("best_return"),
        "target_return": summary.get("target_return"),
        "age_seconds": round(time.time() - born, 1) if born is not None else summary.get("age_seconds"),
        "pid": None if not pids else owner if owned else pids[0],
        "pids": pids,
        "path": str(root),
    }


def _champions_score(root: Path) -> float | None:
    """Of a tournament: what its champion was confirmed with."""
    from erlcli.runs.journal import Journal

    journal = Journal(root)
    journal.refresh()
    crown = journal.board.crown
    return None if crown is None else crown.mean


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows for people: two lines a run, since a path is long."""
    from erlcli.cli.output import shorten

    cells = [("NAME", "STATE", "STEPS", "STEPS/S", "BEST", "AGE", "PID")]
    for row in rows:
        total, rate, best = row["total_steps"], row["steps_per_second"], row["best_return"]
        cells.append(
            (
                row["name"] if len(row["name"]) <= NAME_WIDTH else row["name"][: NAME_WIDTH - 1] + "…",
                row["state"],
                count(row["steps"]) + (f"/{count(total)}" if total else ""),
                f"{rate:,.0f}" if rate else "-",
                score(best) if best is not None else "-",
                seconds(row["age_seconds"]) + ("" if row["pid"] else " ago"),
                str(row["pid"] or "-"),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines: list[str] = []
    for index, line in enumerate(cells):
        texts = [
            f"{cell:<{width}}" if i < 3 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(texts).rstrip())
        if index:
            row = rows[index - 1]
            env = (row["env"] or "").rpartition("/")[2]  # of an env from a file, the file's name will do
            what = " ".join(filter(None, (env, row["algorithm"])))
            lines.append(f"  {what or 'starting'}, {shorten(Path(row['path']))}")
    return lines
