"""Requests to a run: a file each in its control folder, which the engine takes and acknowledges in its events.

Readers of a run directory (dashboard, commands) change a run in no other way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from erlcli.runs.jsonl import Row, read_json, write_json
from erlcli.runs.layout import RunLayout

Kind = Literal["pause", "resume", "checkpoint", "set"]
KINDS: tuple[Kind, ...] = ("pause", "resume", "checkpoint", "set")
TournamentKind = Literal["kill", "clone", "slots", "pause", "resume", "stop"]
TOURNAMENT_KINDS: tuple[TournamentKind, ...] = ("kill", "clone", "slots", "pause", "resume", "stop")


def request(layout: RunLayout, kind: Kind, **facts: Any) -> str:  # noqa: ANN401 - JSON values
    """Ask the learner for something.

    Args:
        layout: the run.
        kind: what to do: `pause`, `resume`, `checkpoint`, or `set` with the facts `key` (such as
            `algorithm.learning_rate`) and `value` (a number).
        facts: of the request.

    Returns:
        Its id, which the event that acknowledges it carries as `request`.

    Raises:
        OSError: the run directory can't be written.
    """
    return _ask(layout, kind, facts)


def tournament_request(path: Path, kind: TournamentKind, **facts: Any) -> str:  # noqa: ANN401 - JSON values
    """Ask a tournament's orchestrator for something.

    Args:
        path: the tournament's directory.
        kind: what to do: `kill` or `clone` with the fact `member` (its id), `slots` with the fact `slots` (the list of
            places to train at from now on) or `count` (how many), or `pause`, `resume` or `stop`.
        facts: of the request.

    Returns:
        Its id, which the journal row that acknowledges it carries as `request`.

    Raises:
        OSError: the tournament's directory can't be written.
    """
    return _ask(RunLayout(path), kind, facts)


def _ask(layout: RunLayout, kind: str, facts: Row) -> str:
    """Write a request; the names of requests sort by their time."""
    name = f"{time.time_ns():020d}-{os.getpid()}"
    layout.control.mkdir(exist_ok=True)
    write_json(layout.requests / f"{name}.json", {"id": name, "do": kind, **facts})
    return name


def stop(layout: RunLayout) -> None:
    """Ask the run to save a checkpoint and leave.

    Raises:
        OSError: the run directory can't be written.
    """
    write_json(layout.stop_request, {"reason": "user"})


def watch_agent(layout: RunLayout) -> None:
    """Ask the evaluator to film an episode now and then; good for `WATCH_SECONDS`, so that nobody films for no one.

    Raises:
        OSError: the run directory can't be written.
    """
    write_json(layout.agent_request, {"time": time.time()})


WATCH_SECONDS = 15.0


def take(layout: RunLayout, kinds: Sequence[str] = KINDS) -> list[Row]:
    """The engine's side: pending requests, oldest first, which are removed. What is no request is removed too.

    Args:
        layout: the run or tournament.
        kinds: that are requests.
    """
    rows: list[Row] = []
    for path in _pending(layout.requests):
        try:
            row = read_json(path)
            path.unlink(missing_ok=True)
        except OSError:  # a folder of that name, or not ours to remove
            continue
        if row is not None and row.get("do") in kinds:
            rows.append(row)
    return rows


def _pending(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("[0-9]*.json"))
    except OSError:
        return []
