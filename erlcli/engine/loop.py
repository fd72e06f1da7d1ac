"""The training loop: the only one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from erlcli.core.algorithm import Algorithm
from erlcli.core.collective import ALONE, Collective
from erlcli.core.seeding import derive
from erlcli.core.types import Rollout
from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.episodes import EpisodeTracker
from erlcli.engine.failures import Interrupted, is_out_of_memory
from erlcli.engine.metric_rows import MetricRows
from erlcli.engine.plan import Plan
from erlcli.engine.replay_parts import ReplaySpool
from erlcli.engine.requests import Requests
from erlcli.engine.samplers import Sampler
from erlcli.engine.sharing import check_equal, first_does, give_out
from erlcli.errors import DamagedError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import quoted
from erlcli.runs.writer import EventLog, Heartbeat

ENDLESS_STEPS = 10_000  # of every environment, without a single end: then a user is told


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
        collective: the learners of the run, each of which has a loop, in lockstep; the first one writes.

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
        collective: Collective = ALONE,
    ) -> None:
        self.layout, self.recipe, self.algorithm, self.sampler = layout, recipe, algorithm, sampler
        self.beat, self.events, self.stop, self.attempt = beat, events, stop, attempt
        self.until: int | None = None
        self.requests: Requests | None = None
        self.enough: Callable[[], bool] = lambda: False
        self.device = torch.device("cpu")
        self.collective = collective
        replay = algorithm.replay
        self.spool = ReplaySpool(layout.checkpoints / ".replay", replay) if replay is not None else None
        self.plan = Plan.of(recipe)
        self.counters = Counters()
        self.episodes = EpisodeTracker(recipe.envs_per_learner, self.collective)
        self.rows = MetricRows(layout.metrics)
        self.clock = Clock()
        self._since: tuple[float, float | None] = (time.monotonic(), None)  # start, and since when it stands still
        self._unlogged: dict[str, Any] | None = None
        self._checkpointed_version = -1
        self._told_endless = False

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
            if self.collective.leads:
                self.events.write("interrupted", "stopped within a rollout, which is dropped")
        if self._unlogged is not None and self.collective.any(self.stop()):
            self._log()
        if not self.saved_here:
            self.save(planned=False)
        self.rows.write(wait=True)
        if self.requests is not None:
            self.requests.close(self)

    @property
    def saved_here(self) -> bool:
        """Whether there is a checkpoint of just this point."""
        return self._checkpointed_version == self.counters.version

    def _ends(self) -> bool:
        return self.done or self.stop() or self.counters.version == self.until or self.enough()

    def _collect(self) -> Rollout:
        """The next rollout of this learner.

        Raises:
            Interrupted: one of the learners was asked to stop within its rollout, so that all drop theirs.
        """
        rollout: Rollout | None = None
        with contextlib.suppress(Interrupted):
            rollout = self.sampler.recv()
        self.beat.progress("waiting for learners")  # or the env of this one would seem to hang where another's does
        if self.collective.any(rollout is None) or rollout is None:
            raise Interrupted
        return rollout

    def _iterate(self) -> None:
        """One rollout and one update."""
        counters, plan, clock = self.counters, self.plan, self.clock
        before = time.monotonic()
        rollout = self._collect()
        collected = time.monotonic()
        at_restart_point = (counters.version + 1) % plan.checkpoint == 0
        self.episodes.add(rollout)
        if at_restart_point:
            _cut(rollout)
        self.beat.progress("update")
        taken, total = self.collective.sum(rollout.num_steps), self.recipe.train.total_steps
        progress, following = counters.steps / total, (counters.steps + taken) / total
        metrics = self.algorithm.update(rollout.to(self.device), progress, following)
        if self.spool is not None:
            self.spool.spill()
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
        self.algorithm.restart(derive(seed, "learner", *([rank] if (rank := self.collective.rank) else [])))
        self.algorithm.set_acting(self.counters.steps / self.recipe.train.total_steps)
        rollouts = self.plan.checkpoint - version % self.plan.checkpoint
        self.sampler.restart(self.algorithm.policy, version, derive(seed, "sampler"), rollouts)

    def _log(self) -> None:
        """A metric row for the last update; of losses and the like, what is not equal in all learners is averaged."""
        metrics, self._unlogged = self._unlogged or {}, None
        if self.collective.world_size > 1:
            metrics = _average(self.collective.gather({name: _number(value) for name, value in metrics.items()}))
        if not self.collective.leads:
            return
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
        if not self.collective.leads:
            return
        facts = {
            "steps": str(self.counters.steps),
            "version": str(self.counters.version),
            "attempt": str(self.attempt),
            "seconds": f"{self.seconds:.3f}",
            "wall": f"{time.time():.3f}",
        }
        checkpoint.save_snapshot(self.layout, self.algorithm.policy.state_dict(), self.counters.steps, facts)

    def save(self, *, planned: bool, changed: bool = False) -> None:
        """Write a checkpoint, once all learners are found to hold the same; called by all of them.

        Args:
            planned: whether the uninterrupted run passes through this point too.
            changed: whether the recipe changes here, so that what comes before can't be repeated with it.

        Raises:
            OSError: it can't be written.
            PeerLostError: the same, in the learners that don't write.
        """
        self.beat.progress("checkpoint")
        self.algorithm.settle()
        check_equal(self.algorithm, self.collective)
        first_does(self.collective, lambda: self._write(planned=planned, changed=changed))
        self._checkpointed_version = self.counters.version

    def _write(self, *, planned: bool, changed: bool) -> None:
        """See `save`."""
        counters, episodes = self.counters, self.episodes.state_dict()
        state = {
            "steps": counters.steps,
            "version": counters.version,
            "updates": self.algorithm.updates,
            "seconds": self.seconds,
            "attempt": self.attempt,
            "planned": planned,
            "changed": changed,
            "episodes": episodes,
        }
        self.rows.sync()
        path = self.layout.checkpoints / checkpoint.name_of(counters.steps)
        policy = self.algorithm.policy.state_dict()
        replay = self.spool.flush() if self.spool is not None else ()
        checkpoint.save(path, Checkpoint(policy, self.algorithm.state_dict(), state, replay))
        checkpoint.prune(self.layout, self.recipe.checkpoint.keep)
        self.events.write("checkpoint", f"saved at {counters.steps:,} steps", steps=counters.steps)
        if not episodes["episodes"] and counters.steps >= ENDLESS_STEPS * self.recipe.env.num_envs:
            self._tell_endless()

    def _tell_endless(self) -> None:
        """Once: what evaluation waits for in silence, where nothing but the env ends an episode."""
        if self._told_endless or self.sampler.spec.max_episode_steps is not None:
            return
        self._told_endless = True
        steps = self.counters.steps // self.recipe.env.num_envs
        self.events.write(
            "endless",
            f"no episode has ended in {steps:,} steps of each environment, and there is no time limit: "
            "set env.max_episode_steps",
            level="warning",
            steps=self.counters.steps,
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = saved.state
        try:
            self.algorithm.policy.load_state_dict(saved.policy)
            if self.spool is not None:
                self.spool.restore(saved.replay)
            self.algorithm.load_state_dict(saved.learner)
        except (RuntimeError, KeyError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise DamagedError(
                "the checkpoint does not fit the recipe",
                expected="tensors of the recipe's networks",
                found=str(error),
                remedy=f"recipe.toml was changed by hand; erl train {quoted(self.layout.recipe)} starts anew",
            ) from None
        self._go_on_from(state)

    def share(self) -> None:
        """Give all learners what the first one has; called by all of them before the first rollout."""
        if self.collective.world_size == 1:
            return
        facts = {**asdict(self.counters), "episodes": self.episodes.state_dict(), "saved": self.saved_here}
        facts = give_out(self.algorithm, facts, self.collective)
        if facts["saved"]:
            self._go_on_from(facts)

    def _go_on_from(self, state: dict[str, Any]) -> None:
        """Take the counters of a checkpoint."""
        self.episodes.load_state_dict(state["episodes"])
        self.counters = Counters(int(state["steps"]), int(state["version"]), float(state["seconds"]))
        self._checkpointed_version = self.counters.version


def _cut(rollout: Rollout) -> None:
    """The environments are reset after this rollout: whatever is still open in its last row ends here, truncated."""
    rollout.truncated[-1] |= ~rollout.terminated[-1] & rollout.valid[-1]


def _number(value: float | torch.Tensor) -> float:
    """A metric that may be on a GPU still."""
    return float(value) if isinstance(value, torch.Tensor) else value


def _average(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Of what the learners tell: the value where it is one, else the mean."""
    first = metrics[0]
    return {
        name: value if all(row[name] == value for row in metrics) else sum(row[name] for row in metrics) / len(metrics)
        for name, value in first.items()
    }
