import math

import numpy as np
import pytest

from erlcli.runs.jsonl import Appender
from erlcli.tui.app import Dashboard
from erlcli.tui.screens.compare import MOST, CompareScreen, curves_of
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.table import Table

SIZES = [(80, 24), (120, 40), (40, 15)]


async def ready(pilot):
    while not isinstance(pilot.app.screen, CompareScreen) or not pilot.app.screen.query_one(Table).rows.items:
        await pilot.pause(0.01)
    await pilot.pause()


@pytest.fixture
def three(runs_folder, clock):
    """The dashboard with three runs side by side as its first screen."""
    paths = [runs_folder / name for name in ("bipedal_ppo", "bipedal_ppo-2", "cartpole_ppo")]
    app = Dashboard(runs_folder, clock=clock)
    app.screen_for = lambda path: CompareScreen(paths) if path == runs_folder else Dashboard.screen_for(path)
    return app


def test_rows_without_a_number_are_passed_over():
    rows = [
        {"steps": 1, "time/seconds": 0.5, "return_mean": 3.0, "return_ci": [2.0, 5.0]},
        {"steps": 2, "time/seconds": 1.0, "return_mean": "nan"},
        {"steps": 3, "time/seconds": 1.5},
        {"steps": 4, "time/seconds": 2.0, "return_mean": 7, "return_ci": ["nan", 8.0]},
        {"steps": 5, "time/seconds": 2.5, "return_mean": True},
    ]
    curves = curves_of(rows, "return_mean", "return_ci")
    assert curves.steps.tolist() == [1, 4]
    assert curves.seconds.tolist() == [0.5, 2.0]
    assert curves.values.tolist() == [3.0, 7.0]
    assert curves.low.tolist() == [2.0, 7.0]
    assert curves.high.tolist() == [5.0, 8.0]
    assert curves_of([], "x").values.shape == (0,)
    assert curves_of(rows, "return_mean").low is None


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_comparison_looks(snap_compare, three, size):
    assert snap_compare(three, terminal_size=size, run_before=ready)


async def test_t_switches_the_measure_and_x_the_axis(three):
    async with three.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        chart = three.screen.query_one(Chart)
        assert [series.points for series in chart.figure.series] == [True] * 3
        assert chart.figure.axis == "steps"
        assert chart.figure.target is None  # the tasks have different ones
        evaluations = [len(series.x) for series in chart.figure.series]
        await pilot.press("t")
        assert [series.points for series in chart.figure.series] == [False] * 3
        assert all(len(s.x) > n for s, n in zip(chart.figure.series, evaluations, strict=True))
        steps = [series.x for series in chart.figure.series]
        await pilot.press("x")
        assert chart.figure.axis == "seconds"
        assert not any(np.array_equal(a, s.x) for a, s in zip(steps, chart.figure.series, strict=True))
        await pilot.press("t", "x")
        assert (chart.figure.axis, chart.figure.series[0].points) == ("steps", True)


async def test_keys_of_the_chart_work_while_the_table_has_the_focus(three):
    async with three.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        figure = three.screen.query_one(Chart).figure
        assert three.focused is three.screen.query_one(Table)
        await pilot.press("plus")
        assert figure.window is not None
        await pilot.press("left")
        assert figure.cursor is not None
        await pilot.press("0")
        assert (figure.window, figure.cursor) == (None, None)


async def test_figures_of_each_run(three, runs_folder):
    async with three.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        standings = {run.name: run for run in three.screen.query_one(Table).rows.shown}
        assert next(iter(standings)) == "cartpole_ppo"  # the best first
        live = standings["bipedal_ppo-2"]
        assert (live.state, live.color) == ("running", 1)
        assert math.isclose(live.rate * live.elapsed, live.steps, rel_tol=0.01)
        assert three.screen.query_one(Banner).text.startswith("compare BipedalWalker-v3, CartPole-v1")
        await pilot.press("enter")
        await pilot.pause()
        from erlcli.tui.screens.run import RunScreen

        assert isinstance(three.screen, RunScreen)
        await pilot.press("escape")
        assert isinstance(three.screen, CompareScreen)


async def test_new_rows_show(three, runs_folder):
    async with three.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        chart = three.screen.query_one(Chart)
        evals = Appender(runs_folder / "bipedal_ppo-2" / "evals.jsonl")
        evals.append({"attempt": 1, "steps": 99_000_000, "kind": "full", "return_mean": 400.0, "time/seconds": 9e4})
        evals.close()
        while chart.figure.series[1].x[-1] != 99_000_000:
            await pilot.pause(0.01)
        assert three.screen.contenders[1].standing.best == 400.0


async def test_every_size_opens(three):
    async with three.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        for width, height in [(1, 1), (200, 1), (1, 60), (5, 3), (20, 6), (60, 12), (90, 18), (200, 60), (7, 60)]:
            await pilot.resize_terminal(width, height)
            assert three.screen.size == (width, height)


def test_equal_names_are_told_apart_and_too_many_runs_are_left_out(tmp_path):
    screen = CompareScreen([tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "other"])
    assert [contender.name for contender in screen.contenders] == ["a/run", "b/run", "other"]
    screen = CompareScreen([tmp_path / str(number) for number in range(MOST + 3)])
    assert len(screen.contenders) == MOST
    assert screen._left_out == 3
