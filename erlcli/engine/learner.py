"""The learner process: everything that trains, in one place.

Started by the supervisor as `python -m erlcli.engine.learner RUN_DIR ATTEMPT LOCK_FD MEMBER [UNTIL] LIFELINE_FD`, where
MEMBER is that of `member.Member.to_argument`: which one it is of how many learners.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from erlcli.core.collective import ALONE, Collective
from erlcli.core.policy import VectorPolicy
from erlcli.core.types import EnvSpec
from erlcli.engine import build, checkpoint, compute
from erlcli.engine.child import leave_now, on_orphaned
from erlcli.engine.failures import report, run_child
from erlcli.engine.group import join
from erlcli.engine.loop import Loop
from erlcli.engine.member import Member, name_of
from erlcli.engine.memory import ReplayNeed
from erlcli.engine.requests import Requests
from erlcli.engine.samplers import InlineSampler, Sampler
from erlcli.engine.shared_sampler import SharedSampler
from erlcli.engine.spaces import check_resumed
from erlcli.envs.config import env_config
from erlcli.envs.position import PositionLog
from erlcli.errors import ErlError, PeerLostError
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs.jsonl import Row, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import plural, task
from erlcli.runs.writer import EventLog, Heartbeat

ORPHAN_GRACE_SECONDS = 8.0  # for a last checkpoint after the supervisor is gone


class StopFlag:
    """Set by a stop request in the run's control folder, by SIGTERM, or by the supervisor's death.

    Args:
        layout: the run.

    Attributes:
        asked: set too whenever there are other requests.
    """

    def __init__(self, layout: RunLayout) -> None:
        self._request, self._requests = layout.stop_request, layout.requests
        self._event = threading.Event()
        self.asked = threading.Event()

    def watch(self) -> StopFlag:
        """Look for requests from here on, from a thread; returns itself."""
        threading.Thread(target=self._watch, name="control", daemon=True).start()
        return self

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def set(self) -> None:
        """Stop as soon as may be."""
        self._event.set()

    def orphaned(self) -> None:
        """Stop, and leave without a checkpoint if that takes too long."""
        self.set()
        timer = threading.Timer(ORPHAN_GRACE_SECONDS, leave_now)
        timer.daemon = True
        timer.start()

    def _watch(self) -> None:
        while not self._event.wait(0.1):
            if self._request.exists():
                self.set()
            try:
                if os.listdir(self._requests):
                    self.asked.set()
            except OSError:
                continue  # nobody has asked yet


def train(
    layout: RunLayout, attempt: int, stop: StopFlag, until: int | None, member: Member, collective: Collective
) -> int:
    """Train the run from its newest checkpoint, or from the start."""
    facts: Row = {}
    beat = Heartbeat(layout, member.name, lambda: facts)
    attempt = collective.gather(attempt)[0]  # torchrun starts the others without knowing it
    events = EventLog(layout, member.name, attempt)
    recipe = load(layout.recipe)
    device = build.device(recipe.train.device, member.number if collective.world_size > 1 else None)
    compute.configure_cpu(recipe)
    collective.use(device)
    loop, sampler = assemble(layout, recipe, attempt, stop, beat, events, device, collective)
    loop.until = until
    loop.requests = Requests(layout, events, stop.asked)
    beat.progress("training")

    used = _gpu_uuids(device)

    def progress() -> Row:
        counters = loop.counters
        row: Row = {"steps": counters.steps, "version": counters.version, "seconds": round(loop.seconds, 1)}
        return row | used | {"device": str(device)}

    beat.facts = progress
    try:
        loop.run()
    finally:
        sampler.close()
    facts |= progress()
    beat.close("done" if loop.done else "stopped")
    return 0


def _gpu_uuids(device: torch.device) -> Row:
    """The GPU of `device`, by the name that NVIDIA's tools have for it; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {"gpu_uuids": [str(torch.cuda.get_device_properties(device).uuid)]}


