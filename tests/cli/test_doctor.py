import json
import subprocess
import sys
import types

import pytest
import typer
from typer.testing import CliRunner

from erlcli.cli import doctor, machine
from erlcli.cli.machine import GIB
from erlcli.envs.finding import Finding


def run(*arguments):
    app = typer.Typer()
    app.command()(doctor.doctor)
    return CliRunner().invoke(app, list(arguments), env={"NO_COLOR": "1", "COLUMNS": "80"})


def test_this_machine():
    result = run("--json")
    report = json.loads(result.stdout)
    assert result.exit_code == report["exit_code"] == 0
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert {"python", "erl", "torch", "threads", "packages", "cpu", "memory", "disk", "open files", "envpool", "export",
            "tensorboard", "video", "display", "render 2-D", "render MuJoCo"} <= set(findings)  # fmt: skip
    assert findings["torch"]["details"]["version"] == __import__("torch").__version__
    assert findings["render 2-D"]["status"] == "ok"
    assert any(name == "gpu" or name.startswith("cuda:") for name in findings)
    assert all(f["remedy"] for f in report["findings"] if f["status"] != "ok")


def test_a_failing_probe_gives_exit_code_1(monkeypatch):
    bad, good = Finding("disk", "fail", "full", "free some"), Finding("cpu", "ok", "fine")
    monkeypatch.setattr(doctor, "probes", lambda: {"a": lambda: iter([bad]), "b": lambda: iter([good])})
    result = run()
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "fail  disk           full",
        "                  -> free some",
        "ok    cpu            fine",
        "this machine cannot train: 1 ok, 0 warn, 1 fail",
    ]


def test_warnings_leave_with_0(monkeypatch):
    monkeypatch.setattr(doctor, "probes", lambda: {"a": lambda: iter([Finding("gpu", "warn", "hidden", "unset it")])})
    result = run()
    assert result.exit_code == 0 and "this machine can train: 0 ok, 1 warn, 0 fail" in result.stdout


@pytest.fixture
def without(monkeypatch):
    """Makes modules fail to import."""

    def one(*names, problem="No module named 'x'"):
        real = doctor.importlib.import_module

        def fake(name, *rest):
            if name in names:
                raise ImportError(problem)
            return real(name, *rest)

        monkeypatch.setattr(doctor.importlib, "import_module", fake)

    return one


def statuses(probe):
    return {finding.name: finding.status for finding in probe()}


def test_a_missing_extra_is_a_warning_with_what_installs_it(without):
    without("envpool", "onnxscript")
    findings = {finding.name: finding for finding in doctor.extras()}
    assert findings["export"].status == "warn" and findings["export"].remedy == "pip install 'erlcli[export]'"
    assert "without onnxscript:" in findings["export"].message
    if sys.platform == "linux":
        assert findings["envpool"].status == "warn" and "erlcli[fast]" in findings["envpool"].remedy


def test_a_broken_extra_is_told_from_a_missing_one(without):
    without("av", problem="libfoo.so.1: cannot open shared object file")
    (video,) = [finding for finding in doctor.extras() if finding.name == "video"]
    assert "av (libfoo.so.1: cannot open" in video.message


def test_whether_the_processor_rounds_products_is_said(monkeypatch):
    for rounds in (True, False):
        monkeypatch.setattr("erlcli.core.matmul.rounds", lambda rounds=rounds: rounds)
        torch, _ = doctor.torch()
        assert torch.details["bf16"] is rounds and ("bf16" in torch.message) is rounds


def test_what_a_run_can_not_do_without(without):
    without("torch", "numpy", "mujoco")
    assert statuses(doctor.torch) == {"torch": "fail"}
    packages = statuses(doctor.packages)
    assert packages["packages"] == "fail" and packages["MuJoCo"] == "warn"


def test_an_old_torch(monkeypatch):
    old = types.SimpleNamespace(
        __version__="2.4.1+cu121",
        version=types.SimpleNamespace(cuda="12.1"),
        backends=types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX2")),
        get_num_threads=lambda: 4,
    )
    monkeypatch.setattr(doctor, "_import", lambda name: (old, ""))
    torch, threads = doctor.torch()
    assert torch.status == "warn" and "CUDA 12.1" in torch.message
    assert threads.message.startswith("4 for tensors")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((8, 4, 8, None), "ok", "8 logical cores, 4 physical"),
        ((8, 4, 2, None), "warn", "gets 2 of them"),
        ((64, 32, 64, 1.5), "warn", "gets 1.5 of them"),
        ((8, None, 8, 16.0), "ok", "8 logical cores"),
    ],
)
def test_cpu(arguments, status, words):
    finding = machine.judge_cpu(*arguments)
    assert finding.status == status and words in finding.message


