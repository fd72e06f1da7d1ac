"""The training loop: the only one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from erlcli.core.algorithm import Algorithm
from erlcli.core.collective import Collective
from erlcli.core.seeding import derive
from erlcli.core.types import Rollout
from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.episodes import EpisodeTracker
from erlcli.engine.failures import Interrupted
from erlcli.engine.metric_rows import MetricRows
from erlcli.engine.plan import Plan
from erlcli.engine.replay_parts import ReplaySpool
from erlcli.engine.requests import Requests
from erlcli.engine.samplers import Sampler
from erlcli.errors import DamagedError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat


@dataclass
class Counters:
    """Where a run is.

    Attributes:
        steps: env transitions taken.
        version: rollouts learnt from, which is also the version of the policy.
        seconds: of training, over all attempts.
    """

    steps: int = 0
    version: int = 0
    seconds: float = 0.0


@dataclass
class Clock:
    """Shares of time since the last metric row."""

    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    env: float = 0.0
    act: float = 0.0
    collect: float = 0.0
    update: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Throughput and shares; these columns alone differ between equal runs."""
        total = max(time.monotonic() - self.started, 1e-9)
        return {
            "time/steps_per_second": round(self.steps / total, 1),
            "time/share_env": round(self.env / total, 4),
            "time/share_act": round(self.act / total, 4),
            "time/share_wait": round(max(self.collect - self.env - self.act, 0.0) / total, 4),
            "time/share_update": round(self.update / total, 4),
        }


