"""Runs side by side, in groups: how good, how surely better (arXiv 2108.13264).

A group may have runs in several environments, each of them a stratum. Returns of different environments are never
mixed as they are: an interquartile mean is one environment's, or it is of scores that are scaled to those of the runs
compared (0 for the worst of an environment, 1 for its best). The probability of improvement needs no scale.

Dimension letters: K runs of a group in one environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erlcli.core.statistics import iqm, probability_of_improvement, stratified_bootstrap_ci
from erlcli.engine.groups import Group
from erlcli.runs.curve import is_number
from erlcli.runs.jsonl import Row
from erlcli.runs.view import RunView

Score = Literal["final", "best"]
Floats = NDArray[np.float64]
SEED = 0  # of the draws: the same runs give the same intervals


@dataclass(frozen=True)
class Stratum:
    """The runs of one group in one environment.

    Attributes:
        name: of the group.
        views: the runs.
        scores: (K,) of the runs, in their order.
    """

    name: str
    views: list[RunView]
    scores: Floats


def score_of(view: RunView, score: Score) -> float | None:
    """A run's mean return in its last evaluation, or in its best full one; None where there is none yet."""
    row = view.best if score == "best" else next(reversed(view.evals.rows), None)
    return float(row["return_mean"]) if row is not None and is_number(row.get("return_mean")) else None


def compare(groups: Sequence[Group], score: Score, target: float | None) -> Row:
    """Figures of each group in each environment, and of the others against the first group.

    Args:
        groups: at least one; every run has a score.
        score: what counts.
        target: return that runs are to reach; None for that of their recipes.

    Returns:
        JSON: `environments`, each with its `groups`; `all_environments`, the groups by scaled scores where there are
        several environments and every group has them all; `against_first`, the probability of improvement over the
        first group in the environments that both have.
    """
    strata = {env: _strata(groups, env, score) for env in dict.fromkeys(v.env for g in groups for v in g.views)}
    names = [group.name for group in groups]
    complete = len(strata) > 1 and all(len(found) == len(names) for found in strata.values())
    return {
        "score": score,
        "environments": [
            {"env": env, "groups": [_facts(stratum, target) for stratum in found]} for env, found in strata.items()
        ],
        "all_environments": _overall(names, list(strata.values())) if complete else None,
        "against_first": [_against(names[0], name, strata) for name in names[1:]],
    }


def _strata(groups: Sequence[Group], env: str, score: Score) -> list[Stratum]:
    found = []
    for group in groups:
        views = [view for view in group.views if view.env == env]
        scores = [value for view in views if (value := score_of(view, score)) is not None]
        if scores:
            found.append(Stratum(group.name, views, np.asarray(scores)))
    return found


def _facts(stratum: Stratum, target: float | None) -> Row:
    scores, views = stratum.scores, stratum.views
    goals = {view.target for view in views} if target is None else {target}
    goal = next(iter(goals)) if len(goals) == 1 else None
    hits = [_steps_to(view, goal) for view in views] if goal is not None else None
    return {
        "name": stratum.name,
        "runs": [str(view.layout.root) for view in views],
        "scores": scores.tolist(),
        "iqm": float(iqm(scores)),
        "iqm_ci": _interval([scores], iqm),
        "mean": float(scores.mean()),
        "min": float(scores.min()),
        "max": float(scores.max()),
        "steps": [view.steps for view in views],
        "seconds": [round(view.elapsed, 3) for view in views],
        "live": sum(view.is_live for view in views),
        "target": goal,
        "target_steps": hits,
    }


def _steps_to(view: RunView, target: float) -> int | None:
    """Env steps of the first evaluation at the target."""
    rows = (row for row in view.evals.rows if is_number(row.get("return_mean")) and row["return_mean"] >= target)
    return next((int(row["steps"]) for row in rows), None)


def _interval(strata: Sequence[Floats], statistic: Callable[..., Any]) -> list[float] | None:
    """The 95 % interval; None where a stratum is one run, which says nothing about others."""
    if min(len(scores) for scores in strata) < 2:
        return None
    return list(stratified_bootstrap_ci(strata, statistic, SEED))


def _overall(names: Sequence[str], environments: Sequence[Sequence[Stratum]]) -> list[Row]:
    """Interquartile means over the runs of all environments, scaled to the worst and the best run of each."""
    scaled: dict[str, list[Floats]] = {name: [] for name in names}
    for found in environments:
        everyone = np.concatenate([stratum.scores for stratum in found])
        low, span = everyone.min(), np.ptp(everyone)
        for stratum in found:  # where all are alike nobody is better: 0.5
            scaled[stratum.name].append((stratum.scores - low) / span if span else np.full(len(stratum.scores), 0.5))

    def pooled(*strata: Floats) -> Any:  # noqa: ANN401 - scalar or array
        return iqm(np.concatenate(strata, axis=-1))

    return [
        {"name": name, "runs": sum(map(len, each)), "iqm": float(pooled(*each)), "iqm_ci": _interval(each, pooled)}
        for name, each in scaled.items()
    ]


def _against(first: str, other: str, strata: dict[str, list[Stratum]]) -> Row:
    """P(a run of `other` > a run of `first`), the mean over the environments that both have."""
    pairs: list[Floats] = []
    shared = []
    for env, found in strata.items():
        by_name = {stratum.name: stratum.scores for stratum in found}
        if first in by_name and other in by_name:
            pairs += [by_name[other], by_name[first]]
            shared.append(env)

    def mean(*each: Floats) -> Any:  # noqa: ANN401 - scalar or array
        chances = [probability_of_improvement(x, y) for x, y in zip(each[::2], each[1::2], strict=True)]
        return np.mean(chances, axis=0)

    return {
        "name": other,
        "environments": shared,
        "probability": float(mean(*pairs)) if pairs else None,
        "probability_ci": _interval(pairs, mean) if pairs else None,
        "fewest_runs": min(map(len, pairs), default=0),
    }