def test_quota_of_a_container(tmp_path):
    assert machine.cgroup_cpus(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert machine.cgroup_cpus(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cgroup_cpus(tmp_path) is None


def test_quota_of_an_older_container(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cgroup_cpus(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    assert machine.cgroup_cpus(tmp_path) == 4


def test_memory_limit_of_a_container(tmp_path):
    assert machine.cgroup_memory(tmp_path) == (None, 0)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("300\n")
    assert machine.cgroup_memory(tmp_path) == (1000, 300)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.cgroup_memory(tmp_path) == (None, 300)


@pytest.mark.parametrize(("free", "status"), [(0.3, "fail"), (1.0, "warn"), (3.0, "ok")])
def test_memory(free, status):
    assert machine.judge_memory(8 * GIB, int(free * GIB), limited=False).status == status
    assert "limit of this container" in machine.judge_memory(8 * GIB, int(free * GIB), limited=True).message


@pytest.mark.parametrize(
    ("free", "writable", "status"), [(50, True, "ok"), (1, True, "warn"), (0.05, True, "fail"), (50, False, "fail")]
)
def test_disk(tmp_path, free, writable, status):
    finding = machine.judge_disk(tmp_path, int(free * GIB), writable=writable)
    assert finding.status == status and str(tmp_path) in finding.message


def test_the_compiler_of_gradient_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", sys.executable)  # something that is there
    (finding,) = machine.compiler()
    folder = tmp_path / "erl" / "compiled"
    assert finding.status == "ok" and finding.message == f"{sys.executable}; 0 compiled steps in {folder}"
    (folder / "key").mkdir(parents=True)
    (folder / "key" / "step.so").touch()
    (finding,) = machine.compiler()
    assert finding.message == f"{sys.executable}; 1 compiled step in {folder}"
    monkeypatch.setenv("CXX", "/nowhere/c++")
    (finding,) = machine.compiler()
    assert finding.status == "warn" and "install g++" in finding.remedy


def test_shared_memory_and_open_files():
    assert machine.judge_shm(GIB // 16, GIB // 16).status == "warn"  # what docker gives
    assert machine.judge_shm(8 * GIB, 8 * GIB).status == "ok"
    assert machine.judge_files(256, 10_000).remedy == "ulimit -n 4096"
    assert machine.judge_files(256, 512).remedy == "ulimit -n 512"
    assert machine.judge_files(1024, None).status == machine.judge_files(None, None).status == "ok"


def gpu(**facts):
    return {"name": "A", "total": 80 * GIB, "capability": "9.0", "error": None, "used": 0} | facts


DRIVER = [{"name": "A", "total": 80 * GIB, "used": 0}]


@pytest.mark.parametrize(
    ("facts", "expected", "words"),
    [
        ({"torch": [gpu()], "driver": DRIVER, "driver_version": "550.1"}, [("cuda:0", "ok")], "80.0 GiB, compute 9.0"),
        ({"torch": [gpu(), gpu(used=79 * GIB)], "driver": DRIVER}, [("cuda:0", "ok"), ("cuda:1", "warn")], "in use"),
        ({"torch": [gpu(error="no kernel image")], "driver": DRIVER}, [("cuda:0", "warn")], "no kernel image"),
        ({"torch": [], "driver": []}, [("gpu", "ok")], "runs on the CPU"),
        ({"torch": [], "driver": DRIVER, "cuda_build": None}, [("gpu", "warn")], "built for the CPU only"),
        ({"torch": [], "driver": DRIVER, "cuda_build": "13.0"}, [("gpu", "warn")], "torch for CUDA 13.0 can't"),
        ({"torch": [], "driver": DRIVER, "visible": ""}, [("gpu", "warn")], "CUDA_VISIBLE_DEVICES=''"),
    ],
)
def test_gpus(facts, expected, words):
    findings = list(machine.judge_gpus(facts))
    assert [(finding.name, finding.status) for finding in findings] == expected
    assert words in findings[-1].message
    assert all(finding.remedy for finding in findings if finding.status == "warn")


@pytest.mark.parametrize("way", ["hangs", "crashes"])
def test_a_broken_driver_is_a_warning(monkeypatch, way):
    def fake(command, **kwargs):
        if way == "hangs":
            raise subprocess.TimeoutExpired(command, kwargs["timeout"])
        return subprocess.CompletedProcess(command, -11, b"", b"driver trouble")

    monkeypatch.setattr(machine.subprocess, "run", fake)
    (finding,) = machine.gpus()
    assert (finding.name, finding.status) == ("gpu", "warn") and "--device cpu" in finding.remedy
    assert ("did not answer" if way == "hangs" else "exit code -11") in finding.message


def test_the_command_imports_nothing_heavy():
    code = "import sys, erlcli.cli.doctor as _; sys.exit(bool({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
