"""CartPole that writes down when it was first stepped, for `startup.py`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class FirstStep(CartPoleEnv):
    """The same env.

    Args:
        path: of the file, which gets the seconds since the epoch, once.
    """

    def __init__(self, path: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._path: Path | None = Path(path)

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        if self._path is not None:
            with contextlib.suppress(FileExistsError), self._path.open("x") as file:
                file.write(repr(time.time()))
            self._path = None
        return super().step(action)
