"""A folder of runs and tournaments, one line each."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from erlcli.runs.curve import Curve, is_number
from erlcli.runs.journal import FILE, Journal
from erlcli.runs.jsonl import JsonFile
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned
from erlcli.runs.view import LIVE, best_of, state_of


@dataclass(frozen=True)
class RunEntry:
    """A run or tournament at a glance.

    Attributes:
        name: of its directory.
        path: of its directory.
        kind: which of both.
        state: as `RunView.state`.
        env: id of the environment; empty where nobody has said it yet, as below.
        algorithm: of the run, or of a tournament's champion.
        steps: env transitions; of a tournament, those of the member that has most.
        total_steps: the budget.
        best_return: mean of the best full evaluation, or the champion's score.
        target_return: mean return to reach.
        started: seconds since the epoch.
        heard: seconds since the epoch at which it was last heard of.
        live: whether its processes are at work.
    """

    name: str
    path: Path
    kind: Literal["run", "tournament"]
    state: str
    env: str
    algorithm: str
    steps: int
    total_steps: int | None
    best_return: float | None
    target_return: float | None
    started: float
    heard: float
    live: bool

    def age_seconds(self, now: float) -> float:
        """Seconds since it was last heard of."""
        return max(now - self.heard, 0.0)


class RunList:
    """The runs and tournaments directly inside a folder, kept up to date by `refresh`.

    Args:
        folder: of the runs; may come later.

    Attributes:
        entries: live ones first, then those that were heard of last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[RunEntry] = []
        self._files: dict[str, _Run | _Tournament] = {}

    def refresh(self) -> bool:
        """Read what has changed; whether anything has.

        Raises:
            OSError: the folder can't be read.
        """
        entries = sorted(self._read(), key=_order)
        changed = entries != self.entries
        self.entries = entries
        return changed

    def _read(self) -> list[RunEntry]:
        try:
            with os.scandir(self.folder) as found:
                names = {entry.name for entry in found if not entry.name.startswith(".") and entry.is_dir()}
        except FileNotFoundError:
            names = set()
        for name in self._files.keys() - names:
            del self._files[name]
        entries: list[RunEntry] = []
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # no run, or removed a moment ago
                if (files := self._files.get(name) or _open(self.folder / name)) is not None:
                    self._files[name] = files
                    entries.append(self._entry(files))
        return entries

    @staticmethod
    def _entry(files: _Run | _Tournament) -> RunEntry:
        try:
            return files.entry()
        except PermissionError:  # of another user
            return _unreadable(files)


def _order(entry: RunEntry) -> tuple[bool, float, str]:
    """Live ones by their start, since they would change places at every heartbeat otherwise."""
    return not entry.live, -(entry.started if entry.live else entry.heard), entry.name


class _Run:
    """The files of a run that an entry is made of."""

    def __init__(self, root: Path, started: float) -> None:
        self.layout, self.started = RunLayout(root), started
        self._status, self._evals = JsonFile(self.layout.status), Curve(self.layout.evals)
        self._best: float | None = None

    def entry(self) -> RunEntry:
        """What they say now."""
        self._status.refresh()
        if self._evals.refresh():
            best = best_of(self._evals.rows)
            self._best = None if best is None else float(best["return_mean"])
        status = self._status.row
        state = state_of(status, is_owned(self.layout.lock))
        total = _number(status.get("total_steps"))
        return RunEntry(
            self.layout.root.name,
            self.layout.root,
            "run",
            state,
            str(status.get("env") or ""),
            str(status.get("algorithm") or ""),
            int(_number(status.get("steps")) or 0),
            None if total is None else int(total),
            self._best,
            _number(status.get("target_return")),
            self.started,
            _number(status.get("time")) or self.started,
            state in LIVE,
        )


class _Tournament:
    """The files of a tournament that an entry is made of."""

    def __init__(self, root: Path, started: float) -> None:
        self.layout, self.started = RunLayout(root), started
        self._status, self._journal = JsonFile(self.layout.status), Journal(root)

    def entry(self) -> RunEntry:
        """What they say now."""
        self._status.refresh()
        self._journal.refresh()
        status, board = self._status.row, self._journal.board
        crown = board.crown
        state = state_of(status, is_owned(self.layout.lock))
        return RunEntry(
            self.layout.root.name,
            self.layout.root,
            "tournament",
            state,
            str(status.get("env") or ""),
            crown.member.algorithm if crown is not None else "",
            max((member.steps for member in board.members.values()), default=0),
            None,
            crown.mean if crown is not None else None,
            _number(status.get("target_return")),
            board.started or self.started,
            max(board.updated, _number(status.get("time")) or self.started),
            state in LIVE,
        )


def _open(root: Path) -> _Run | _Tournament | None:
    """The files of `root`; None where it is neither a run nor a tournament.

    Raises:
        FileNotFoundError: the same.
    """
    try:
        if (root / FILE).exists():
            return _Tournament(root, (root / FILE).stat().st_mtime)
        return _Run(root, (root / "recipe.toml").stat().st_mtime)
    except PermissionError:
        return None


def _unreadable(files: _Run | _Tournament) -> RunEntry:
    kind: Literal["run", "tournament"] = "run" if isinstance(files, _Run) else "tournament"
    root, started = files.layout.root, files.started
    return RunEntry(root.name, root, kind, "unreadable", "", "", 0, None, None, None, started, started, False)


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None
