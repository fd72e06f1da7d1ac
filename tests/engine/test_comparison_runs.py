"""Groups of runs against each other, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from erlcli.engine.comparison_runs import compare, score_of
from erlcli.engine.groups import Group, by_algorithm, by_recipe
from erlcli.engine.plot_comparison import runs as draw
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView


def make_run(
    root: Path, returns: list[float], *, env: str = "Pole-v1", algorithm: str = "ppo", seed: int = 0, kind: str = "full"
) -> RunView:
    """A finished run with an evaluation every 100 steps."""
    layout = RunLayout(root)
    root.mkdir(parents=True)
    layout.recipe.write_text(f'[train]\nseed = {seed}\n[env]\nid = "{env}"\n[algorithm]\nname = "{algorithm}"\n')
    status = {"env": env, "algorithm": algorithm, "target_return": 50.0, "state": "finished", "steps": 900}
    layout.status.write_text(json.dumps(status))
    rows: list[dict[str, Any]] = [
        {"attempt": 1, "steps": 100 * n, "kind": kind, "return_mean": value, "return_ci": [value - 1, value + 1]}
        for n, value in enumerate(returns, 1)
    ]
    layout.evals.write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = RunView(layout)
    view.refresh()
    return view


def test_scores_are_of_the_last_evaluation_or_of_the_best_full_one(tmp_path: Path) -> None:
    view = make_run(tmp_path / "run", [10, 60, 20])
    assert (score_of(view, "final"), score_of(view, "best")) == (20, 60)
    probed = make_run(tmp_path / "probed", [30], kind="probe")
    assert (score_of(probed, "final"), score_of(probed, "best")) == (30, None)
    assert score_of(make_run(tmp_path / "young", []), "final") is None


def test_figures_of_one_environment_by_hand(tmp_path: Path) -> None:
    old = Group("old", [make_run(tmp_path / f"old-{n}", [0, 10.0 * n], seed=n) for n in range(1, 5)])  # 10 20 30 40
    new = Group("new", [make_run(tmp_path / f"new-{n}", [60.0, value]) for n, value in enumerate((35.0, 55.0))])
    made = compare([old, new], "final", None)
    one, two = made["environments"][0]["groups"]
    assert made["environments"][0]["env"] == "Pole-v1"
    assert (one["scores"], one["iqm"], one["mean"]) == ([10, 20, 30, 40], 25, 25)
    assert one["runs"] == [str(tmp_path / f"old-{n}") for n in range(1, 5)]
    assert (one["min"], one["max"], one["steps"]) == (10, 40, [900] * 4)
    assert (one["target"], one["target_steps"]) == (50, [None] * 4)
    assert two["target_steps"] == [100, 100]
    assert two["iqm_ci"] == [35, 55]
    (against,) = made["against_first"]
    assert against["probability"] == pytest.approx((3 + 4) / 8)
    low, high = against["probability_ci"]
    assert 0.375 <= low < 0.875 < high == 1.0
    assert against["fewest_runs"] == 2
    assert made["all_environments"] is None
    assert compare([old, new], "final", 20.0)["environments"][0]["groups"][0]["target_steps"] == [None, 200, 200, 200]


def test_environments_are_strata(tmp_path: Path) -> None:
    """In Pole b wins (1 of 1), in Walk it loses 3 of 4 pairs: on average 0.625. Returns are scaled, never mixed."""

    def group(name: str, pole: list[float], walk: list[float]) -> Group:
        views = [make_run(tmp_path / f"{name}-pole-{n}", [value]) for n, value in enumerate(pole)]
        views += [make_run(tmp_path / f"{name}-walk-{n}", [v], env="a/Walk") for n, v in enumerate(walk)]
        return Group(name, views)

    groups = [group("a", [1.0], [600.0, 800.0]), group("b", [2.0], [700.0, 400.0])]
    made = compare(groups, "final", None)
    (against,) = made["against_first"]
    assert against["environments"] == ["Pole-v1", "a/Walk"]
    assert against["probability"] == pytest.approx((1 + 1 / 4) / 2)
    assert against["probability_ci"] is None  # one run of a stratum says nothing about others
    a, b = made["all_environments"]
    assert (a["runs"], b["runs"]) == (3, 3)
    assert a["iqm"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert b["iqm"] == pytest.approx((1 + 0.75 + 0) / 3)
    assert a["iqm_ci"] is None
    alone = Group("c", [make_run(tmp_path / "c", [1.0], env="Else")])
    made = compare([*groups, alone], "final", None)
    assert made["all_environments"] is None
    assert made["against_first"][1]["probability"] is None
    assert made["against_first"][1]["environments"] == []


def test_groups_by_recipe_and_by_algorithm(tmp_path: Path) -> None:
    views = [
        make_run(tmp_path / "x" / "cart-1", [1], seed=1),
        make_run(tmp_path / "x" / "walk", [1], env="Walk"),
        make_run(tmp_path / "x" / "cart-2", [1], seed=2),
        make_run(tmp_path / "x" / "soft", [1], algorithm="sac"),
    ]
    assert [(g.name, len(g.views)) for g in by_recipe(views)] == [("cart", 2), ("walk", 1), ("soft", 1)]
    assert [(g.name, len(g.views)) for g in by_algorithm(views)] == [("ppo", 3), ("sac", 1)]


def test_groups_that_would_be_called_alike_are_told_apart(tmp_path: Path) -> None:
    views = [make_run(tmp_path / f"run-{n}", [1], env="ab"[n // 2], seed=n) for n in range(4)]
    assert [group.name for group in by_recipe(views)] == ["run-0", "run-2"]


def test_a_group_without_steps_in_common_is_drawn_run_by_run(tmp_path: Path) -> None:
    apart = Group("apart", [make_run(tmp_path / "short", [1]), make_run(tmp_path / "long", [1, 2])])
    apart.views[1].evals.rows.pop(0)  # 100 steps of the one, 200 of the other
    draw([apart], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.count("apart") >= 1
    assert "target 50" in text
