"""GPU figures, with a management library of our own."""

import sys
import threading
from types import SimpleNamespace

import pytest

from erlcli.engine import gpu
from erlcli.engine.gpu import GpuMonitor
from erlcli.runs.jsonl import read_json, write_json
from erlcli.runs.layout import RunLayout

PATIENCE = 20.0


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two cards; card 1 gives neither temperature nor utilisation, as virtual ones do."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, broken=False):
        self.broken, self.users, self.looks = broken, {0: [], 1: []}, 0
        self.used, self.shut = threading.Event(), threading.Event()

    def nvmlInit(self):
        if self.broken:
            self.shut.set()
            raise NVMLError("driver not loaded")

    def nvmlShutdown(self):
        self.shut.set()

    def nvmlDeviceGetCount(self):
        self.looks += 1
        if self.looks > 1:
            self.used.set()
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}" if handle else b"GPU-0"

    def nvmlDeviceGetName(self, handle):
        return "Card" if handle else b"Old card"

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.users[handle]]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        raise NVMLError("not supported")

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle:
            raise NVMLError("not supported")
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=2 * 2**30, total=80 * 2**30, free=78 * 2**30)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        if handle:
            raise NVMLError("not supported")
        return 61


CARD_0 = {
    "name": "Old card", "utilization": 87, "memory_used_bytes": 2 * 2**30, "memory_total_bytes": 80 * 2**30,
    "temperature": 61,
}  # fmt: skip
CARD_1 = {**CARD_0, "name": "Card", "utilization": None, "temperature": None}


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def watch(layout, monkeypatch):
    """Starts a monitor that looks at a fake library all the time."""
    monkeypatch.setattr(gpu, "POLL_SECONDS", 0.01)
    monitors = []

    def start(nvml):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monitors.append(GpuMonitor(layout))
        return monitors[-1]

    yield start
    for monitor in monitors:
        monitor.close()


@pytest.mark.parametrize("uuid", ["GPU-0", "0"])  # NVIDIA's tools write the prefix, torch doesn't
def test_the_card_that_the_learner_computes_on(layout, watch, uuid):
    write_json(layout.process("learner"), {"pid": 5, "gpu_uuids": [uuid]})
    nvml = FakeNvml()
    watch(nvml)
    assert nvml.used.wait(PATIENCE)
    row = read_json(layout.process("gpu"))
    assert row["gpus"] == [CARD_0] and row["time"] > 0


def test_a_card_that_only_an_environment_uses(layout, watch):
    write_json(layout.process("learner"), {"pid": 5})
    write_json(layout.process("worker-0"), {"pid": 6})
    nvml = FakeNvml()
    nvml.users[1] = [6, 7]
    watch(nvml)
    assert nvml.used.wait(PATIENCE)
    assert read_json(layout.process("gpu"))["gpus"] == [CARD_1]


def test_a_run_on_the_cpu_has_no_file_whoever_else_uses_the_cards(layout, watch):
    write_json(layout.process("learner"), {"pid": 5})
    write_json(layout.process("gpu"), {"gpus": [CARD_0]})  # of an earlier attempt
    nvml = FakeNvml()
    nvml.users[0] = [4711]
    watch(nvml)
    assert nvml.used.wait(PATIENCE)
    assert not layout.process("gpu").exists()


def test_a_card_stays_while_the_learner_is_started_anew(layout):
    monitor = GpuMonitor(layout)
    monitor.close()
    nvml = FakeNvml()
    write_json(layout.process("learner"), {"pid": 5, "gpu_uuids": ["GPU-0"]})
    monitor.poll(nvml)
    write_json(layout.process("learner"), {"pid": 8})
    monitor.poll(nvml)
    assert read_json(layout.process("gpu"))["gpus"] == [CARD_0]


@pytest.mark.parametrize("nvml", [FakeNvml(broken=True), None], ids=["no driver", "no library"])
def test_a_machine_without_cards(layout, watch, nvml):
    monitor = watch(nvml)  # None in sys.modules is what an import that fails finds
    monitor._thread.join(PATIENCE)
    assert not monitor._thread.is_alive() and not layout.process("gpu").exists()


def test_a_card_that_is_lost_ends_the_figures_and_nothing_else(layout, watch, capfd):
    nvml = FakeNvml()

    def lost():
        raise NVMLError("GPU is lost")

    nvml.nvmlDeviceGetCount = lost
    monitor = watch(nvml)
    assert nvml.shut.wait(PATIENCE)
    monitor._thread.join(PATIENCE)
    assert "GPU is lost" in capfd.readouterr().err


def test_close_ends_it(layout, watch):
    nvml = FakeNvml()
    monitor = watch(nvml)
    monitor.close()
    assert nvml.shut.wait(PATIENCE) and not monitor._thread.is_alive()
