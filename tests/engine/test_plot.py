from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erlcli.engine import plot
from erlcli.engine.groups import Group, labels
from erlcli.engine.plot import Line, Options, line_of, mean_of, metric_names, save, series_of, smoothed
from erlcli.engine.plot_comparison import runs
from erlcli.errors import RecipeError
from erlcli.runs.layout import RunLayout
from erlcli.runs.view import RunView

RECIPE = """
[train]
total_steps = 1000
seed = {seed}
[env]
id = "CartPole-v1"
[algorithm]
name = "ppo"
gamma = {gamma}
"""


def make_run(
    root: Path, values: list[float], *, seed: int = 0, gamma: float = 0.99, target: float | None = None
) -> RunView:
    """A run with a metric row every 100 steps and an evaluation every 200."""
    layout = RunLayout(root)
    root.mkdir(parents=True)
    layout.recipe.write_text(RECIPE.format(seed=seed, gamma=gamma))
    status = {"env": "CartPole-v1", "algorithm": "ppo", "target_return": target, "state": "finished"}
    layout.status.write_text(json.dumps(status))
    metrics: list[dict[str, Any]] = []
    evals: list[dict[str, Any]] = []
    for number, value in enumerate(values, 1):
        where = {
            "attempt": 1,
            "steps": 100 * number,
            "version": number,
            "time/seconds": 60.0 * number,
            "time/wall": 5e9,
        }
        metrics.append({**where, "episode/return": value, "loss/value": -value})
        if number % 2 == 0:
            ci = {"return_ci": [value - 1, value + 2]}
            evals.append({**where, "kind": "full", "return_mean": value + 10, "return_std": 1.0, **ci})
    for path, rows in ((layout.metrics, metrics), (layout.evals, evals)):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = RunView(layout)
    view.refresh()
    return view


def test_smoothing_by_hand() -> None:
    values = np.asarray([1.0, 2, 6, 3, 8])
    assert smoothed(values, 1).tolist() == [1, 2, 6, 3, 8]
    assert smoothed(values, 3).tolist() == pytest.approx([1.5, 3, 11 / 3, 17 / 3, 5.5])
    assert smoothed(values, 2).tolist() == [1.5, 4, 4.5, 5.5, 8]
    assert smoothed(values, 100).tolist() == pytest.approx([4.0] * 5)


def test_lines_of_training_and_evaluation(tmp_path: Path) -> None:
    view = make_run(tmp_path / "run", [1, 2, 6, 3])
    training = line_of(view, "episode/return", Options(smooth=3))
    assert training is not None
    assert training.x.tolist() == [100, 200, 300, 400]
    assert training.y.tolist() == pytest.approx([1.5, 3, 11 / 3, 4.5])
    assert training.low is None
    evaluation = line_of(view, "eval/return_mean", Options(x="time", smooth=3))
    assert evaluation is not None
    assert evaluation.x.tolist() == [120, 240]
    assert evaluation.y.tolist() == [12, 13]  # never smoothed
    assert evaluation.low is not None
    assert evaluation.high is not None
    assert (evaluation.low.tolist(), evaluation.high.tolist()) == ([1, 2], [4, 5])
    spread = line_of(view, "eval/return_std", Options())
    assert spread is not None
    assert spread.low is None
    assert line_of(view, "loss/nothing", Options()) is None


def test_metric_names_are_the_columns_that_can_be_drawn(tmp_path: Path) -> None:
    view = make_run(tmp_path / "run", [1, 2])
    assert metric_names([view]) == [
        "episode/return", "eval/return_mean", "eval/return_std", "eval/time/seconds", "loss/value", "time/seconds",
    ]  # fmt: skip


def test_labels_take_as_much_of_the_path_as_it_needs(tmp_path: Path) -> None:
    views = [RunView(RunLayout(tmp_path / name)) for name in ("a/one", "b/one", "a/two")]
    assert labels(views[:1]) == ["one"]
    assert labels(views[::2]) == ["one", "two"]
    assert labels(views) == ["a/one", "b/one", "a/two"]
    assert labels([views[0], views[0]]) == ["one", "one"]


def test_groups_are_runs_that_differ_in_their_seed_alone(tmp_path: Path) -> None:
    views = [
        make_run(tmp_path / "base-1", [0, 0], seed=1),
        make_run(tmp_path / "base-2", [2, 4], seed=2),
        make_run(tmp_path / "other", [9, 9], gamma=0.5),
    ]
    base, other = series_of(views, Options(group=True))
    assert (base.label, other.label) == ("base, 2 runs", "other")
    assert base.lines["episode/return"].y[[0, -1]].tolist() == [1, 2]
    assert base.lines["eval/return_mean"].y.tolist() == [12]
    assert other.lines["episode/return"].y.tolist() == [9, 9]
    assert [series.label for series in series_of(views, Options())] == ["base-1", "base-2", "other"]


def test_groups_without_a_common_name_are_called_by_what_they_train(tmp_path: Path) -> None:
    views = [make_run(tmp_path / name, [1, 2], seed=seed) for seed, name in enumerate(("first", "second"))]
    assert series_of(views, Options(group=True))[0].label == "CartPole-v1 ppo, 2 runs"


