"""The orchestrator: owns a tournament, keeps its slots at work, and writes down whatever happens.

What it knows is the ledger, a fold of the journal; what it does next, `evolve` says. A row is on disk before anything
is done about it, and everything that is done can be done again. So an orchestrator that was killed, at whatever line,
goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from erlcli.engine.supervisor import INTERRUPTED, Outcome
from erlcli.errors import DamagedError, ErlError
from erlcli.recipe.tournament import TournamentRecipe
from erlcli.runs import control
from erlcli.runs.journal import FILE
from erlcli.runs.jsonl import Row, write_json
from erlcli.runs.layout import RunLayout
from erlcli.tournament import board, evolve
from erlcli.tournament.backends.base import Backend, Order, Report
from erlcli.tournament.draws import derive, seed_of
from erlcli.tournament.evolve import Task
from erlcli.tournament.failures import Failures
from erlcli.tournament.journal import JournalWriter
from erlcli.tournament.ledger import Ledger
from erlcli.tournament.members import Store
from erlcli.tournament.places import Places
from erlcli.tournament.status import ending, status_row
from erlcli.tournament.stops import Stops

TICK_SECONDS = 0.1
REQUEST_SECONDS = 0.2
AT_ONCE = 16  # orders between two writes: more would let the first slots wait for decisions about the last
PROCESS = "orchestrator"


class Orchestrator:
    """See the module's docstring.

    Args:
        layout: the tournament's directory, whose lock this process holds.
        recipe: of the tournament.
        backend: with slots.
        store: of the members' files.

    Attributes:
        ledger: what the journal says.
        busy: what slots are at, by their names.
        killed: rows that retire members once they have left their slots.
        stops: what slots were asked to stop for.
    """

    def __init__(self, layout: RunLayout, recipe: TournamentRecipe, backend: Backend, store: Store) -> None:
        self.layout, self.recipe, self.backend, self.store = layout, recipe, backend, store
        self.journal = JournalWriter(layout.root / FILE)
        self.ledger = Ledger(lower_bound=recipe.section.evaluation.score == "lower_bound")
        for row in self.journal.rows:
            self.ledger.add(row)
        self._scores: dict[str, Row] = {}  # the last score on fresh episodes of each member
        for row in self.journal.rows:
            self._remember(row)
        self.busy: dict[str, Task] = {}
        self._evaluating: set[str] = set()  # slots whose slice is over
        self.killed: dict[str, Row] = {}
        self.places = Places(self)
        self.failures = Failures(self)
        self._unwritten: list[Row] = []  # reports, which nothing is done about before the next decisions
        self.stops = Stops(layout, backend)
        self._due = {"status": 0.0, "requests": 0.0}
        self._state = ""

    def run(self, names: Sequence[str], tick: Callable[[], None] = lambda: None) -> Outcome:
        """Until the tournament is over.

        Args:
            names: of the slots; those that it had last where there are none.
            tick: called some ten times a second.

        Raises:
            ErlError: it can't go on.
        """
        try:
            with self.stops.signals:
                self._open(names)
                while (outcome := self._step()) is None:
                    tick()
        except BaseException:
            self._write_status("failed", Outcome(1, "failed"))
            raise
        finally:
            self.backend.close()
            self.journal.close()
        self._write_status(outcome.state, outcome)
        tick()
        return outcome

    # Opening

    def _open(self, names: Sequence[str]) -> None:
        """Take the tournament over from whoever was at it before."""
        self._write_status("starting")
        ranked_by = self.recipe.section.evaluation.score
        rows: list[Row] = [{"event": "open", "pid": os.getpid(), "ranked_by": ranked_by}]
        if (names and list(names) != self.ledger.board.slots) or not self.ledger.board.slots:
            rows.append({"event": "slots", "slots": list(names)})  # none, once more: that is what it waits for
        if self.ledger.paused:
            rows.append({"event": "resume"})
        self.record(*rows)
        for entry in self.ledger.running():
            steps = self.store.newest_steps(entry.id, entry.steps)
            self.record({"event": "slice_end", "member": entry.id, "to_steps": max(steps, entry.steps), "why": "lost"})
        self.backend.resize(self.ledger.board.slots)
        spawned = {row["member"]: row for row in self.journal.rows if row.get("event") == "spawn"}
        for name in list(self.ledger.alive):
            if name in spawned:
                self.create(spawned[name])
        self._crown()

    # The loop

    def _step(self) -> Outcome | None:
        """One turn; how it ended, once it has."""
        self._look_for_requests()
        if evolve.won(self.ledger, self.recipe) or self._out_of_hope():
            self.stops.ask(self.busy, "over")
        while self._advance():
            pass
        if self.stops.signals.count >= 2 or (self.stops.leaving and not self.busy):
            return Outcome(INTERRUPTED, "interrupted")
        if not self.busy and self._nothing_left():
            return self._finish()
        self._write_status("stopping" if self.stops.leaving else "paused" if self.ledger.paused else "running")
        for report in self.backend.poll(TICK_SECONDS):
            self._take(report)
        self.places.watch()
        return None

    def _nothing_left(self) -> bool:
        if self.ledger.paused or not self.ledger.board.slots:
            return False
        return evolve.assign(self.ledger, self.recipe, frozenset()) is None

    def _advance(self) -> bool:
        """Say what follows, and give free slots something to do; whether there may be more of them."""
        batch, self._unwritten = self._unwritten, []  # with what was reported: one fsync for all
        orders: dict[str, Task] = {}
        while True:
            while (row := evolve.settle(self.ledger, self.recipe)) is not None:
                self._note(batch, row)
            free = [s for s in self.places.there() if s not in self.busy and s not in orders]
            if not free or self.stops.leaving or len(orders) >= AT_ONCE:
                break
            at_work = {task.member for task in (*self.busy.values(), *orders.values())}
            following = evolve.assign(self.ledger, self.recipe, at_work)
            if following is None:
                break
            if not isinstance(following, Task):
                self._note(batch, following)
                continue
            if following.kind == "slice":
                self._note(batch, self._slice_row(following.member, free[0]))
            orders[free[0]] = following
        if not batch and not orders:
            return False
        self.journal.write(batch)
        self._carry_out(batch)
        for slot, task in orders.items():
            if task.member in self.ledger.alive:  # or it could not be made
                self._begin(slot, task)
        return len(orders) >= AT_ONCE

    def _slice_row(self, member: str, slot: str) -> Row:
        entry, section = self.ledger.alive[member], self.recipe.section.slice
        row: Row = {"event": "slice_start", "member": member, "slot": slot, "from_steps": entry.steps}
        if section.steps is not None:
            row["until_steps"] = entry.until if entry.begun else entry.steps + section.steps
        else:
            row["seconds"] = max((section.seconds or 0.0) - entry.used_seconds, 1.0)
        return row

    def _begin(self, slot: str, task: Task) -> None:
        """Send an order."""
        entry, section = self.ledger.alive[task.member], self.recipe.section
        run, seed, episodes = str(self.store.path(entry.id)), self.recipe.base.eval.seed, section.evaluation.episodes
        if task.kind == "slice":
            if entry.scored >= 0:
                self.store.hold(entry.id, entry.scored)
            left = None if section.slice.seconds is None else max(section.slice.seconds - entry.used_seconds, 1.0)
            order = Order(entry.id, run, True, entry.until, left, None, episodes, seed)
        elif task.kind in board.FRESH:
            try:
                checkpoint = self.store.scored_checkpoint(entry.id, entry.scored)
            except DamagedError as error:
                self.failures.take(entry.id, error, training=False)
                return
            played = entry.sample.episodes if entry.sample is not None else 0
            seed = derive(seed_of(self.recipe), "confirm", entry.id, entry.scored, played)
            if task.kind == "confirm":
                episodes = section.evaluation.confirm_episodes
            order = Order(entry.id, run, False, None, None, checkpoint, episodes, seed, "confirm")
        else:
            order = Order(entry.id, run, False, None, None, str(entry.steps), episodes, seed)
        self.busy[slot] = task
        self.places.began(slot, task)
        self.backend.start(slot, order)

    def _carry_out(self, rows: Sequence[Row]) -> None:
        """What rows that are on disk now ask for."""
        for row in rows:
            if row["event"] == "spawn" and row["member"] in self.ledger.alive:
                self.create(row)
            elif row["event"] == "promote":
                self._crown()
            elif row["event"] == "retire":
                self.store.prune(self.ledger)

    def create(self, row: Row) -> None:
        """Make the directory of a spawned member; one that can't be is retired."""
        try:
            self.store.create(self.ledger.board.members[row["member"]], row)
        except DamagedError as error:
            self.failures.take(row["member"], error, training=False)

    def _crown(self) -> None:
        crown = self.ledger.crown
        if crown is not None and (row := self._scores.get(crown.member)) is not None:
            self.store.crown(crown, row)

    # News

    def _take(self, report: Report) -> None:
        """What a slot reports."""
        task, facts = self.busy[report.slot], report.facts
        if report.event == "trained":
            self._evaluating.add(report.slot)
            setup = {"setup_seconds": facts["setup_seconds"]} if "setup_seconds" in facts else {}
            self.end_slice(report.member, int(facts["steps"]), facts["why"], facts["seconds"], **setup)
            return
        training = task.kind == "slice" and report.slot not in self._evaluating
        del self.busy[report.slot]
        self._evaluating.discard(report.slot)
        why = self.stops.reason(report.slot)
        if report.event == "scored":
            self._score(report.member, task, facts)
        elif report.event == "failed":
            self._fail(report, task, training=training)
        elif report.event == "lost":
            if training:
                self.end_slice(report.member, None, "lost", reason=facts["reason"])
        elif training:
            seconds = float(facts.get("seconds", 0.0))
            self.end_slice(report.member, facts.get("steps"), "stopped", seconds=seconds, reason=why)
            if facts.get("user"):
                self.retire(report.member, "stopped by its user: erl resume trains it on by itself")
            elif report.slot not in self.ledger.board.slots:
                self.record({"event": "park", "member": report.member, "reason": why})
        if (row := self.killed.pop(report.member, None)) is not None:
            if report.member in self.ledger.alive:
                self.record(row)
                self.store.prune(self.ledger)
            elif "request" in row:
                reason = f"{report.member}: it left the race by itself meanwhile"
                self.record({"event": "refuse", "do": "kill", "reason": reason, "request": row["request"]})
        if report.slot not in self.ledger.board.slots:
            self.places.fit()

    def end_slice(self, member: str, steps: int | None, why: str, seconds: float = 0.0, **facts: Any) -> None:  # noqa: ANN401
        """A slice is over, or something else of a member has failed, at `steps` or else its newest checkpoint."""
        entry = self.ledger.alive[member]
        to_steps = self.store.newest_steps(member, entry.steps) if steps is None else steps
        row = {"event": "slice_end", "member": member, "to_steps": max(to_steps, entry.steps), "why": why}
        self._note(self._unwritten, row | {"seconds": round(seconds, 3), **facts})

    def _score(self, member: str, task: Task, facts: Row) -> None:
        entry = self.ledger.alive.get(member)
        if entry is None or (task.kind in board.FRESH and int(facts["steps"]) != entry.scored):
            return
        self._note(self._unwritten, board.evaluation(entry, task.kind, facts))

    def _fail(self, report: Report, task: Task, *, training: bool) -> None:
        """A slice or an evaluation that failed."""
        error, member = ErlError.from_json(report.facts["error"]), report.member
        if member not in self.ledger.alive:
            return
        if not (report.facts.get("oom") and self.places.pack_less(report.slot, task)):
            self.failures.take(member, error, training=training)
        elif training:
            self.end_slice(member, None, "stopped", reason=error.message)

    def retire(self, member: str, reason: str) -> None:
        """A member leaves the race."""
        self.record({"event": "retire", "member": member, "reason": reason})
        self.store.prune(self.ledger)

    def _look_for_requests(self) -> None:
        now = time.monotonic()
        if now < self._due["requests"]:
            return
        self._due["requests"] = now + REQUEST_SECONDS
        for row in control.take(self.layout, control.TOURNAMENT_KINDS):
            self.places.answer(row)
        if self.stops.requested():
            self.stops.leaving = True
            self.stops.ask(self.busy, "stopped")

    # The end

    def _out_of_hope(self) -> bool:
        return evolve.hopeless(self.ledger, self.recipe)

    def _finish(self) -> Outcome:
        if self._out_of_hope() or (self.ledger.last_failure and self.ledger.crown is None):
            error = self.failures.told()
            return Outcome(error.exit_code, "failed", error)
        full = not evolve.may_launch(self.ledger, self.recipe)
        if evolve.won(self.ledger, self.recipe):
            self.record({"event": "finish", "reason": "target reached", "budget": self.recipe.budget_steps})
        else:
            self.record({"event": "finish", "reason": "budget used" if full else "nobody is left to train"})
        self._crown()
        return Outcome(0, "finished")

    # Writing

    def record(self, *rows: Row) -> list[Row]:
        """Rows that are on disk when this returns, as all before them."""
        batch, self._unwritten = self._unwritten, []
        first = len(batch)
        for row in rows:
            self._note(batch, row)
        self.journal.write(batch)
        return batch[first:]

    def _note(self, batch: list[Row], row: Row) -> None:
        """Number a row, and fold it."""
        numbered = {"seq": self.ledger.board.seq + 1, "time": round(self.backend.now(), 3), **row}
        if not self.ledger.add(numbered):
            raise RuntimeError(f"a row that says nothing: {numbered}")
        self._remember(numbered)
        batch.append(numbered)

    def _remember(self, row: Row) -> None:
        if row.get("event") == "evaluate" and row.get("kind") in board.FRESH:
            self._scores[row["member"]] = row

    def _write_status(self, state: str, outcome: Outcome | None = None) -> None:
        """At most once a second, unless the state changes; `outcome` is the last word."""
        now = time.monotonic()
        if state == self._state and now < self._due["status"] and outcome is None:
            return
        self._state, self._due["status"] = state, now + 1.0
        row = status_row(self.layout, self.recipe, self.ledger, state)
        write_json(self.layout.status, row if outcome is None else row | ending(outcome))
