"""The replay on disk: written once, in parts, as training goes on.

A checkpoint's replay is a list of part files, hard links from the folder of the checkpoint to where they were written
first. So a checkpoint costs no more than what is new since the one before it; each checkpoint folder is whole by
itself, and removing one takes nothing from the others: the file system counts the links. The price is that a sector
of the disk that goes bad under a part is bad for every checkpoint that needs it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_bytes

from erlcli.core.replay import Replay
from erlcli.core.types import FinalObs, Rollout
from erlcli.runs.jsonl import sync_path

PART_BYTES = 4 << 20  # written and synced in hundredths of a second, also on a busy machine in well below one
COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid")


@dataclass(frozen=True)
class Part:
    """Rows of a replay in a file.

    Attributes:
        path: `replay-<first>-<last>.safetensors` with the rows `first ... last - 1`, counted from the start of the run.
        bytes: of the file.
        sha256: of the file.
    """

    path: Path
    bytes: int
    sha256: str

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one after the last."""
        _, first, last = self.path.stem.split("-")
        return int(first), int(last)

    def link_into(self, folder: Path) -> Part:
        """The same part in another folder: a hard link, or a copy where the file system knows none."""
        path = folder / self.path.name
        try:
            os.link(self.path, path)
        except OSError:
            shutil.copyfile(self.path, path)  # what is wrong with the disk is wrong with this too, and raised
            sync_path(path)
        return Part(path, self.bytes, self.sha256)


class ReplaySpool:
    """The parts that the next checkpoint will need, in a hidden folder beside the checkpoints.

    Args:
        folder: of its own; it is emptied.
        replay: what is to be written.
    """

    def __init__(self, folder: Path, replay: Replay) -> None:
        self.folder, self.replay = folder, replay
        self._parts: list[Part] = []
        self._written = 0  # rows up to which there are parts
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed

    def spill(self) -> None:
        """Write a part if there is enough for one; called after every rollout, so that checkpoints are quick."""
        if (self.replay.end - self._written) * self.replay.row_bytes >= PART_BYTES:
            self._write()

    def flush(self) -> tuple[Part, ...]:
        """Write what is left; the parts that hold all rows of the replay, the oldest first."""
        if self._written < self.replay.end:
            self._write()
        self._drop_old()
        return tuple(self._parts)

    def restore(self, parts: tuple[Part, ...]) -> None:
        """Fill the empty replay from verified parts, and go on from them.

        Raises:
            ValueError, RuntimeError, KeyError: they are not of this replay.
        """
        self.folder.mkdir(exist_ok=True)
        if parts:
            self.replay.begin(parts[0].rows[0])
        for part in parts:
            for rows in _pieces(read(part.path), self.replay.rows):  # where there is less room now than there was
                self.replay.add(rows)
            self._parts.append(part.link_into(self.folder))
        self._written = self.replay.end

    def close(self) -> None:
        """Remove the folder; what checkpoints need they have."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._drop_old()
        oldest = self.replay.end - self.replay.size
        first, last = max(self._written, oldest), self.replay.end
        # A part that is small yet is written again together with what is new, or frequent checkpoints would make many.
        merged = self._parts[-1] if self._parts else None
        if merged is not None and merged.bytes + (last - first) * self.replay.row_bytes <= PART_BYTES:
            first = max(merged.rows[0], oldest)
        else:
            merged = None
        part = write(self.folder / f"replay-{first:012d}-{last:012d}.safetensors", self.replay.rollout(first, last))
        self._parts = [*(old for old in self._parts if old is not merged), part]
        self._written = last
        if merged is not None:
            merged.path.unlink()

    def _drop_old(self) -> None:
        """Forget the parts whose rows have all made room."""
        oldest = self.replay.end - self.replay.size
        for part in [part for part in self._parts if part.rows[1] <= oldest]:
            self._parts.remove(part)
            part.path.unlink()


def _pieces(rollout: Rollout, most: int) -> Iterator[Rollout]:
    """A rollout of transitions in pieces of at most so many rows."""
    length, final = len(rollout.reward), rollout.final_obs
    for first in range(0, length, most):
        last = min(first + most, length)
        here = (final.index[:, 0] >= first) & (final.index[:, 0] < last)
        index = final.index[here] - torch.tensor([first, 0])
        columns: dict[str, Any] = {name: getattr(rollout, name)[first:last] for name in COLUMNS if name != "obs"}
        yield Rollout(
            rollout.obs[first : last + 1], **columns, final_obs=FinalObs(index, final.obs[here]), extras={}, version=0
        )


def write(path: Path, rollout: Rollout) -> Part:
    """Rows of a replay to a file, on the disk when this returns.

    Raises:
        OSError: the disk is full or read-only; no file is left.
    """
    tensors = {name: getattr(rollout, name).contiguous() for name in COLUMNS}
    tensors |= {"final_index": rollout.final_obs.index.contiguous(), "final_obs": rollout.final_obs.obs.contiguous()}
    data = save_bytes(tensors)
    try:
        path.write_bytes(data)
        sync_path(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return Part(path, len(data), hashlib.sha256(data).hexdigest())


def read(path: Path) -> Rollout:
    """The inverse of `write`.

    Raises:
        KeyError: it holds something else.
    """
    tensors = load_file(path)
    final = FinalObs(tensors["final_index"], tensors["final_obs"])
    columns: dict[str, Any] = {name: tensors[name] for name in COLUMNS}
    return Rollout(**columns, final_obs=final, extras={}, version=0)
