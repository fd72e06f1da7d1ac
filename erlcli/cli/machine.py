"""What `erl doctor` says about the machine: processors, memory, disk, limits and GPUs.

Facts are read in one function and judged in another, so that the judgement can be tested on any machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erlcli.core import cgroup, toolchain
from erlcli.envs.finding import Finding

GIB = 2**30
GPU_SECONDS = 60.0  # starting CUDA takes seconds, and minutes on a broken driver


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:.1f} GiB" if size < 100 * GIB else f"{size / GIB:,.0f} GiB"


def cpu() -> Iterator[Finding]:
    """Cores, and how many of them this process may use."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield judge_cpu(os.cpu_count() or 1, psutil.cpu_count(logical=False), usable, cgroup_cpus())


def judge_cpu(logical: int, physical: int | None, usable: int, quota: float | None) -> Finding:
    """Cores of the machine against those that this process gets."""
    text = f"{logical} logical cores" + (f", {physical} physical" if physical else "")
    details = {"logical": logical, "physical": physical, "usable": usable, "quota": quota}
    share = min(usable, quota) if quota is not None else usable
    if share < logical:
        text += f"; this process gets {share:g} of them"
        remedy = "set engine.threads and engine.env_threads to that many, or lift the limit of the container"
        return Finding("cpu", "warn", text, remedy, details)
    return Finding("cpu", "ok", text, details=details)


def cgroup_cpus(root: Path = cgroup.ROOT, own: Path = cgroup.OWN) -> float | None:
    """CPUs that a container or a job may use, by its quotas; None for all."""
    found = []
    for folder in cgroup.groups("cpu", root, own):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            try:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            except OSError:
                continue
        if quota.isdigit():  # not "max", or -1
            found.append(float(quota) / float(period))
    return min(found, default=None)


def memory() -> Iterator[Finding]:
    """Memory of the machine, and of the container where there is one."""
    import psutil

    state = psutil.virtual_memory()
    limit, used = cgroup_memory()
    total, available = state.total, state.available
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
    yield judge_memory(total, available, limited=limit is not None and limit <= total)


def judge_memory(total: int, available: int, *, limited: bool) -> Finding:
    """Whether a run fits: a small one takes 1 GiB (learner, evaluator, supervisor)."""
    text = f"{gib(available)} free of {gib(total)}" + (", the limit of this container" if limited else "")
    details = {"total": total, "available": available}
    if available < 0.4 * GIB:
        return Finding("memory", "fail", text, "end other programs; even a small run takes 1 GiB", details)
    if available < 2 * GIB:
        return Finding("memory", "warn", text, "keep to engine.workers = 0 and small replay buffers", details)
    return Finding("memory", "ok", text, details=details)


def cgroup_memory(root: Path = cgroup.ROOT, own: Path = cgroup.OWN) -> tuple[int | None, int]:
    """Limit and use of memory in bytes: of that group around this process which leaves the least room."""
    limited: list[tuple[int, int]] = []
    unlimited = 0
    for _, limit, used in cgroup.memory(root, own):
        if limit is not None:
            limited.append((limit, used))
        else:
            unlimited = used
    return min(limited, key=lambda pair: pair[0] - pair[1]) if limited else (None, unlimited)


def storage() -> Iterator[Finding]:
    """Where runs go, and shared memory."""
    folder = Path("runs") if Path("runs").is_dir() else Path()
    yield judge_disk(folder.absolute(), shutil.disk_usage(folder).free, writable=os.access(folder, os.W_OK))
    shm = Path("/dev/shm")
    if shm.is_dir():
        yield judge_shm(shutil.disk_usage(shm).total, shutil.disk_usage(shm).free)


def judge_disk(folder: Path, free: int, *, writable: bool) -> Finding:
    """Whether checkpoints, metrics and videos fit where runs go from here."""
    details = {"path": str(folder), "free": free, "writable": writable}
    if not writable:
        text = f"{folder} can't be written"
        return Finding("disk", "fail", text, "run from a folder of yours, or give --run-dir", details)
    text = f"{gib(free)} free in {folder}"
    if free < 0.1 * GIB:
        return Finding("disk", "fail", text, "free some: there is no room for checkpoints", details)
    if free < 2 * GIB:
        return Finding("disk", "warn", text, "free some, or give --run-dir on another disk", details)
    return Finding("disk", "ok", text, details=details)


def judge_shm(total: int, free: int) -> Finding:
    """Shared memory: erl's own has no name and isn't counted there, but NCCL's is, between GPUs."""
    details = {"total": total, "free": free}
    text = f"{gib(free)} free of {gib(total)}"
    if free < 0.5 * GIB:
        text += "; enough, unless several GPUs talk through it"
        return Finding("/dev/shm", "warn", text, "for several GPUs: docker run --shm-size=8g, or --ipc=host", details)
    return Finding("/dev/shm", "ok", text, details=details)


