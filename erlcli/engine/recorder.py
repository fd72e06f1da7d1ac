"""What is derived from a run's rows: TensorBoard events and the learning-curve picture.

Written by the evaluator's process, which has the time; the learner writes JSON lines and nothing else.
"""

from __future__ import annotations

import time
from typing import Any

from erlcli.recipe.load import AnyRecipe
from erlcli.runs.jsonl import Row, Tail
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView

SKIPPED = {"attempt", "steps", "version", "kind"}
SECONDS_BETWEEN_PICTURES = 10.0


class Recorder:
    """Follows a run's files.

    Args:
        layout: the run.
        recipe: its recipe.
    """

    def __init__(self, layout: RunLayout, recipe: AnyRecipe) -> None:
        self.layout = layout
        self.enabled = recipe.log.tensorboard
        self._view = RunView(layout)
        self._tails = {"": Tail(layout.metrics), "eval/": Tail(layout.evals)}
        self._writer: Any = None  # a SummaryWriter, of one attempt
        self._attempt = 0
        self._drawn = float("-inf")
        if layout.tensorboard.exists():
            for tail in self._tails.values():
                tail.read()  # recorded by an earlier attempt

    def record(self) -> None:
        """Turn new rows into TensorBoard events; their step axis is env steps, over all attempts."""
        if not self.enabled:
            return
        for prefix, tail in self._tails.items():
            for row in tail.read():
                self._add(prefix, row)

    def _add(self, prefix: str, row: Row) -> None:
        attempt = int(row.get("attempt", 0))
        if self._writer is not None and attempt > self._attempt:
            self._writer.close()
            self._writer = None
        self._attempt = max(self._attempt, attempt)
        if self._writer is None:
            from torch.utils.tensorboard import (
                SummaryWriter,  # a second to import, so only once there is a row
            )

            # Events of an earlier attempt beyond its last checkpoint are superseded by the ones from here on.
            self._writer = SummaryWriter(str(self.layout.tensorboard), purge_step=row["steps"])
        for name, value in row.items():
            if name not in SKIPPED and isinstance(value, (int, float)) and not isinstance(value, bool):
                self._writer.add_scalar(prefix + name, value, row["steps"], walltime=row["time/wall"])

    def draw(self, *, now: bool = False) -> None:
        """Redraw `plots/learning_curve.png`, unless that was just done."""
        if not now and time.monotonic() - self._drawn < SECONDS_BETWEEN_PICTURES:
            return
        from erlcli.engine import plot  # matplotlib

        self._view.refresh()
        plot.save([self._view], self.layout.plots / "learning_curve.png")
        self._drawn = time.monotonic()

    def close(self) -> None:
        """Record and draw what is left."""
        self.record()
        self.draw(now=True)
        if self._writer is not None:
            self._writer.close()