def assemble(
    layout: RunLayout,
    recipe: AnyRecipe,
    attempt: int,
    stop: StopFlag,
    beat: Heartbeat,
    events: EventLog,
    device: torch.device,
    collective: Collective = ALONE,
) -> tuple[Loop, Sampler]:
    """Environments, algorithm and loop, restored from the newest whole checkpoint."""
    engine, length = recipe.engine, recipe.algorithm.rollout_length
    rank, num_envs = collective.rank, recipe.envs_per_learner
    build.check_placement(recipe)
    compute.configure_cuda(recipe, device)
    graphs, compiler = build.graphs(recipe, device, events), build.compiler(recipe, device, events.write, beat)
    sampler: Sampler
    if engine.workers:
        beat.progress("env make")
        spec = SharedSampler.spec_of(recipe)
        beat.progress("building")
        algorithm = build.algorithm(recipe, spec, device, collective, graphs, compiler)
        sampler = SharedSampler(layout, recipe, algorithm.policy, beat, events, stop, spec, rank)
    else:
        threads = None if engine.env_threads == "auto" else engine.env_threads
        config = env_config(recipe.env, num_envs, threads, str(device))
        beat.progress("env make")
        position = PositionLog(layout.position(name_of(rank)))
        first, restarts = rank * num_envs, engine.max_restarts
        actor = functools.partial(build.actor, recipe, compiler=compiler)
        acts = compiler if recipe.engine.compile == "on" else None
        sampler = InlineSampler(config, length, beat, events, stop, restarts, position, first, graphs, actor, acts)
        beat.progress("building")
        spec = sampler.spec
        algorithm = build.algorithm(recipe, spec, device, collective, graphs, compiler)
    try:
        loop = Loop(layout, recipe, algorithm, sampler, beat, events, stop, attempt, collective)
        loop.device = device
        if collective.leads:
            check_resumed(layout, recipe.env.id, spec)
            _write_spec(layout, spec)
            _restore(layout, loop, events)
        loop.share()
    except BaseException:
        sampler.close()
        raise
    if collective.leads:
        _tell(loop, spec, device)
    return loop, sampler


def _tell(loop: Loop, spec: EnvSpec, device: torch.device) -> None:
    """Events that say how the run is trained."""
    recipe, engine, events, policy = loop.recipe, loop.recipe.engine, loop.events, loop.algorithm.policy
    where = plural(engine.workers, "worker") if engine.workers else "one process"
    if engine.learners > 1:
        where = f"{engine.learners} learners, {where} each"
    if (need := ReplayNeed.of(recipe, spec, policy, device)) is not None:
        events.write("replay", f"replay of {need}", steps=loop.counters.steps)
    if recipe.normalize.obs and isinstance(policy, VectorPolicy) and policy.normalizer is None:
        message = "normalize.obs does nothing here: images alone are observed, and scaled by network.pixel_max"
        events.write("normalize", message, level="warning", steps=loop.counters.steps)
    events.write(
        "started",
        f"{recipe.env.num_envs} x {task(recipe.env.id)} ({recipe.env.backend}), {where}, {device}, "
        + plural(torch.get_num_threads(), "thread"),
        steps=loop.counters.steps,
    )


def _write_spec(layout: RunLayout, spec: EnvSpec) -> None:
    row: dict[str, Any] = spec.to_json()
    if read_json(layout.spec) != row:
        write_json(layout.spec, row)


def _restore(layout: RunLayout, loop: Loop, events: EventLog) -> None:
    found = checkpoint.newest(layout)
    if found is None:
        return
    path, saved, problems = found
    newer = [p for p in checkpoint.numbered(layout) if int(p.name) > int(path.name)]
    for damaged, problem in zip(reversed(newer), problems, strict=True):
        events.write("damaged_checkpoint", str(problem), level="warning")
        damaged.rename(damaged.with_name(f"damaged-{damaged.name}-{loop.attempt}"))  # or pruning would count it
    loop.restore(saved)
    for snapshot in layout.snapshots.glob("*.safetensors"):
        if int(snapshot.stem) > loop.counters.steps:
            snapshot.unlink(missing_ok=True)  # of an attempt that got further and was lost; it comes again
    events.write("restored", f"restored from {loop.counters.steps:,} steps", steps=loop.counters.steps)


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    root, attempt, _, who, *until, lifeline = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    layout, member = RunLayout(Path(root)), Member.from_argument(who)
    joined = threading.Event()  # whoever is to go and still waits for the others goes at once
    stop = StopFlag(layout)
    on_orphaned(int(lifeline), lambda: stop.orphaned() if joined.is_set() else leave_now())
    try:
        collective = join(member)  # before anything in the directory is looked at: the first one's starter prepares it
    except PeerLostError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ErlError as error:
        return report(member.name, layout, error)
    joined.set()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.watch()
    end = int(until[0]) if until else None
    return run_child(member.name, layout, lambda: train(layout, int(attempt), stop, end, member, collective))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