class Loop:
    """Collects, learns, writes, until the budget is used or someone asks it to stop.

    Args:
        layout: the run directory.
        recipe: resolved.
        algorithm: fresh or restored.
        sampler: of rollouts.
        beat: of this process.
        events: of this process.
        stop: whether the run is asked to stop.
        attempt: number of this start.

    Attributes:
        until: version to end at before the budget is used, at a planned checkpoint.
        enough: asked between two rollouts: whether to end here, with a checkpoint, before the budget is used.
        requests: of users, answered between two rollouts; None where nobody can ask.
    """

    def __init__(
        self,
        layout: RunLayout,
        recipe: AnyRecipe,
        algorithm: Algorithm,
        sampler: Sampler,
        beat: Heartbeat,
        events: EventLog,
        stop: Callable[[], bool],
        attempt: int,
    ) -> None:
        self.layout, self.recipe, self.algorithm, self.sampler = layout, recipe, algorithm, sampler
        self.beat, self.events, self.stop, self.attempt = beat, events, stop, attempt
        self.until: int | None = None
        self.requests: Requests | None = None
        self.enough: Callable[[], bool] = lambda: False
        self.device = torch.device("cpu")
        self.collective = Collective()
        replay = algorithm.replay
        self.spool = ReplaySpool(layout.checkpoints / ".replay", replay) if replay is not None else None
        self.plan = Plan.of(recipe)
        self.counters = Counters()
        self.episodes = EpisodeTracker(recipe.env.num_envs)
        self.rows = MetricRows(layout.metrics)
        self.clock = Clock()
        self._since: tuple[float, float | None] = (time.monotonic(), None)  # start, and since when it stands still
        self._unlogged: dict[str, Any] | None = None
        self._checkpointed_version = -1

    @property
    def done(self) -> bool:
        """Whether the budget is used."""
        return self.counters.steps >= self.recipe.train.total_steps

    def run(self) -> None:
        """Train until the end.

        Raises:
            DivergedError: something became NaN or infinite; the last checkpoint is good.
            EnvError: an environment failed for good.
        """
        if self._checkpointed_version < 0 and not self.done:
            self.save(planned=True)  # version 0: there is a restart point from the start
        try:
            self._train()
        finally:
            self.rows.write(wait=False)
            if self.spool is not None:
                self.spool.close()

    def _train(self) -> None:
        """Iterate, then leave a row and a checkpoint of what was done last."""
        try:
            if self.requests is not None:
                self.requests.answer(self)
            self._restart()
            while not self.collective.any(self._ends()):
                self._iterate()
        except Interrupted:
            self.events.write("interrupted", "stopped within a rollout, which is dropped")
        if self._unlogged is not None and self.stop():
            self._log()
        if not self.saved_here:
            self.save(planned=False)
        self.rows.write(wait=True)
        if self.requests is not None:
            self.requests.close(self.counters.steps)

    @property
    def saved_here(self) -> bool:
        """Whether there is a checkpoint of just this point."""
        return self._checkpointed_version == self.counters.version

    def _ends(self) -> bool:
        return self.done or self.stop() or self.counters.version == self.until or self.enough()

    def _iterate(self) -> None:
        """One rollout and one update."""
        counters, plan, clock = self.counters, self.plan, self.clock
        before = time.monotonic()
        rollout = self.sampler.recv()
        collected = time.monotonic()
        at_restart_point = (counters.version + 1) % plan.checkpoint == 0
        self.episodes.add(rollout)
        if at_restart_point:
            _cut(rollout)
        self.beat.progress("update")
        progress = counters.steps / self.recipe.train.total_steps
        metrics = self.algorithm.update(rollout.to(self.device), progress)
        if self.spool is not None:
            self.spool.spill()
        taken = rollout.num_steps * self.collective.world_size
        counters.version += 1
        counters.steps += taken
        clock.steps += taken
        clock.env += self.sampler.timing.env
        clock.act += self.sampler.timing.act
        clock.collect += collected - before
        clock.update += time.monotonic() - collected
        self._unlogged = metrics
        if counters.version % plan.log == 0 or self.done:
            self._log()
        if counters.version % plan.snapshot == 0 or self.done:
            self._snapshot()
        if at_restart_point:
            self.save(planned=True)
        if self.done:
            return
        if self.requests is not None:
            at_restart_point |= self.requests.answer(self)
        if at_restart_point:
            self._restart()
        else:
            self.sampler.send(self.algorithm.policy, counters.version)

    def _restart(self) -> None:
        """A restart point: whatever follows depends on the checkpoint and (seed, version) alone."""
        version = self.counters.version
        seed = derive(self.recipe.train.seed, "restart", version)
        self.episodes.restart()
        self.algorithm.restart(derive(seed, "learner"))
        rollouts = self.plan.checkpoint - version % self.plan.checkpoint
        self.sampler.restart(self.algorithm.policy, version, derive(seed, "sampler"), rollouts)

    def _log(self) -> None:
        """A metric row for the last update."""
        metrics, self._unlogged = self._unlogged or {}, None
        head: Row = {
            "attempt": self.attempt,
            "steps": self.counters.steps,
            "version": self.counters.version,
            "updates": self.algorithm.updates,
        }
        times = {"time/seconds": round(self.seconds, 3), "time/wall": round(time.time(), 3), **self.clock.metrics()}
        self.rows.add(head, self.episodes.numbers(), metrics, times)
        self.clock = Clock()

    @property
    def seconds(self) -> float:
        """Of training, over all attempts, without the time that it stood still; also asked for by other threads."""
        started, still_since = self._since
        return self.counters.seconds + (still_since or time.monotonic()) - started

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """What passes inside is no time of training."""
        (started, _), began = self._since, time.monotonic()
        self._since = (started, began)
        try:
            yield
        finally:
            waited = time.monotonic() - began
            self._since = (started + waited, None)
            self.clock.started += waited

    def _snapshot(self) -> None:
        self.algorithm.settle()
        facts = {
            "steps": str(self.counters.steps),
            "version": str(self.counters.version),
            "attempt": str(self.attempt),
            "seconds": f"{self.seconds:.3f}",
            "wall": f"{time.time():.3f}",
        }
        checkpoint.save_snapshot(self.layout, self.algorithm.policy.state_dict(), self.counters.steps, facts)

    def save(self, *, planned: bool, changed: bool = False) -> None:
        """Write a checkpoint.

        Args:
            planned: whether the uninterrupted run passes through this point too.
            changed: whether the recipe changes here, so that what comes before can't be repeated with it.
        """
        self.beat.progress("checkpoint")
        self.algorithm.settle()
        counters = self.counters
        state = {
            "steps": counters.steps,
            "version": counters.version,
            "updates": self.algorithm.updates,
            "seconds": self.seconds,
            "attempt": self.attempt,
            "planned": planned,
            "changed": changed,
            "episodes": self.episodes.state_dict(),
        }
        self.rows.sync()
        path = self.layout.checkpoints / checkpoint.name_of(counters.steps)
        policy = self.algorithm.policy.state_dict()
        replay = self.spool.flush() if self.spool is not None else ()
        checkpoint.save(path, Checkpoint(policy, self.algorithm.state_dict(), state, replay))
        self._checkpointed_version = counters.version
        checkpoint.prune(self.layout, self.recipe.checkpoint.keep)
        self.events.write("checkpoint", f"saved at {counters.steps:,} steps", steps=counters.steps)

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = saved.state
        try:
            self.algorithm.policy.load_state_dict(saved.policy)
            if self.spool is not None:
                self.spool.restore(saved.replay)
            self.algorithm.load_state_dict(saved.learner)
        except (RuntimeError, KeyError, ValueError) as error:
            raise DamagedError(
                "the checkpoint does not fit the recipe",
                expected="tensors of the recipe's networks",
                found=str(error),
                remedy=f"recipe.toml was changed by hand; erl train {self.layout.recipe} starts anew",
            ) from None
        self.episodes.load_state_dict(state["episodes"])
        self.counters = Counters(int(state["steps"]), int(state["version"]), float(state["seconds"]))
        self._checkpointed_version = self.counters.version


def _cut(rollout: Rollout) -> None:
    """The environments are reset after this rollout: whatever is still open in its last row ends here, truncated."""
    rollout.truncated[-1] |= ~rollout.terminated[-1] & rollout.valid[-1]
