"""Figures of the GPUs that a run uses, read in one process for everybody who wants to see them.

It asks NVIDIA's management library and nothing else: the process stays free of torch and CUDA, and takes no memory of
a GPU. Where there is no such library, driver or GPU, or the run computes elsewhere, no figures are written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from erlcli.runs.jsonl import Row, read_json, write_json
from erlcli.runs.layout import RunLayout

PROCESS = "gpu"  # in the name of the file; it is no process of its own
POLL_SECONDS = 2.0


class GpuMonitor:
    """Writes `processes/gpu.json` every two seconds, from a thread, while one of the run's processes uses a GPU.

    The learner tells the GPUs that it computes on by their UUIDs, which mean the same in every container and under
    every CUDA_VISIBLE_DEVICES; environments on a GPU are found by their process ids.

    Args:
        layout: the run.
    """

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._path = layout.process(PROCESS)
        self._left = threading.Event()
        self._used: dict[str, Any] = {}  # handles by UUID; a GPU that was used once stays, so that the rows do too
        self._path.unlink(missing_ok=True)  # of an earlier attempt, perhaps on another machine
        self._thread = threading.Thread(target=self._run, name="gpu", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; does not wait for a driver that takes its time."""
        self._left.set()
        self._thread.join(POLL_SECONDS)

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # no driver: a machine without NVIDIA GPUs
        try:
            while not self._left.wait(POLL_SECONDS):
                self.poll(pynvml)
        except (pynvml.NVMLError, OSError) as error:
            print(f"gpu: {error}", file=sys.stderr)  # a GPU that fell off its bus, a full disk: training says more
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def poll(self, nvml: Any) -> None:  # noqa: ANN401 - the module pynvml, which has no types
        """One look.

        Args:
            nvml: the library, initialised.

        Raises:
            NVMLError: it fails.
            OSError: the file can't be written.
        """
        rows = {path.stem: read_json(path) or {} for path in self._layout.process("x").parent.glob("*.json")}
        for uuid, handle in _find(nvml, rows):
            self._used.setdefault(uuid, handle)
        if self._used:
            gpus = [figures(nvml, handle) for handle in self._used.values()]
            write_json(self._path, {"time": time.time(), "gpus": gpus})


def _find(nvml: Any, rows: dict[str, Row]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """UUIDs and handles of the GPUs that the processes with these heartbeats use."""
    told = {str(uuid).removeprefix("GPU-") for row in rows.values() for uuid in row.get("gpu_uuids", [])}
    pids = {int(row["pid"]) for row in rows.values() if "pid" in row}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        if uuid.removeprefix("GPU-") in told or pids & _users(nvml, handle):
            yield uuid, handle


def _users(nvml: Any, handle: Any) -> set[int]:  # noqa: ANN401
    """Processes that compute or draw on a GPU; empty where the driver doesn't say."""
    found: set[int] = set()
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        with contextlib.suppress(nvml.NVMLError):
            found |= {int(process.pid) for process in ask(handle)}
    return found


def figures(nvml: Any, handle: Any) -> Row:  # noqa: ANN401
    """What one GPU is at; None for a figure that it doesn't give, as virtual ones may not.

    Returns:
        `name`, `utilization` in percent, `memory_used_bytes`, `memory_total_bytes`, `temperature` in degrees Celsius.
    """
    row: Row = {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "utilization": None,
        "memory_used_bytes": None,
        "memory_total_bytes": None,
        "temperature": None,
    }
    with contextlib.suppress(nvml.NVMLError):
        row["utilization"] = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        row |= {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}
    with contextlib.suppress(nvml.NVMLError):
        row["temperature"] = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return row


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes in older versions
