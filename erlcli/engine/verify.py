"""Proof that resuming is exact: train a stretch between two checkpoints again and compare every bit."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from erlcli.engine import checkpoint
from erlcli.engine.scratch import run_learner
from erlcli.errors import DamagedError, RecipeError
from erlcli.runs.jsonl import Row
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import Curve


@dataclass(frozen=True)
class Point:
    """A restart point that the uninterrupted run passes through.

    Attributes:
        path: its folder.
        steps: env transitions up to it.
        version: rollouts learnt from.
    """

    path: Path
    steps: int
    version: int


@dataclass(frozen=True)
class Verdict:
    """What the comparison found.

    Attributes:
        from_steps: start of the stretch.
        to_steps: end of the stretch.
        differing_tensors: names of policy and learner tensors, and of parts of the replay, that are not equal bit for
            bit.
        largest_difference: between any two weights.
        rows: metric rows of the stretch.
        differing_rows: steps of the rows that differ beyond their time columns, or exist once only.
    """

    from_steps: int
    to_steps: int
    differing_tensors: list[str]
    largest_difference: float
    rows: int
    differing_rows: list[int]

    @property
    def equal(self) -> bool:
        """Whether resuming continues the run bit for bit."""
        return not self.differing_tensors and not self.differing_rows

    def to_json(self) -> Row:
        """For `--json`."""
        return {"equal": self.equal, **asdict(self)}


def newest_stretch(layout: RunLayout) -> tuple[Point, Point]:
    """The newest two planned checkpoints that follow each other.

    Raises:
        RecipeError: there are no two.
    """
    points: list[Point] = []
    interrupted: int | None = None  # the attempt that wrote the newest point, if that is off the grid
    for path in checkpoint.numbered(layout):
        try:
            checkpoint.verify(path)
        except DamagedError:
            continue
        state = json.loads((path / checkpoint.STATE).read_text())
        if state.get("changed"):
            points.clear()  # the recipe was changed there, in the middle of the run
        if interrupted is not None and interrupted != state["attempt"]:
            points.clear()  # somebody went on from a point off the grid, with other random numbers
        interrupted = None if state["planned"] else int(state["attempt"])
        if state["planned"]:
            points.append(Point(path, int(state["steps"]), int(state["version"])))
    if len(points) >= 2:
        return points[-2], points[-1]
    raise RecipeError(
        f"{layout.root}: nothing to verify yet",
        expected="two checkpoints at planned restart points",
        found=f"{len(points)}",
        remedy="train further, or lower checkpoint.every_steps",
    )


def verify(layout: RunLayout, tick: Callable[[RunLayout], None]) -> Verdict:
    """Train the newest stretch again, in a fresh process and a temporary directory.

    Args:
        layout: the run, which is only read.
        tick: called with the temporary run, some ten times a second.

    Raises:
        RecipeError: the run has no such stretch.
        ErlError: the second training failed.
    """
    first, last = newest_stretch(layout)
    with tempfile.TemporaryDirectory(prefix="erl-verify-") as folder:
        again = RunLayout(Path(folder) / "run")
        again.create()
        shutil.copy(layout.recipe, again.recipe)
        shutil.copytree(first.path, again.checkpoints / first.path.name)

        def watch() -> bool:
            tick(again)
            return True

        run_learner(again, last.version, watch)
        return _compare(layout, again, first, last)


def _compare(layout: RunLayout, again: RunLayout, first: Point, last: Point) -> Verdict:
    one = checkpoint.load(last.path)
    two = checkpoint.load(checkpoint.numbered(again)[-1])
    tensors = [checkpoint.flatten({"policy": c.policy, "learner": c.learner})[0] for c in (one, two)]
    names = sorted(tensors[0].keys() | tensors[1].keys())
    differing = [n for n in names if n not in tensors[1] or not torch.equal(tensors[0][n], tensors[1][n])]
    differences = [
        float((tensors[0][n].double() - tensors[1][n].double()).abs().max()) for n in differing if n in tensors[1]
    ]
    parts = [{(part.path.name, part.sha256) for part in c.replay} for c in (one, two)]
    differing += sorted({name.removesuffix(".safetensors") for name, _ in parts[0] ^ parts[1]})
    rows = [_rows(run, first.steps, last.steps) for run in (layout, again)]
    steps = sorted(rows[0].keys() | rows[1].keys())
    return Verdict(
        first.steps,
        last.steps,
        differing,
        max(differences, default=0.0),
        len(rows[0]),
        [s for s in steps if rows[0].get(s) != rows[1].get(s)],
    )


def _rows(layout: RunLayout, after: int, until: int) -> dict[int, Row]:
    """Metric rows of a stretch by steps, without what may differ: times and the attempt."""
    curve = Curve(layout.metrics)
    curve.refresh()
    return {
        row["steps"]: {k: v for k, v in row.items() if not k.startswith("time/") and k != "attempt"}
        for row in curve.rows
        if after < row["steps"] <= until
    }
