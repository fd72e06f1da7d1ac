"""Where the environments of a process are, written where it outlives the process.

A process that hangs in native code, or is gone, can't tell which environment it was in. So every backend notes what it
is about to call, and the note lies in a mapped file: the kernel keeps it, however the process ends.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CALLS = ("", "reset", "step")
_FORMAT = struct.Struct("=5q")


@dataclass(frozen=True)
class Position:
    """The last call into an environment.

    Attributes:
        call: `reset` or `step`.
        env_index: among the environments of all workers; None where a pool steps them together.
        seed: that the environment, or the pool, was given.
        episode: since then, from 0; None for a pool.
        step: within the episode, from 1; of a pool since its seed.
    """

    call: str
    env_index: int | None
    seed: int
    episode: int | None
    step: int

    def __str__(self) -> str:
        """For messages: `step of env 3 (seed 7, episode 2, step 15)`."""
        if self.env_index is None:
            return f"{self.call} of the pool (seed {self.seed}, vector step {self.step})"
        return f"{self.call} of env {self.env_index} (seed {self.seed}, episode {self.episode}, step {self.step})"

    def facts(self) -> dict[str, Any]:
        """For an error's details."""
        return {"env_index": self.env_index, "seed": self.seed, "episode": self.episode, "step": self.step}


class PositionLog:
    """The position of one process, replaced at each call into an environment.

    Args:
        path: of the file that others read; None for memory of this process alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._memory: mmap.mmap = mmap.mmap(-1, _FORMAT.size)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w+b") as file:
                file.write(bytes(_FORMAT.size))
                file.flush()
                self._memory = mmap.mmap(file.fileno(), _FORMAT.size)

    def note(self, call: str, env_index: int | None, seed: int, episode: int | None, step: int) -> None:
        """What comes next; arguments as in `Position`."""
        index, number = -1 if env_index is None else env_index, -1 if episode is None else episode
        _FORMAT.pack_into(self._memory, 0, 2 if call == "step" else 1, index, seed, number, step)


def read_position(path: Path) -> Position | None:
    """The last position in `path`; None where no environment was called yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != _FORMAT.size:
        return None
    call, index, seed, episode, step = _FORMAT.unpack(data)
    if call not in (1, 2):
        return None
    return Position(_CALLS[call], None if index < 0 else index, seed, None if episode < 0 else episode, step)
