"""Rows as curves: columns of numbers, the learning curve, the small ones.

Shapes: P rows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from erlcli.runs.curve import is_number
from erlcli.runs.jsonl import Row
from erlcli.tui.axes import Axis
from erlcli.tui.figure import Mark, Series
from erlcli.tui.widgets.metric_grid import Mini

Floats = npt.NDArray[np.float64]
# Metrics that are worth a small curve, in this order; what an algorithm has beyond them follows by group.
FIRST = (
    "loss/policy",
    "loss/value",
    "policy/entropy",
    "policy/kl",
    "policy/clip_fraction",
    "value/explained_variance",
    "schedule/learning_rate",
)
GROUPS = ("loss/", "policy/", "value/", "schedule/")
CLOCKS = ("time/wall", "time/seconds")  # rise and say nothing else
DULL = ("policy/epochs",)


class Columns:
    """Columns of rows as arrays, each made at most once.

    Rows are copied, so that it stays what it is while a reader goes on to read.

    Args:
        rows: ordered by steps.
    """

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.rows = list(rows)
        self._made: dict[str, Floats] = {}

    def refreshed(self, rows: Sequence[Row]) -> Columns:
        """Those of `rows`: the same object where they are the same."""
        same = len(rows) == len(self.rows) and all(map(operator.is_, rows, self.rows))
        return self if same else Columns(rows)

    def column(self, name: str) -> Floats:
        """(P,) one number a row; NaN where a row has none."""
        if name not in self._made:
            values = [row.get(name) for row in self.rows]
            self._made[name] = np.array([number(value) for value in values], dtype=np.float64)
        return self._made[name]

    def pairs(self, name: str, axis: Axis) -> tuple[Floats, Floats]:
        """(P,) places on the x axis and (P,) values of the rows that have both."""
        key = f"{axis}:{name}"
        if f"x:{key}" not in self._made:
            x = self.column("steps" if axis == "steps" else "time/seconds")
            y = self.column(name)
            both = np.isfinite(x) & np.isfinite(y)
            x = np.maximum.accumulate(x[both])  # a clock that was set back must not fold the curve
            self._made[f"x:{key}"], self._made[f"y:{key}"] = x, y[both]
        return self._made[f"x:{key}"], self._made[f"y:{key}"]


def number(value: object) -> float:
    """`value` where it is a number, NaN otherwise; a row's NaN is text."""
    return float(value) if is_number(value) else float("nan")


def default_metrics(names: Sequence[str]) -> list[str]:
    """The metrics that get a small curve unless the user picks others."""
    grouped = [name for group in GROUPS for name in names if name.startswith(group) and name not in (*FIRST, *DULL)]
    return [name for name in FIRST if name in names] + grouped


def learning_curve(metrics: Columns, evals: Columns, best: Row | None, axis: Axis) -> tuple[list[Series], list[Mark]]:
    """Training return, evaluation with its confidence interval, and the best evaluation."""
    x, y = metrics.pairs("episode/return", axis)
    series = [Series("training return", x, y, 0, noisy=True)]
    x, y = evals.pairs("return_mean", axis)
    marks: list[Mark] = []
    if len(x):
        low, high = _interval(evals)
        series.append(Series("evaluation", x, y, 1, low, high, points=True))
        at = None if best is None else best.get("steps" if axis == "steps" else "time/seconds")
        if best is not None and is_number(at):
            marks.append(Mark(number(at), number(best["return_mean"]), 1))
    return series, marks


def _interval(evals: Columns) -> tuple[Floats, Floats]:
    """(P,) ends of the interval of every evaluation that has a mean."""
    rows = [row for row, mean in zip(evals.rows, evals.column("return_mean"), strict=True) if np.isfinite(mean)]
    ends = [row.get("return_ci") for row in rows]
    pairs = [(number(e[0]), number(e[1])) if isinstance(e, list) and len(e) == 2 else (np.nan, np.nan) for e in ends]
    both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


def minis(metrics: Columns, names: Sequence[str]) -> list[Mini]:
    """A small curve for each of `names`."""
    return [Mini(name, *metrics.pairs(name, "steps")) for name in names]
