"""Joins a Ray cluster, or starts one on this machine, and sees whether its nodes can train for a tournament."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any

import erlcli
from erlcli.engine.child import Child
from erlcli.errors import OwnedError, RecipeError
from erlcli.runs.jsonl import write_text
from erlcli.runs.layout import RunLayout
from erlcli.tournament.backends.place import OWNERS, PROOF
from erlcli.tournament.backends.reaper import MODULE as REAPER_MODULE
from erlcli.tournament.backends.settings import RaySettings
from erlcli.tournament.slots import cores

LEAVE_SECONDS = 30.0  # that slots of an earlier owner get to notice that it is gone
CHECK_SECONDS = 60.0  # that a node may take to start a process and import erl
REAPER = "reaper"
STORE_BYTES = 100 << 20  # Ray's object store on a cluster of our own: nothing but orders and news pass through it
PRIVATE = "erl_private"  # a resource that marks a cluster of our own
# Ray's settings, unless the user has chosen. The last one reaches no further than a cluster of our own: Ray gives its
# processes a niceness of 15, with which members hardly train on a machine that has anything else to do.
DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
}


def join(settings: RaySettings, slots: int) -> bool:
    """Connect this process to the cluster; whether that was started here, and has to be ended here.

    Args:
        settings: name it.
        slots: that a cluster of our own has to have room for, even if that is more than this machine has cores.

    Raises:
        RecipeError: there is no such cluster, or its Ray or Python is another version.
    """
    settings.check()
    os.environ.update({key: value for key, value in DEFAULTS.items() if key not in os.environ})
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": True}
    address = settings.resolved()
    try:
        try:
            ray.init(address=address or "auto", **options)
            if address is not None or PRIVATE not in ray.cluster_resources():
                _hush()
                return False
            ray.shutdown()  # another tournament's own cluster was found, which ends with it
        except ConnectionError:
            if address is not None:
                raise
        count = max(len(cores()), slots * settings.cpus)
        options |= {"include_dashboard": False, "object_store_memory": STORE_BYTES, "resources": {PRIVATE: 1}}
        ray.init(address="local", num_cpus=count, **options)
        _hush()
        return True
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        found = " ".join(str(error).split())
        raise RecipeError(
            f"--backend ray: no connection to {address or 'a cluster on this machine'}",
            expected=f"a cluster with Ray {ray.__version__} and this Python on every node",
            found=found[:400],
            remedy="the same container image or environment on all nodes; ray status shows whether it is up",
        ) from None


def _hush() -> None:
    """Keep Ray from printing what nodes tell, such as their end: `log_to_driver` covers the workers' output alone."""
    import ray

    with contextlib.suppress(AttributeError):  # Ray's own switch, but no public one
        ray._private.worker._worker_logs_enabled = False


def reaper(layout: RunLayout) -> Child:
    """A process that ends a cluster of our own if this one is killed."""
    return Child.spawn(REAPER, REAPER_MODULE, [str(os.getpid())], layout.output(REAPER), threads=1, light=True)


def supersede(root: Path) -> None:
    """Wait until no slot of an earlier owner of the tournament is left.

    Raises:
        OwnedError: one doesn't leave.
    """
    fd = os.open(root / OWNERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + LEAVE_SECONDS
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise OwnedError(
                        f"{root}: a slot of its last owner is still at work",
                        expected=f"{OWNERS} to be free within {LEAVE_SECONDS:g} s",
                        found="a process on one of the nodes that holds it",
                        remedy="wait until it has left, or end it: ray list actors shows where it is",
                    ) from None
                time.sleep(0.1)
    finally:
        os.close(fd)


def prove(layout: RunLayout) -> str:
    """Write what every node has to see in the tournament's directory."""
    proof = secrets.token_hex(16)
    write_text(layout.root / PROOF, proof)
    return proof


def suitable(settings: RaySettings) -> list[dict[str, Any]]:
    """Nodes that have room for a slot at all."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"]
        and node["Resources"].get("CPU", 0.0) >= settings.cpus
        and node["Resources"].get("GPU", 0.0) >= settings.gpus
    ]


def room(settings: RaySettings) -> int:
    """Slots that the nodes there are have room for, whatever else they are at."""
    total = 0
    for node in suitable(settings):
        count = int(node["Resources"]["CPU"] // settings.cpus)
        if settings.gpus:
            per_gpu = int(1 / settings.gpus + 1e-6)
            count = min(count, int(node["Resources"]["GPU"]) * per_gpu)
        total += count
    return total


def check_nodes(root: Path, proof: str, settings: RaySettings) -> None:
    """See whether every node that may get a slot has this erl and sees this directory.

    Raises:
        RecipeError: one doesn't; all of them are named.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(root: str, proof: str, version: str) -> str | None:
        """Sent as code, not by name: the node may have no erl."""
        import pathlib

        try:
            import erlcli
        except ImportError as error:
            return f"erl is not installed there: {error}"
        if erlcli.__version__ != version:
            return f"erl {erlcli.__version__} is installed there, and {version} here"
        from erlcli.tournament.backends.place import misfit

        return misfit(pathlib.Path(root), proof, version)

    task = ray.remote(look)
    waiting: dict[Any, str] = {}
    for node in suitable(settings):
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        reference = task.options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote(
            str(root), proof, erlcli.__version__
        )
        waiting[reference] = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
    done, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=CHECK_SECONDS) if waiting else ([], [])
    silent = [f"{waiting[reference]}: no answer within {CHECK_SECONDS:g} s" for reference in late]
    problems: list[str] = []
    for reference in done:
        try:
            problem = ray.get(reference)
        except ray.exceptions.RayError as error:
            silent.append(f"{waiting[reference]}: {' '.join(str(error).split())[:200]}")
            continue
        if problem is not None:
            problems.append(f"{waiting[reference]}: {problem}")
    if not problems and len(silent) == len(waiting):
        problems = silent  # one that leaves just now is no reason, but all of them are
    if problems:
        raise misfits(root, problems)


def misfits(root: Path, problems: list[str]) -> RecipeError:
    """The error that names nodes which can't train for the tournament in `root`."""
    return RecipeError(
        f"--backend ray: {len(problems)} node{'s' * (len(problems) != 1)} can't train",
        expected=f"erl {erlcli.__version__} and the directory {root} on every node",
        found="; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else ""),
        remedy="one container image for all nodes, and --run-dir on a volume that all of them mount at the same path",
    )
