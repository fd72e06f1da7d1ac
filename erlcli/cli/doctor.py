"""`erl doctor`: whether this machine can train, and what would make it better at it."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.findings import FindingPrinter, tally
from erlcli.cli.output import print_json
from erlcli.envs.finding import Finding

if TYPE_CHECKING:
    from types import ModuleType

RENDER_SECONDS = 30.0

# Modules, what installs them, what they are good for.
EXTRAS = {
    "envpool": (("envpool",), "pip install 'erlcli[fast]'", "steps CPU environments several times faster"),
    "export": (("onnx", "onnxscript", "onnxruntime"), "pip install 'erlcli[export]'", "erl export --format onnx"),
    "tensorboard": (("tensorboard",), "pip install tensorboard", "tensorboard --logdir shows the curves"),
    "plots": (("matplotlib",), "pip install matplotlib", "learning curves as pictures"),
    "video": (("av",), "pip install av", "episodes as videos"),
}


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON report.")] = False,
) -> None:
    """Look at this machine: versions, cores, memory, disk, rendering, GPUs.

    Exit code 0, or 1 where something makes training impossible.
    """
    printer = FindingPrinter(quiet=json_output)
    findings: list[Finding] = []
    try:
        for name, probe in probes().items():
            printer.looking_at(name)
            for finding in probe():
                findings.append(finding)
                printer(finding)
                printer.looking_at(name)
    finally:
        printer.done()
    exit_code = 1 if any(finding.status == "fail" for finding in findings) else 0
    if json_output:
        counts = {status: sum(f.status == status for f in findings) for status in ("ok", "warn", "fail")}
        print_json({"exit_code": exit_code, **counts, "findings": [f.to_json() for f in findings]})
    else:
        print(f"this machine can{'not' if exit_code else ''} train: {tally(findings)}")
    raise typer.Exit(exit_code)


def probes() -> dict[str, Callable[[], Iterator[Finding]]]:
    """What is looked at, in order."""
    from erlcli.cli import machine

    return {
        "python": python,
        "torch": torch,
        "packages": packages,
        "cpu": machine.cpu,
        "memory": machine.memory,
        "storage": machine.storage,
        "limits": machine.limits,
        "compiler": machine.compiler,
        "extras": extras,
        "rendering": rendering,
        "gpus": machine.gpus,
    }


def python() -> Iterator[Finding]:
    """The interpreter and this tool."""
    import erlcli

    version = platform.python_version()
    text = f"{version} on {platform.system()} {platform.machine()}, {sys.prefix}"
    yield Finding("python", "ok", text, details={"version": version, "executable": sys.executable})
    yield Finding("erl", "ok", erlcli.__version__, details={"version": erlcli.__version__})


def torch() -> Iterator[Finding]:
    """The library behind everything, and its threads."""
    module, problem = _import("torch")
    if module is None:
        yield Finding("torch", "fail", f"can't be imported: {problem}", "pip install 'torch>=2.11'")
        return
    version = str(module.__version__)
    build = f"CUDA {module.version.cuda}" if module.version.cuda else "CPU only"
    capability = module.backends.cpu.get_cpu_capability()
    rounds = importlib.import_module("erlcli.core.matmul").rounds()
    text = f"{version}, {build}, kernels for {capability}" + (", products in bf16" if rounds else "")
    details = {"version": version, "cuda": module.version.cuda, "capability": capability, "bf16": rounds}
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < (2, 11):
        yield Finding("torch", "warn", text, "pip install 'torch>=2.11'", details)
    else:
        yield Finding("torch", "ok", text, details=details)
    wanted = os.environ.get("OMP_NUM_THREADS")
    count = module.get_num_threads()
    text = f"{count} for tensors" + (f", as OMP_NUM_THREADS={wanted} asks" if wanted else "")
    yield Finding("threads", "ok", text, details={"threads": count, "omp_num_threads": wanted})


def packages() -> Iterator[Finding]:
    """What a run can't do without, and what the environments in the default install need."""
    found, broken = [], []
    for name in ("numpy", "gymnasium", "pydantic", "safetensors", "psutil"):
        module, problem = _import(name)
        if module is None:
            broken.append(f"{name} ({problem})")
        else:
            found.append(f"{name} {_version(module)}")
    if broken:
        yield Finding("packages", "fail", f"can't be imported: {', '.join(broken)}", "pip install erlcli anew")
    else:
        yield Finding("packages", "ok", ", ".join(found))
    for name, family, extra in (("Box2D", "box2d", "Box2D"), ("mujoco", "mujoco", "MuJoCo")):
        module, problem = _import(name)
        if module is None:
            text = f"can't be imported: {problem}; its environments can't be made"
            yield Finding(extra, "warn", text, f"pip install 'gymnasium[{family}]'")
        else:
            yield Finding(extra, "ok", _version(module) or "installed")


def extras() -> Iterator[Finding]:
    """What more can be had."""
    for name, (modules, install, use) in EXTRAS.items():
        missing, versions = [], []
        for wanted in modules:
            module, problem = _import(wanted)
            if module is None:
                missing.append(wanted if "No module named" in problem else f"{wanted} ({problem})")
            else:
                versions.append(f"{wanted} {_version(module)}".strip())
        if not missing:
            yield Finding(name, "ok", f"{', '.join(versions)}: {use}")
        elif name == "envpool" and sys.platform != "linux":
            yield Finding(name, "ok", f"exists for Linux only; it {use}")
        else:
            yield Finding(name, "warn", f"without {', '.join(missing)}: {use}", install)


def rendering() -> Iterator[Finding]:
    """Whether frames can be made here, each library in a process of its own."""
    from erlcli.envs.check import CheckOptions, check_env
    from erlcli.envs.config import EnvConfig
    from erlcli.envs.offscreen import has_display

    shown = has_display()
    text = "windows can be shown" if shown else "none: frames and videos, but no windows"
    yield Finding("display", "ok", text, details={"display": shown})
    for name, env_id in (("render 2-D", "CartPole-v1"), ("render MuJoCo", "InvertedPendulum-v5")):
        config = EnvConfig(env_id, backend="gymnasium")
        report = check_env(CheckOptions(config, timeout_seconds=RENDER_SECONDS, only=("make", "render")))
        bad = next((f for f in report.findings if f.status != "ok"), None)
        if bad is None:
            yield Finding(name, "ok", report.findings[-1].message)
        else:
            yield Finding(name, "warn", bad.message, bad.remedy, bad.details)


def _import(name: str) -> tuple[ModuleType | None, str]:
    """A module, or why it can't be had."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name), ""
    except Exception as error:  # a broken install raises anything: AttributeError, OSError for a library ...
        return None, str(error).split("\n")[0] or type(error).__name__


def _version(module: ModuleType) -> str:
    from importlib import metadata

    version = getattr(module, "__version__", None)
    if version is None:
        try:
            version = metadata.version(module.__name__)
        except metadata.PackageNotFoundError:
            version = ""
    return str(version)
