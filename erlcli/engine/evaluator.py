"""The evaluator process: looks at snapshots, keeps the best, draws the curve, films, ends the run at its target.

Started by the supervisor as `python -m erlcli.engine.evaluator RUN_DIR ATTEMPT LOCK_FD LIFELINE_FD`. It always takes
the newest snapshot, so it never falls behind a fast learner; a probe of few episodes decides whether the full number
is worth its time. One at the target gets it at once, for as long as it may still turn out to be there. Below that, the
most promising one waits for it while there is a newer snapshot to look at, but for a minute at most, or for five times
what it will take where that is longer, so that most of the time goes into what is new.

Where training has every core of the machine busy, the evaluator rests after each snapshot, since a learner whose
threads wait for one another is twice as slow while anything else runs, at whatever priority.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from erlcli.engine import build, checkpoint, compute
from erlcli.engine.child import give_way, leave_now, on_orphaned
from erlcli.engine.evaluate import Scores
from erlcli.engine.evaluate_torch import make_evaluation
from erlcli.engine.failures import Interrupted, run_child
from erlcli.engine.film import Filmer, Subject
from erlcli.engine.look import Look, written_at
from erlcli.engine.recorder import Recorder
from erlcli.envs.config import env_config
from erlcli.envs.position import PositionLog
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs.jsonl import Appender, Row, read, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import plural, score
from erlcli.runs.view import Curve, best_of
from erlcli.runs.writer import EventLog, Heartbeat

PROCESS, REACHED = "evaluator", "target_reached"
RECORD_SECONDS = 10.0  # from one record to the next; the first one imports for a second, and a short run has no time
PUT_OFF_SECONDS = 60.0  # that a full number waits, where there is always a newer snapshot
PUT_OFF_TIMES = 5.0  # or so many times what it will take
NICENESS = 10  # it runs in the gaps that training leaves
SHARE = 0.25  # of the time, where training leaves no gaps


class Evaluator:
    """See the module's docstring.

    Args:
        layout: the run.
        recipe: its recipe.
        attempt: number of this start.
        stop: whether to leave at once.
    """

    def __init__(self, layout: RunLayout, recipe: AnyRecipe, attempt: int, stop: threading.Event) -> None:
        self.layout, self.recipe, self.attempt, self.stop = layout, recipe, attempt, stop
        self.beat = Heartbeat(layout, PROCESS)
        self.events = EventLog(layout, PROCESS, attempt)
        self.rows = Appender(layout.evals)
        self.recorder = Recorder(layout, recipe)
        section = recipe.eval
        config = env_config(recipe.env, min(section.num_envs, section.episodes))
        position = PositionLog(layout.position(PROCESS))
        self.evaluation = make_evaluation(config, section.seed, position)
        self.policy = build.policy(recipe, self.evaluation.spec)
        self.filmer = Filmer(layout, recipe, self.beat, position, self.evaluation.render_modes, stop.is_set)
        self.subject: Subject | None = None  # the policy as it was last evaluated
        earlier = Curve(layout.evals)
        earlier.refresh()
        full = [row for row in earlier.rows if row.get("kind") == "full"]
        best = best_of(full)
        self.best = float("-inf") if best is None else float(best["return_mean"])
        # A run that is trained on after it has ended at its target is not to be stopped by it again.
        target = recipe.train.target_return
        self.target = target if target is None or ended_at(layout, full) < target else None
        self.seen = max(((int(row.get("attempt", 0)), int(row["steps"])) for row in full), default=(0, -1))
        self.recorded = time.monotonic()
        self.put_off: Look | None = None  # the most promising one that waits for its full number
        self.put_off_since: float | None = None  # when the first one since the last full number was put off
        self.share = SHARE if compute.takes_all_cores(recipe) else 1.0
        self.rests_until = 0.0

    def run(self) -> int:
        """Evaluate until the run is over."""
        try:
            while not self.stop.is_set():
                finishing = (self.layout.control / "finish").exists()  # before the look at what is there
                resting = time.monotonic() < self.rests_until and not finishing
                look = None if resting else self._next()
                if look is not None:
                    before = look.seconds
                    if self._evaluate(look, full=finishing):
                        break
                    self.rests_until = time.monotonic() + (look.seconds - before) * (1.0 / self.share - 1.0)
                elif finishing:
                    break
                else:
                    self.beat.progress("waiting")
                    self._record()
                    self.stop.wait(0.2)
                if self.subject is not None:
                    self.filmer.offer(self.subject)
            if self.subject is not None and not self.stop.is_set():
                self.filmer.last(self.subject)
        except Interrupted:
            pass
        self.filmer.close()
        self.recorder.close()
        self.evaluation.close()
        self.beat.close()
        return 0

    def _newest(self) -> Path | None:
        """The newest snapshot not looked at yet; older ones are dropped."""
        paths = sorted(self.layout.snapshots.glob("[0-9]*.safetensors"))
        newest = max(((written, path) for path in paths if (written := written_at(path)) is not None), default=None)
        fresh = newest[1] if newest is not None and newest[0] > self.seen else None
        if not self.recipe.eval.keep_snapshots:
            for path in paths:
                if path != fresh:
                    path.unlink(missing_ok=True)
        return fresh

    def _next(self) -> Look | None:
        """The newest snapshot, or the one that was put off."""
        if self.put_off is not None and self.put_off.mean <= self.best:
            self.put_off = None  # another one has become the best meanwhile
        waited = self.put_off is not None and self._waited(self.put_off)
        while not waited and (path := self._newest()) is not None:
            try:
                look = Look.read(path)
            except FileNotFoundError:
                continue  # the learner went back to an older checkpoint
            if look.attempt > self.seen[0]:
                self.put_off = self.put_off_since = None  # a learner that started anew may have gone back before it
            self.seen = look.attempt, look.steps
            return look
        waiting, self.put_off = self.put_off, None
        return waiting

    def _evaluate(self, look: Look, *, full: bool) -> bool:
        """Play with one snapshot; whether the target is reached."""
        episodes, at_once = self.recipe.eval.episodes, self.evaluation.at_once
        first, started = not look.scores.returns, time.monotonic()
        self.policy.load_state_dict(look.weights)
        if first:
            look.scores = self._play(range(self.recipe.eval.probe_episodes))
        full = full or (not first and self._waited(look))
        while self._goes_on(look, full=full):
            played = len(look.scores.returns)
            look.scores += self._play(range(played, episodes if full else min(played + at_once, episodes)))
        look.seconds += time.monotonic() - started
        row, target = self._row(look), self.target
        is_full = row["kind"] == "full"
        if is_full:
            self.put_off_since = None
        elif look.mean > self.best:
            self._put_off(look)
        if first or is_full:
            self.rows.append(row)
        self.subject = Subject(self.policy, look.attempt, look.steps, row["length_mean"])
        if is_full and row["return_mean"] > self.best:
            self._crown(look.weights, row)
        self._record()
        reached = is_full and target is not None and row["return_mean"] >= target
        if reached:
            self._announce(row)
        return reached

    def _goes_on(self, look: Look, *, full: bool) -> bool:
        """Whether more of its episodes are played, some at a time, before something newer is looked at."""
        episodes, probe = self.recipe.eval.episodes, self.recipe.eval.probe_episodes
        returns, target = look.scores.returns, self.target
        left = episodes - len(returns)
        if full or not left:
            return left > 0
        if target is not None and sum(returns[:probe]) >= target * probe:
            most = sum(returns) + left * max(returns)
            if most >= target * episodes:
                return True
        return look.mean > self.best and self._newest() is None

    def _put_off(self, look: Look) -> None:
        if self.put_off_since is None:
            self.put_off_since = time.monotonic()
        if self.put_off is None or look.mean > self.put_off.mean:
            self.put_off = look

    def _waited(self, look: Look) -> bool:
        """Whether the one that was put off has waited long enough."""
        if self.put_off_since is None:
            return False
        rest = look.seconds * (self.recipe.eval.episodes / len(look.scores.returns) - 1.0)
        return time.monotonic() - self.put_off_since >= max(PUT_OFF_SECONDS, PUT_OFF_TIMES * rest)

    def _record(self) -> None:
        """For TensorBoard and the picture, now and then."""
        now = time.monotonic()
        if now - self.recorded >= RECORD_SECONDS:
            self.recorder.record()
            self.recorder.draw()
            self.recorded = now

    def _row(self, look: Look) -> Row:
        facts, section = look.facts, self.recipe.eval
        return {
            "attempt": look.attempt,
            "steps": look.steps,
            "version": int(facts["version"]),
            "kind": "full" if len(look.scores.returns) == section.episodes else "probe",
            **look.scores.summary(section.seed),
            "time/seconds": float(facts["seconds"]),
            "time/wall": float(facts["wall"]),
            "time/eval_seconds": round(look.seconds, 3),
        }

    def _play(self, episodes: range) -> Scores:
        if not episodes:
            return Scores()
        self.beat.progress("env step")
        scores = self.evaluation.run(
            self.policy, episodes, on_step=lambda _: self.beat.progress("env step"), stop=self.stop.is_set
        )
        self.beat.progress("scoring")
        return scores

    def _crown(self, weights: dict[str, Tensor], row: Row) -> None:
        self.best = float(row["return_mean"])
        state = {key: row[key] for key in ("steps", "version", "return_mean", "return_std", "episodes")}
        checkpoint.set_best(self.layout, weights, state)
        self.events.write("best", f"best {score(self.best)} at {row['steps']:,} steps", steps=row["steps"])

    def _announce(self, row: Row) -> None:
        many = plural(row["episodes"], "episode")
        self.events.write(
            REACHED,
            f"target reached: mean of {many} {score(row['return_mean'])} (target {self.target:g})",
            steps=row["steps"],
        )
        write_json(self.layout.stop_request, {"reason": "target", "steps": row["steps"]})


def ended_at(layout: RunLayout, full: list[Row]) -> float:
    """The best return that a run has ended with because it was at its target then; -inf if it never has.

    Args:
        layout: the run.
        full: its full evaluations.
    """
    steps = {row.get("steps") for row in read(layout.events(PROCESS)) if row.get("event") == REACHED}
    best = best_of([row for row in full if row["steps"] in steps])
    return float("-inf") if best is None else float(best["return_mean"])


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    root, attempt, _, lifeline = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    on_orphaned(int(lifeline), leave_now)
    give_way(NICENESS)
    torch.set_num_threads(1)
    layout = RunLayout(Path(root))
    return run_child(PROCESS, layout, lambda: Evaluator(layout, load(layout.recipe), int(attempt), stop).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
