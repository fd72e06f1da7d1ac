"""Metric rows, written once their numbers have come from the device: training never waits for them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from erlcli.core.readback import Readback
from erlcli.engine.episodes import Episodes
from erlcli.runs.jsonl import Appender, Row


class ComingRow:
    """A metric row whose numbers are on their way from the device.

    Args:
        head: what comes before the episodes and metrics.
        episodes: what `EpisodeTracker.numbers` gave.
        metrics: of the algorithm.
        times: what comes last.
    """

    def __init__(
        self, head: Row, episodes: Tensor, metrics: dict[str, float | Tensor], times: dict[str, float]
    ) -> None:
        self._head, self._metrics, self._times = head, metrics, times
        self._episodes = Readback(episodes)
        tensors = [value.detach() for value in metrics.values() if isinstance(value, Tensor)]
        if len({tensor.dtype for tensor in tensors}) > 1:
            tensors = [tensor.to(torch.float64) for tensor in tensors]
        self._tensors = Readback(torch.stack(tensors)) if tensors else None

    @property
    def ready(self) -> bool:
        """Whether `row` won't wait."""
        return self._episodes.ready and (self._tensors is None or self._tensors.ready)

    def row(self) -> Row:
        """All of it; waits for the device."""
        episodes = Episodes.of(self._episodes.get())
        numbers = iter(self._tensors.get().tolist() if self._tensors is not None else ())
        metrics = {k: next(numbers) if isinstance(v, Tensor) else v for k, v in self._metrics.items()}
        return {**self._head, "episodes": episodes.episodes, **episodes.metrics(), **metrics, **self._times}


class MetricRows:
    """A run's rows, in order.

    Args:
        path: of `metrics.jsonl`.
    """

    def __init__(self, path: Path) -> None:
        self._file = Appender(path)
        self._coming: list[ComingRow] = []

    def add(self, head: Row, episodes: Tensor, metrics: dict[str, float | Tensor], times: dict[str, float]) -> None:
        """A row, see `ComingRow`; and write what has come."""
        self._coming.append(ComingRow(head, episodes, metrics, times))
        self.write(wait=False)

    def write(self, *, wait: bool) -> None:
        """Write the rows that have come; with `wait` all."""
        while self._coming and (wait or self._coming[0].ready):
            self._file.append(self._coming.pop(0).row())

    def sync(self) -> None:
        """Write all rows, and have them on the disk."""
        self.write(wait=True)
        self._file.sync()

    def close(self) -> None:
        """Release the file; for processes that outlive a run."""
        self._file.close()