def limits() -> Iterator[Finding]:
    """Open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    yield judge_files(None if soft == endless else soft, None if hard == endless else hard)


def judge_files(soft: int | None, hard: int | None) -> Finding:
    """Each worker takes a few descriptors; a tournament has many. None stands for no limit."""
    text = "no limit" if soft is None else f"{soft:,} at once"
    details = {"soft": soft, "hard": hard}
    if soft is not None and soft < 1024:
        return Finding("open files", "warn", text, f"ulimit -n {min(4096, hard or 4096)}", details)
    return Finding("open files", "ok", text, details=details)


def compiler() -> Iterator[Finding]:
    """What makes machine code of learning and acting, and what it has made so far."""
    path, directory = toolchain.cxx(), toolchain.libraries()
    made = len(list(directory.glob("*/*.so")))
    details = {"compiler": path, "directory": str(directory), "libraries": made}
    if path is None:
        remedy = "install g++, or set CXX: training on a CPU is up to three times faster"
        yield Finding("compiler", "warn", "no C++ compiler: learning and acting are left to PyTorch", remedy, details)
        return
    text = f"{path}; {made} compiled step{'s' * (made != 1)} in {directory}"
    yield Finding("compiler", "ok", text, details=details)


def gpus() -> Iterator[Finding]:
    """GPUs as torch and as the driver see them, asked in a process of its own: a broken driver hangs or crashes."""
    command = [sys.executable, "-c", "from erlcli.cli.machine import tell_gpus; tell_gpus()"]
    remedy = "look at nvidia-smi; training goes on with --device cpu"
    try:
        done = subprocess.run(command, capture_output=True, timeout=GPU_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        yield Finding("gpu", "warn", f"CUDA did not answer within {GPU_SECONDS:g} s", remedy)
        return
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        output = done.stderr.decode(errors="replace")[-2000:]
        text = f"asking CUDA ended with exit code {done.returncode}"
        yield Finding("gpu", "warn", text, remedy, {"output": output})
        return
    yield from judge_gpus(facts)


def tell_gpus() -> None:
    """In that process: print the facts as one line of JSON."""
    facts: dict[str, Any] = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "torch": [], "driver": []}
    facts |= _driver_facts()
    try:
        import torch

        facts["cuda_build"] = torch.version.cuda
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            facts["torch"].append(_try_gpu(index))
    except Exception as error:
        facts["torch_error"] = f"{type(error).__name__}: {error}"
    print("\n" + json.dumps(facts))


def _driver_facts() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            state = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            found.append({"name": str(name), "total": int(state.total), "used": int(state.used)})
        return {"driver": found, "driver_version": str(pynvml.nvmlSystemGetDriverVersion())}
    except Exception as error:  # no driver, or no NVIDIA machine: the reason is among the facts
        return {"driver_error": str(error)}


def _try_gpu(index: int) -> dict[str, Any]:
    """A GPU of torch's, and whether it computes."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {
        "name": properties.name,
        "total": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "error": None,
    }
    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        if float((ones @ ones).sum()) != 64**3:
            facts["error"] = "a matrix product came out wrong"
        facts["used"] = facts["total"] - torch.cuda.mem_get_info(index)[0]
    except Exception as error:
        facts["error"] = str(error).splitlines()[0]
    return facts


def judge_gpus(facts: dict[str, Any]) -> Iterator[Finding]:
    """A finding for each GPU, or for why there is none."""
    version = f", driver {facts['driver_version']}" if facts.get("driver_version") else ""
    for index, gpu in enumerate(facts["torch"]):
        text = f"{gpu['name']}, {gib(gpu['total'])}, compute {gpu['capability']}{version}"
        name = f"cuda:{index}"
        if gpu["error"] is not None:
            remedy = "install a torch that fits GPU and driver; until then --device cpu"
            yield Finding(name, "warn", f"{text}: {gpu['error']}", remedy, gpu)
        elif gpu["used"] > 0.9 * gpu["total"]:
            yield Finding(name, "warn", f"{text}; {gib(gpu['used'])} in use", "nvidia-smi shows by whom", gpu)
        else:
            yield Finding(name, "ok", text, details=gpu)
    if facts["torch"]:
        return
    if not facts["driver"]:
        yield Finding("gpu", "ok", "none; training runs on the CPU", details=facts)
        return
    names = ", ".join(gpu["name"] for gpu in facts["driver"])
    if facts.get("visible") is not None:
        text = f"{names}: hidden by CUDA_VISIBLE_DEVICES={facts['visible']!r}"
        yield Finding("gpu", "warn", text, "unset it to train on them", facts)
    elif facts.get("cuda_build") is None:
        text = f"{names}{version}: there, but this torch is built for the CPU only"
        yield Finding("gpu", "warn", text, "pip install a CUDA build of torch: pytorch.org/get-started", facts)
    else:
        text = f"{names}{version}: torch for CUDA {facts['cuda_build']} can't use it"
        remedy = "update the driver, or install a torch built for an older CUDA"
        yield Finding("gpu", "warn", text + f" ({facts.get('torch_error', 'no reason given')})", remedy, facts)
