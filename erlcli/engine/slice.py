"""A warm process at a slot of a tournament: imports everything once, then trains and evaluates member after member.

Started as `python -m erlcli.engine.slice ROOT SLOT VISIBLE CORES REQUESTS REPLIES LOCK LIFELINE`: the tournament's
directory, the slot's name, CUDA_VISIBLE_DEVICES and the cores for this process (none: it isn't pinned), and file
descriptors. It is pinned before torch is imported. Requests and replies are JSON lines; a reply carries the request's
`id`.

A member is an ordinary run: it is trained by the one loop, from its newest whole checkpoint, and holds its lock
meanwhile. What goes wrong in it is replied and written to its `errors/`; after anything but an error with a known
cause this process leaves, since nobody knows in what state it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erlcli.engine.child import leave_now, on_orphaned, outlive_sigterm
from erlcli.engine.inbox import Inbox
from erlcli.engine.status import status_row
from erlcli.errors import ErlError
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs import control
from erlcli.runs.jsonl import Appender, Row, encode, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.writer import EventLog, Heartbeat

if TYPE_CHECKING:
    from erlcli.core.policy import Policy
    from erlcli.engine.learner import StopFlag
    from erlcli.engine.loop import Loop

PROCESS = "learner"  # of the member's run, for its readers
ALIVE_SECONDS = 1.0  # between two signs of life during an evaluation
LOCK_SECONDS = 5.0  # a slice that was killed a moment ago may hold the lock for as long as its process dies


class Work:
    """One order.

    Args:
        order: as it came.
        inbox: that tells whether to stop.
        replies: file descriptor for what is to be told.
    """

    def __init__(self, order: Row, inbox: Inbox, replies: int) -> None:
        self.order, self.inbox, self._replies = order, inbox, replies
        self.number = int(order["id"])
        self.layout = RunLayout(Path(order["run"]))

    def reply(self, event: str, **facts: Any) -> None:  # noqa: ANN401 - JSON values
        """Tell the orchestrator."""
        data = memoryview((encode({"event": event, "id": self.number, **facts}) + "\n").encode())
        while data:
            data = data[os.write(self._replies, data) :]

    def run(self) -> bool:
        """Carry it out; whether this process is as good as before."""
        from erlcli.engine.failures import Interrupted
        from erlcli.engine.learner import StopFlag

        stop: StopFlag | None = None
        try:
            with _locked(self.layout) if self.order["kind"] == "slice" else contextlib.nullcontext():
                if self.order["kind"] == "slice":
                    self.layout.ensure()
                    self.layout.clear()
                stop = StopFlag(self.layout).watch()
                with self.inbox.at_work(self.number, stop):
                    Slice(self, stop).run() if self.order["train"] else self._evaluate(stop)
            return True
        except Interrupted:  # within the evaluation, which is done anew
            self.reply("stopped")
            return True
        except (Exception, SystemExit) as error:
            return self._fail(error)
        finally:
            if stop is not None:
                stop.set()  # ends its thread

    def _evaluate(self, stop: StopFlag) -> None:
        """Evaluate a checkpoint."""
        from erlcli.engine.load_policy import load_policy

        loaded = load_policy(self.layout, str(self.order["checkpoint"]))
        beat = Heartbeat(self.layout, PROCESS) if self.order["kind"] == "slice" else None
        try:
            facts = loaded.facts
            row = {"steps": int(facts["steps"]), "version": int(facts["version"]), "seconds": float(facts["seconds"])}
            self.score(loaded.policy, loaded.recipe, row, stop, beat)
        finally:
            if beat is not None:
                beat.close("stopped")

    def score(
        self, policy: Policy, recipe: AnyRecipe, where: Row, stop: StopFlag, beat: Heartbeat | None, attempt: int = 1
    ) -> None:
        """Play the episodes that the order asks for, write them down and reply.

        Args:
            policy: on the CPU.
            recipe: of the member.
            where: steps, version and seconds of training.
            stop: whether to give up.
            beat: told of every step.
            attempt: of the member's run.
        """
        from erlcli.engine.evaluate_torch import make_evaluation
        from erlcli.envs.config import env_config
        from erlcli.envs.position import PositionLog

        order, started = self.order, time.monotonic()
        episodes, seed = int(order["episodes"]), int(order["eval_seed"])
        scoring = order["kind"] == "slice"
        position = PositionLog(self.layout.position(PROCESS)) if scoring else None
        config = env_config(recipe.env, min(recipe.eval.num_envs, episodes))
        evaluation = make_evaluation(config, seed, position)
        told = time.monotonic()

        def progress(_: int) -> None:
            nonlocal told
            if beat is not None:
                beat.progress("env step")
            if time.monotonic() - told >= ALIVE_SECONDS:
                told = time.monotonic()
                self.reply("alive")

        try:
            scores = evaluation.run(policy, range(episodes), on_step=progress, stop=stop)
        finally:
            evaluation.close()
        summary = scores.summary(seed)
        seconds = round(time.monotonic() - started, 3)
        if scoring:
            row = {"attempt": attempt, "steps": where["steps"], "version": where["version"], "kind": "full", **summary}
            times = {"time/seconds": where["seconds"], "time/wall": time.time(), "time/eval_seconds": seconds}
            self._write_score(policy, row | times)
        facts = {"mean": summary["return_mean"], "std": summary["return_std"], "ci": summary["return_ci"]}
        self.reply("scored", steps=where["steps"], episodes=episodes, seconds=seconds, **facts)

    def _write_score(self, policy: Policy, row: Row) -> None:
        """As the evaluator of a run does: a row, and the best policy so far."""
        from erlcli.engine import checkpoint
        from erlcli.runs.view import Curve, best_of

        earlier = Curve(self.layout.evals)
        earlier.refresh()
        best = best_of(earlier.rows)
        if best is None or row["return_mean"] > float(best["return_mean"]):
            state = {key: row[key] for key in ("steps", "version", "return_mean", "return_std", "episodes")}
            checkpoint.set_best(self.layout, policy.state_dict(), state)
        rows = Appender(self.layout.evals)
        rows.append(row)
        rows.close()

    def _fail(self, error: BaseException) -> bool:
        """Say why it failed; whether this process can go on all the same."""
        from erlcli.engine.failures import is_out_of_memory, report
        from erlcli.errors import EnvError

        if isinstance(error, SystemExit):
            error = EnvError(f"{PROCESS}: the env called sys.exit({error.code!r})")
        oom = is_out_of_memory(error) or bool(getattr(error, "details", {}).get("oom"))
        if isinstance(error, Exception):
            report(PROCESS, self.layout, error)
        known = read_json(self.layout.error(PROCESS)) or ErlError(str(error)).to_json()
        traceback.clear_frames(error.__traceback__)  # they hold tensors and envs
        goes_on = isinstance(error, ErlError) and not oom and _gpu_works()
        told = {key: value for key, value in known.items() if key != "traceback"}
        self.reply("failed", error=told, oom=oom, leaves=not goes_on)
        return goes_on


class Slice:
    """A member's training up to the end of a slice, and its evaluation.

    Args:
        work: the order.
        stop: whether to break off.
    """

    def __init__(self, work: Work, stop: StopFlag) -> None:
        self.work, self.stop, self.layout = work, stop, work.layout
        earlier = read_json(self.layout.status) or {}
        self.attempt = int(earlier.get("attempt", 0)) + 1
        self.recipe = load(self.layout.recipe)
        self.started = time.monotonic()
        self.events = EventLog(self.layout, PROCESS, self.attempt)
        self.setup_seconds = 0.0
        self.facts: Row = {}
        self.stacks = self.layout.error(PROCESS).with_suffix(".stack").open("w")
        faulthandler.register(signal.SIGUSR1, self.stacks)

    def run(self) -> None:
        """Train, evaluate, reply."""
        self.layout.error(PROCESS).unlink(missing_ok=True)
        self.layout.position(PROCESS).unlink(missing_ok=True)
        beat = Heartbeat(self.layout, PROCESS, lambda: self.facts)
        state, code, problem = "failed", 1, "the slice failed"
        try:
            finished = self._train_and_score(beat)
            state, code, problem = ("finished", 0, "") if finished else ("interrupted", 130, "")
        except ErlError as error:
            code, problem = error.exit_code, str(error)
            raise
        finally:
            beat.close("stopped")
            self._refuse_requests()
            self.events.close()
            self._write_status(state, code, problem or None)
            faulthandler.register(signal.SIGUSR1)  # never without a handler: the signal would end the process
            self.stacks.close()

    def _train_and_score(self, beat: Heartbeat) -> bool:
        """Whether the run has used its budget."""
        from erlcli.engine import build, compute

        events = self.events
        device = build.device(self.recipe.train.device)
        compute.configure_cpu(self.recipe)
        loop = self._train(beat, events, device)
        where = {"steps": loop.counters.steps, "version": loop.counters.version, "seconds": round(loop.seconds, 3)}
        elapsed = round(time.monotonic() - self.started, 3)
        if not (loop.done or loop.enough()):
            user = not self.work.inbox.is_stopped(self.work.number)
            self.work.reply("stopped", steps=where["steps"], seconds=elapsed, user=user)
            return False
        why = "done" if loop.done else "budget"
        facts = {"seconds": elapsed, "setup_seconds": self.setup_seconds, "why": why}
        self.work.reply("trained", steps=where["steps"], **facts)
        policy = build.policy(self.recipe, loop.sampler.spec)
        policy.load_state_dict({name: t.cpu() for name, t in loop.algorithm.policy.state_dict().items()})
        self.work.score(policy, self.recipe, where, self.stop, beat, self.attempt)
        return loop.done

    def _train(self, beat: Heartbeat, events: EventLog, device: Any) -> Loop:  # noqa: ANN401 - torch.device
        from erlcli.engine.learner import assemble

        order = self.work.order
        until, seconds = order["until_steps"], order["seconds"]
        self._write_status("running")
        loop, sampler = assemble(self.layout, self.recipe, self.attempt, self.stop, beat, events, device)
        deadline = None if seconds is None else time.monotonic() + float(seconds)

        def enough() -> bool:
            self.facts = {"steps": loop.counters.steps, "version": loop.counters.version,
                          "seconds": round(loop.seconds, 1)}  # fmt: skip
            if until is not None and loop.counters.steps >= int(until):
                return True
            return deadline is not None and time.monotonic() >= deadline

        loop.enough = enough
        beat.progress("training")
        self.setup_seconds = round(time.monotonic() - self.started, 3)
        try:
            loop.run()
        finally:
            sampler.close()
            loop.rows.close()
            self._write_status("running")
            if not self.recipe.eval.keep_snapshots:
                for snapshot in self.layout.snapshots.glob("*.safetensors"):
                    snapshot.unlink(missing_ok=True)
        return loop

    def _refuse_requests(self) -> None:
        """Answer what users have asked of the run: its tournament decides about it."""
        for row in control.take(self.layout):
            message = "refused: a member's tournament decides about it"
            self.events.write("request", message, level="warning", request=str(row.get("id", "")), do=row["do"])

    def _write_status(self, state: str, code: int | None = None, error: str | None = None) -> None:
        row = status_row(
            self.layout.root.name,
            self.recipe,
            state,
            attempt=self.attempt,
            steps=int(self.facts.get("steps", 0)),
            seconds=float(self.facts.get("seconds", 0.0)),
            exit_code=code,
            error=error,
        )
        write_json(self.layout.status, row)


@contextlib.contextmanager
def _locked(layout: RunLayout) -> Iterator[None]:
    lock = RunLock.acquire(layout.lock, LOCK_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _gpu_works() -> bool:
    """Whether this process's GPU, if it uses one, can still be worked on: a failed kernel breaks it for good."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    _, _, visible, cores, requests, replies, lock, lifeline = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outlive_sigterm()
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as the driver counts, and `--gpus`; not fastest first
    if cores:
        with contextlib.suppress(OSError, AttributeError):  # cores that were taken away: all others will do
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    for fd in (int(lock), int(replies)):
        os.set_inheritable(fd, False)
    on_orphaned(int(lifeline), leave_now)
    inbox = Inbox(int(requests))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # stacks go to the slot's log
    import erlcli.engine.evaluate
    import erlcli.engine.learner  # noqa: F401 - the seconds that they take are over before the first order comes

    while (order := inbox.take()) is not None:
        if not Work(order, inbox, int(replies)).run():
            return 1
        gc.collect()
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other slots may share this GPU
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
