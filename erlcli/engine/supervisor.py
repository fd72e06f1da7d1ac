"""The supervisor: owns a run, keeps its processes alive, and says how it ended.

It imports neither torch nor environments, so it starts at once, stays small, and can't be brought down by them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from erlcli.engine import forks
from erlcli.engine.child import Child
from erlcli.engine.failures import Watch, died, gone, hung, point_to_traceback, reported, silent, tail_of
from erlcli.engine.gpu import GpuMonitor
from erlcli.engine.learners import Departure, Learners
from erlcli.engine.member import Member
from erlcli.engine.status import status_row
from erlcli.engine.stop_signals import LEAVE_SECONDS, StopSignals, patience
from erlcli.errors import ErlError, PeerLostError, one_line
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs import control
from erlcli.runs.jsonl import read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.text import quoted
from erlcli.runs.view import FOLLOWED_ROWS, Curve, best_of
from erlcli.runs.writer import EventLog

TICK_SECONDS = 0.05
INTERRUPTED = 130
PROCESS = "supervisor"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        exit_code: as documented for the command.
        state: `finished`, `interrupted` or `failed`.
        error: what went wrong, if anything did.
    """

    exit_code: int
    state: str
    error: ErlError | None = None


class Supervisor:
    """Runs learners and evaluator of one run.

    Args:
        layout: the run directory, with its recipe.
        lock: held by this process.
        member: the first learner, where somebody else starts the others, and all of them anew after a failure; None
            for all that the recipe asks for.
    """

    def __init__(self, layout: RunLayout, lock: RunLock, member: Member | None = None) -> None:
        self.layout, self.lock = layout, lock
        self.recipe: AnyRecipe = load(layout.recipe)
        self._max_restarts = self.recipe.engine.max_restarts if member is None else 0
        self._learners = (
            Learners.of(layout, self.recipe, lock.fd) if member is None else Learners(layout, [member], lock.fd)
        )
        earlier = read_json(layout.status) or {}
        self.attempt = int(earlier.get("attempt", 0))
        self._events = EventLog(layout, PROCESS, self.attempt + 1)
        self._evaluator: Child | None = None
        self._signals = StopSignals()
        self._reached = False
        self._error: ErlError | None = None
        self._watch = Watch(self.recipe.engine.hang_seconds)
        self._hangs: dict[str, ErlError] = {}  # why a process was killed, by its name
        self._asked: float | None = None  # when the learner was asked to leave
        self._patience = LEAVE_SECONDS
        self._crashes = self._evaluator_crashes = 0  # in a row
        self._evaluated = 0  # bytes of evaluations at the evaluator's last crash
        self._crash_steps = -1  # how far the run was at the last crash that came further than those before
        self._state = "starting"
        self._status_due = 0.0

    def run(self, tick: Callable[[], None] = lambda: None) -> Outcome:
        """Train until the run is over; `tick` is called some twenty times a second."""
        self.layout.ensure()
        self.layout.error(PROCESS).unlink(missing_ok=True)  # of an earlier attempt
        self.layout.clear()
        for kind in ("learner-*.json", "worker-*.json"):  # of an earlier attempt, with more of them perhaps
            for beat in self.layout.process("x").parent.glob(kind):
                beat.unlink()
        gpus = GpuMonitor(self.layout)
        try:
            with self._signals:
                outcome = self._supervise(tick)
        except BaseException:
            self._end_all()
            self._write_status("failed", 1)
            raise
        finally:
            gpus.close()
            self._refuse_late()
        if outcome.error is not None:
            self._tell_failure(outcome.error)
        self._write_status(outcome.state, outcome.exit_code, outcome.error)
        tick()
        return outcome

    def _tell_failure(self, error: ErlError) -> None:
        """In the events, for whoever looks at the run, and in a file, for the command that has started it."""
        point_to_traceback(error, self.layout)
        try:
            self._events.write("failed", one_line(error), level="error")
            if gone(self.layout) is None:
                write_json(self.layout.error(PROCESS), error.to_json())
        except OSError as problem:  # a full disk; the outcome has the error, too
            print(f"{self.layout.error(PROCESS)}: {problem.strerror}", file=sys.stderr)

    def _supervise(self, tick: Callable[[], None]) -> Outcome:
        self._write_status("starting")
        self._start_learners()
        self._evaluator = self._spawn_evaluator()
        code = self._watch_learners(tick)
        if self._signals.count >= 2:
            self._end_all()
            return Outcome(INTERRUPTED, "interrupted")
        if code == 0:
            if self._asked_to_stop():
                self._end_all(grace_seconds=2.0)
                return Outcome(INTERRUPTED, "interrupted")
            self._finish_evaluation(tick)
            if self._asked_to_stop():
                self._end_all()
                return Outcome(INTERRUPTED, "interrupted")
        self._end_all()
        if self._error is not None:
            return Outcome(self._error.exit_code, "failed", self._error)
        self._reached = self._target_reached()
        return Outcome(0, "finished")

    def _is_gone(self) -> bool:
        """Whether the run directory is, which is what the run fails of then, whatever its processes say."""
        error = gone(self.layout)
        self._error = error or self._error
        return error is not None

    def _asked_to_stop(self) -> bool:
        """By a signal, or by a user's request in the control folder."""
        return self._signals.count > 0 or (read_json(self.layout.stop_request) or {}).get("reason") == "user"

    def _spawn_evaluator(self) -> Child:
        for path in (self.layout.error("evaluator"), self.layout.position("evaluator")):
            path.unlink(missing_ok=True)  # of an earlier start
        return Child.spawn(
            "evaluator",
            "erlcli.engine.evaluator",
            [str(self.layout.root), str(self.attempt), str(self.lock.fd)],
            self.layout.output("evaluator"),
            threads=1,
            inherit=(self.lock.fd,),
        )

    def _start_learners(self) -> None:
        self.attempt += 1
        self._learners.start(self.attempt)

    def _watch_learners(self, tick: Callable[[], None]) -> int:
        """Until the learners have left for good; their exit code, or 0 where they were asked to leave.

        1 where the directory is gone, so that nothing can be done for them.
        """
        learners = self._learners
        while True:
            evaluator = self._evaluator
            if evaluator is None:
                raise RuntimeError("no processes to watch")
            left = learners.wait(TICK_SECONDS)
            tick()
            if self._is_gone():
                return 1
            self._write_status("stopping" if self._signals.count or self.layout.stop_request.exists() else "running")
            if self._out_of_patience():
                learners.end()
                return 0
            for child in learners.running:
                self._end_hung(child, silent_too=learners.together)
            if evaluator.poll() is None:
                self._end_hung(evaluator)
            if left is not None:
                if left.done or not self._heal_learners(left):
                    return left.code
            elif evaluator.poll() not in (None, 0) and not self._heal_evaluator(evaluator):
                write_json(self.layout.stop_request, {"reason": "evaluator"})
                learners.leave(LEAVE_SECONDS)
                return 0

    def _out_of_patience(self) -> bool:
        """Whether learners that were asked to leave are to be killed: asked twice, or for too long."""
        if self._asked is None and self._asked_to_stop():
            self._asked = time.monotonic()
            self._patience = patience(self.layout)
            write_json(self.layout.stop_request, {"reason": "user"})
        if self._signals.count >= 2:
            return True
        late = self._asked is not None and time.monotonic() - self._asked > self._patience
        if late:
            self._events.write("killed", "no checkpoint in time; the last one is kept", level="warning")
        return late

    def _heal_learners(self, left: Departure) -> bool:
        """Start the learners anew after one crashed. One that could say what is wrong is not: it would say it again."""
        error = reported(left.name, self.layout)
        if error is None:
            steps = self._steps()
            self._crashes = 1 if steps > self._crash_steps else self._crashes + 1
            self._crash_steps = max(steps, self._crash_steps)
            error = self._hangs.pop(left.name, None) or self._crash_error(left.name, left.code)
            if self._crashes <= self._max_restarts and self._asked is None:
                self._learners.end()
                self._log_restart("learner", error, self._crashes, learner=left.name)
                self._start_learners()
                return True
        self._error = error
        return False

    def _heal_evaluator(self, evaluator: Child) -> bool:
        """Start a crashed evaluator anew; rather than train unseen, a run whose evaluator can't live ends."""
        failure = reported("evaluator", self.layout)
        crash = self._hangs.pop("evaluator", None) or self._crash_error("evaluator", evaluator.poll() or 0)
        evaluated = self.layout.evals.stat().st_size if self.layout.evals.exists() else 0
        self._evaluator_crashes = 1 if evaluated > self._evaluated else self._evaluator_crashes + 1
        self._evaluated = evaluated
        if failure is not None or self._evaluator_crashes > self.recipe.engine.max_restarts:
            self._error = failure or crash
            return False
        self._log_restart("evaluator", crash, self._evaluator_crashes)
        evaluator.end()
        self._evaluator = self._spawn_evaluator()
        return True

    def _end_hung(self, child: Child, *, silent_too: bool = False) -> int | None:
        """Kill a learner or evaluator that hangs in its environment, or anywhere else where others wait for it.

        Returns:
            Its exit code then.
        """
        if not child.is_born:
            return None
        error: ErlError | None = hung(child.name, child.pid, self.layout, self._watch)
        if error is None and silent_too:
            error = silent(child.name, child.pid, self.layout, self._watch)
        if error is None:
            return None
        self._hangs[child.name] = error
        child.end()
        return child.poll()

    def _crash_error(self, name: str, code: int) -> ErlError:
        row = read_json(self.layout.process(name)) or {}
        if code == PeerLostError.exit_code:
            return ErlError(
                f"{name} has lost the other learners",
                expected="learners that live as long as the run",
                found=tail_of(self.layout.output(name)),
                remedy=f"the last checkpoint is kept: erl resume {quoted(self.layout.root)}",
            )
        error = died(name, code, self.layout, f"the last checkpoint is kept: erl resume {quoted(self.layout.root)}")
        # Nothing but env code leaves the process by itself; for a signal, what it was at has to tell.
        if code >= 0 or str(row.get("phase", "starting")).startswith("env"):
            return error
        return ErlError(
            error.message, expected=error.expected, found=error.found, remedy=error.remedy, details=error.details
        )

    def _log_restart(self, role: str, error: ErlError, times: int, **facts: str) -> None:
        self._events.write(
            f"{role}_restart",
            f"{error.message}; started anew from the last checkpoint ({times} in a row)",
            level="warning",
            found=error.found,
            **facts,
            **error.details,
        )

    def _finish_evaluation(self, tick: Callable[[], None]) -> None:
        """Let the evaluator look at the last snapshot."""
        write_json(self.layout.control / "finish", {})
        while (evaluator := self._evaluator) is not None and not self._asked_to_stop():
            code = evaluator.wait(TICK_SECONDS)
            tick()
            if self._is_gone():
                return
            self._refuse_late()
            self._write_status("evaluating")
            if code is None:
                code = self._end_hung(evaluator)
            if code == 0 or (code is not None and not self._heal_evaluator(evaluator)):
                return

    def _refuse_late(self) -> None:
        """Answer requests to a learner that has left."""
        for row in control.take(self.layout):
            message = "too late: training has ended"
            self._events.write("request", message, level="warning", request=str(row.get("id", "")), do=row["do"])

    def _end_all(self, grace_seconds: float = 0.0) -> None:
        if self._evaluator is not None:
            self._evaluator.end(grace_seconds)
        self._learners.end(grace_seconds)

    def _steps(self) -> int:
        return int((read_json(self.layout.process("learner")) or {}).get("steps", 0))

    def _target_reached(self) -> bool:
        target = self.recipe.train.target_return
        curve = Curve(self.layout.evals)
        curve.refresh()
        best = best_of(curve.rows)
        return target is not None and best is not None and bool(best["return_mean"] >= target)

    def _write_status(self, state: str, code: int | None = None, error: ErlError | None = None) -> None:
        """At most once a second, unless the state changes."""
        now = time.monotonic()
        if state == self._state and now < self._status_due and code is None:
            return
        self._state, self._status_due = state, now + 1.0
        row = read_json(self.layout.process("learner")) or {}
        steps, seconds = int(row.get("steps", 0)), float(row.get("seconds", 0.0))
        if code is not None:  # a learner that failed has told more in its rows than in its last sign of life
            steps, seconds = self._at_the_end(steps, seconds)
        status = status_row(
            self.layout.root.name,
            self.recipe,
            "paused" if state == "running" and row.get("phase") == "paused" else state,
            attempt=self.attempt,
            steps=steps,
            seconds=seconds,
            reached=self._reached,
            exit_code=code,
            error=str(error) if error is not None else None,
        )
        if gone(self.layout) is not None:
            return  # or there would be a directory again, with nothing but the status
        try:
            write_json(self.layout.status, status)
        except OSError as problem:  # the learner meets the same disk, and says what to do
            print(f"{self.layout.status}: {problem.strerror}", file=sys.stderr)

    def _at_the_end(self, steps: int, seconds: float) -> tuple[int, float]:
        """The larger of these and of the newest metric row's."""
        curve = Curve(self.layout.metrics, FOLLOWED_ROWS)  # the newest are whole in it, however long the run was
        curve.refresh()
        last = curve.rows[-1] if curve.rows else {}
        return max(steps, int(last.get("steps", 0))), max(seconds, float(last.get("time/seconds", 0.0)))


def outcome_of(layout: RunLayout, exit_code: int, owner: str = PROCESS) -> Outcome:
    """How a directory's owner ended that was a process of its own, and has left with `exit_code`."""
    error = gone(layout)
    if error is not None:
        return Outcome(error.exit_code, "failed", error)
    if exit_code in (0, INTERRUPTED):
        error = None
    elif exit_code > 0:
        last_words = tail_of(layout.output(owner)) or "no last words"
        error = reported(owner, layout) or ErlError(f"the {owner} failed", found=last_words)
    else:
        error = died(owner, exit_code, layout, f"the last checkpoint is kept: erl resume {quoted(layout.root)}")
        return Outcome(1, "failed", ErlError(error.message, found=error.found, remedy=error.remedy))
    return Outcome(exit_code, str((read_json(layout.status) or {}).get("state", "failed")), error)


def main(arguments: list[str]) -> int:
    """Supervise a run without a terminal: `--detach` starts it with RUN_DIR LOCK_FD."""
    forks.adopt()
    layout = RunLayout(Path(arguments[0]))
    lock = RunLock.inherited(layout.lock, int(arguments[1]))
    return Supervisor(layout, lock).run().exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
