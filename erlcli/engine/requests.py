"""What a run is asked for while it trains: pause and resume, a checkpoint, another value for a scheduled number.

The loop looks between two rollouts. Every request is answered by an event named `request` that carries its id; one
that can't be granted is refused with a warning, and never ends a run. Of several learners the first one takes and
answers requests, and all do what it has taken.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from erlcli.core.schedule import Schedule
from erlcli.engine.sharing import first_does
from erlcli.errors import ErlError, RecipeError, one_line
from erlcli.recipe.load import AnyRecipe, dump, validate
from erlcli.recipe.words import found, nearest, printable, shorten
from erlcli.runs import control
from erlcli.runs.jsonl import Row, write_json, write_text
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import count
from erlcli.runs.writer import EventLog, Level

if TYPE_CHECKING:
    from erlcli.engine.loop import Loop

POLL_SECONDS = 0.1  # how long a paused loop sleeps between two looks
SECTION = "algorithm"


class Requests:
    """Answers the requests to one learner.

    Args:
        layout: the run.
        events: of the learner.
        asked: set, by whoever watches the folder, while there may be a request.
    """

    def __init__(self, layout: RunLayout, events: EventLog, asked: threading.Event) -> None:
        self._layout, self._events, self._asked = layout, events, asked
        # Outlives a learner that is killed while it is paused: its successor must not start to train by itself.
        self._paused = layout.control / "paused"

    def answer(self, loop: Loop) -> bool:
        """Answer what is pending, and wait for as long as the run is paused.

        Args:
            loop: between two rollouts.

        Returns:
            Whether a restart point was made here, from which the caller has to go on.
        """
        changed, collective = self._take(loop), loop.collective
        if not collective.any(self._is_paused(loop)):
            return changed
        with loop.standing_still():
            while collective.any(self._is_paused(loop)) and not collective.any(loop.stop()):
                loop.beat.progress("paused")
                self._asked.wait(POLL_SECONDS)
                changed |= self._take(loop)
        loop.beat.progress("training")
        return changed

    def _is_paused(self, loop: Loop) -> bool:
        """Whether the first learner finds the run paused; the others don't look."""
        return loop.collective.leads and self._paused.exists()

    def close(self, loop: Loop) -> None:
        """Refuse what came too late: training is over."""
        if not loop.collective.leads:
            return
        for row in control.take(self._layout):
            self._reply(row, "too late: training has ended", loop, level="warning")
        self._paused.unlink(missing_ok=True)

    def _take(self, loop: Loop) -> bool:
        collective, changed = loop.collective, False
        if not collective.any(collective.leads and self._asked.is_set()):
            return False
        self._asked.clear()  # before the look: what comes after it is seen at the next
        for row in collective.gather(control.take(self._layout) if collective.leads else [])[0]:
            try:
                changed |= self._grant(row, loop)
            except (ErlError, OSError) as error:
                self._reply(row, f"refused: {one_line(error)}", loop, level="warning")
        return changed

    def _grant(self, row: Row, loop: Loop) -> bool:
        """Do what one request asks for, in all learners; whether that made a restart point.

        Raises:
            RecipeError: the value asked for can't be used.
            OSError: the run directory can't be written.
        """
        at = f"at {count(loop.counters.steps)} steps"
        if row["do"] == "set":
            return self._set(row, loop)
        if row["do"] == "checkpoint":
            fresh = loop.saved_here
            if not fresh:
                loop.save(planned=False)
            self._reply(row, f"checkpoint {'was saved already' if fresh else 'saved'} {at}", loop)
            return False
        if not loop.collective.leads:
            return False
        paused = self._paused.exists()
        if row["do"] == "pause":
            write_json(self._paused, {"steps": loop.counters.steps})
            self._reply(row, f"paused {at}" if not paused else f"is paused already, {at}", loop)
        else:
            self._paused.unlink(missing_ok=True)
            self._reply(row, f"training goes on {at}" if paused else "was not paused", loop)
        return False

    def _set(self, row: Row, loop: Loop) -> bool:
        """Give a scheduled number a constant value from here on.

        The checkpoint comes first, and then the recipe: whoever is killed in between resumes as if nobody had asked.
        """
        key, value = str(row.get("key")), row.get("value")
        recipe, steps = changed(loop.recipe, key, value), loop.counters.steps
        field = key.partition(".")[2]
        old, new = getattr(loop.recipe.algorithm, field), getattr(recipe.algorithm, field)
        before = old(steps / loop.recipe.train.total_steps)
        loop.save(planned=True, changed=True)
        text = _comments(self._layout) + dump(recipe)
        first_does(loop.collective, lambda: write_text(self._layout.recipe, text, sync=True))
        loop.recipe = recipe
        loop.algorithm.config = recipe.algorithm
        was = f"{before:g}" if old.kind == "constant" else f"{before:g} (of a {old.kind} schedule)"
        message = f"{key} set to {new.start:g}, was {was}, at {count(steps)} steps"
        self._reply(row, message, loop, key=key, old=before, new=new.start)
        return True

    def _reply(self, row: Row, message: str, loop: Loop, *, level: Level = "info", **facts: Any) -> None:  # noqa: ANN401
        if not loop.collective.leads:
            return
        request, steps = str(row.get("id", "")), loop.counters.steps
        self._events.write("request", message, level=level, request=request, do=row["do"], steps=steps, **facts)


def changed(recipe: AnyRecipe, key: str, value: object) -> AnyRecipe:
    """The recipe with another constant for one of its algorithm's schedules.

    Args:
        recipe: of the run.
        key: such as `algorithm.learning_rate`.
        value: a number.

    Raises:
        RecipeError: there is no such schedule, or the value can't be its.
    """
    fields = recipe.algorithm.__class__.model_fields
    schedules = [f"{SECTION}.{name}" for name in fields if isinstance(getattr(recipe.algorithm, name), Schedule)]
    if key not in schedules:
        close, name = nearest(key, schedules), shorten(printable(key))
        raise RecipeError(
            f"{name}: can't change while a run trains",
            expected=", ".join(schedules),
            found=name,
            remedy=f"did you mean {close}?" if close else "erl stop, then erl resume --set",
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecipeError(f"{key}: wrong type", expected="a number", found=found(value), remedy="give a number")
    data = recipe.to_toml()
    data[SECTION] = {**data[SECTION], key.partition(".")[2]: value}
    return validate(data, "request")


def _comments(layout: RunLayout) -> str:
    """The lines at the head of the run's recipe that say what it is."""
    lines = layout.recipe.read_text().splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