def test_the_mean_of_runs_and_its_band_by_hand() -> None:
    short = Line(np.asarray([0.0, 10]), np.asarray([0.0, 10]))
    late = Line(np.asarray([5.0, 15]), np.asarray([25.0, 35]))
    mean = mean_of([short, late], "group")
    assert (mean.x[0], mean.x[-1]) == (5, 10)  # where both have values
    assert mean.y[[0, -1]].tolist() == pytest.approx([15, 20])  # of 5 and 25, of 10 and 30
    assert mean.low is not None
    assert mean.high is not None
    # Two runs drawn twice give one of them alone a quarter of the time: the band spans both.
    assert mean.low[[0, -1]].tolist() == pytest.approx([5, 10])
    assert mean.high[[0, -1]].tolist() == pytest.approx([25, 30])


def test_runs_without_common_steps_are_named() -> None:
    early = Line(np.asarray([0.0, 10]), np.zeros(2))
    late = Line(np.asarray([20.0, 30]), np.zeros(2))
    with pytest.raises(RecipeError, match="group: its runs have no steps in common"):
        mean_of([early, late], "group")


def texts_of(path: Path) -> str:
    """An SVG keeps its texts as such."""
    return path.read_text()


def test_one_run_shows_target_best_and_both_curves(tmp_path: Path) -> None:
    view = make_run(tmp_path / "mine", [1, 2, 6, 3], target=475)
    save([view], tmp_path / "new" / "curve.svg")
    text = texts_of(tmp_path / "new" / "curve.svg")
    for wanted in (
        "target 475",
        "best 13.0",
        "mine",
        "CartPole-v1  ppo",
        "training (last",
        "evaluation (mean",
        "steps",
    ):
        assert wanted in text
    assert os.listdir(tmp_path / "new") == ["curve.svg"]


def test_several_runs_are_named_once_each(tmp_path: Path) -> None:
    views = [make_run(tmp_path / f"run{i}", [1, 2, i], target=100) for i in range(9)]  # more than there are colors
    save(views, tmp_path / "curves.svg", Options(x="time"))
    text = texts_of(tmp_path / "curves.svg")
    assert [text.count(f">run{i}<") for i in range(9)] == [1] * 9
    assert text.count("target 100") == 1
    assert "training time (minutes)" in text


def test_bands_of_groups_are_called_what_they_are(tmp_path: Path) -> None:
    views = [make_run(tmp_path / f"run{i}", [1, 2, i, 4], target=100 + i) for i in range(3)]
    for sizes, told in (
        ((1, 1), "95% CI over episodes; thin"),
        ((2,), "means, 95% CI over runs; thin"),
        ((2, 1), "means, 95% CI over runs; 95% CI over episodes; thin"),
    ):
        rest = iter(views)
        groups = [Group(str(place), [next(rest) for _ in range(size)]) for place, size in enumerate(sizes)]
        runs(groups, tmp_path / "groups.svg")
        text = texts_of(tmp_path / "groups.svg")
        assert f">{told}" in text and "target 100" in text and "target 101" in text


def test_another_metric_is_drawn_alone(tmp_path: Path) -> None:
    save([make_run(tmp_path / "mine", [1, 2], target=475)], tmp_path / "loss.svg", Options(metric="loss/value"))
    text = texts_of(tmp_path / "loss.svg")
    assert "loss/value" in text
    assert "target" not in text


def test_a_run_that_has_just_started_can_be_drawn(tmp_path: Path) -> None:
    save([make_run(tmp_path / "empty", [])], tmp_path / "empty.svg")
    assert "no data yet" in texts_of(tmp_path / "empty.svg")
    save([make_run(tmp_path / "point", [1])], tmp_path / "point.png")
    assert (tmp_path / "point.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_replaced_only_by_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view, path = make_run(tmp_path / "run", [1, 2]), tmp_path / "plots" / "curve.png"
    save([view], path)
    before = path.read_bytes()

    def fail(source: Path, target: Path) -> None:
        raise OSError("disk error")

    monkeypatch.setattr(plot.os, "replace", fail)
    with pytest.raises(OSError, match="disk error"):
        save([view], path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["curve.png"]


def test_the_units_of_time_suit_the_longest_run() -> None:
    def unit(longest: float) -> tuple[float, str]:
        line = Line(np.asarray([0.0, longest]), np.zeros(2))
        return plot._unit([plot.Series("run", {"loss": line})])

    assert unit(100) == (1.0, "training time (seconds)")
    assert unit(600) == (60.0, "training time (minutes)")
    assert unit(3 * 3600) == (3600.0, "training time (hours)")
    assert unit(5 * 86400) == (86400.0, "training time (days)")


@pytest.mark.filterwarnings("error")
def test_names_that_the_font_lacks_are_no_warning(tmp_path):
    with plot.canvas() as figure:
        figure.add_subplot().set_title("é日本")
        plot.save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
