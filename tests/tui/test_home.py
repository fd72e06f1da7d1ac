import json
import shutil
from pathlib import Path

import pytest

from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.tui.app import Dashboard
from erlcli.tui.screens.board import BoardScreen
from erlcli.tui.screens.compare import CompareScreen
from erlcli.tui.screens.home import HomeScreen, age_of
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.table import Table

SIZES = [(80, 24), (120, 40), (40, 15)]


async def ready(pilot):
    while not pilot.app.screen.query(Table) or not pilot.app.screen.query_one(Table).rows.items:
        await pilot.pause(0.01)
    await pilot.pause()


@pytest.fixture
def home(runs_folder, monkeypatch, clock):
    """The dashboard on a folder whose name is the same in every test."""
    monkeypatch.chdir(runs_folder.parent)
    return Dashboard(Path("runs"), clock=clock)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_home_looks(snap_compare, home, size):
    assert snap_compare(home, terminal_size=size, run_before=ready)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_empty_folder_looks(snap_compare, tmp_path, monkeypatch, clock, size):
    async def told(pilot):
        table = pilot.app.screen.query_one(Table)
        while "no runs" not in table.render_line(1).text:
            await pilot.pause(0.01)

    monkeypatch.chdir(tmp_path)
    assert snap_compare(Dashboard(Path("runs"), clock=clock), terminal_size=size, run_before=told)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "now"), (4.9, "now"), (5, "5 s"), (59.9, "59 s"), (60, "1 min"), (3_600, "1 h"), (90_000, "1 d")],
)
def test_ages(seconds, words):
    assert age_of(seconds) == words


async def test_live_runs_come_first(home):
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        items = home.screen.query_one(Table).rows.shown
        assert [item.run.live for item in items] == [True, True, False, False, False, False, False]
        assert home.screen.query_one(Banner).text == "erl  runs7 runs  2 live"


async def test_one_run_is_one(tmp_path, clock):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "recipe.toml").touch()
    home = Dashboard(tmp_path, clock=clock)
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        assert "1 run  0 live" in home.screen.query_one(Banner).text


async def test_enter_opens_a_run_and_escape_returns(home):
    from erlcli.tui.screens.run import RunScreen

    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("slash", *"cartpole", "enter", "enter")
        await pilot.pause()
        assert isinstance(home.screen, RunScreen)
        assert home.screen.view.layout.root == Path("runs/cartpole_ppo")
        await pilot.press("escape")
        assert isinstance(home.screen, HomeScreen)
        await pilot.press("escape")  # the search
        assert len(home.screen.query_one(Table).rows.shown) == 7
        await pilot.press("escape")
        assert isinstance(home.screen, HomeScreen)


async def test_a_run_that_is_stopped_from_here_leaves_the_dashboard_open(home, runs_folder):
    layout = RunLayout(runs_folder / "bipedal_ppo-2")
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("slash", *"ppo-2", "enter", "enter")
        while not getattr(home.screen, "_facts", None):
            await pilot.pause(0.01)
        await pilot.press("x", "s")
        await pilot.pause()
        assert json.loads(layout.stop_request.read_text()) == {"reason": "user"}
        write_json(layout.status, json.loads(layout.status.read_text()) | {"state": "interrupted", "exit_code": 130})
        while not isinstance(home.screen, HomeScreen):
            await pilot.pause(0.01)
        assert home.is_running


async def test_enter_opens_a_tournament(home):
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("slash", *"tournament", "enter", "enter")
        await pilot.pause()
        assert isinstance(home.screen, BoardScreen)


async def test_v_compares_the_marked_runs_without_tournaments(home):
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("v")
        assert isinstance(home.screen, HomeScreen)  # nothing is marked
        await pilot.press("slash", *"cup", "enter", "space", "v")
        assert isinstance(home.screen, HomeScreen)  # only a tournament is
        await pilot.press("escape", "home", "space", "space", "v")
        await ready(pilot)
        assert isinstance(home.screen, CompareScreen)
        assert len(home.screen.contenders) == 2


async def test_v_says_which_of_the_marked_it_leaves_out(home):
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("slash", *"cup", "enter", "space", "escape", "home", "space", "v")
        await ready(pilot)
        assert isinstance(home.screen, CompareScreen)
        said = [note.message for note in home._notifications]
        assert said == ["1 tournament left out: open one to compare its members"]


async def test_every_size_opens(home):
    async with home.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        for width, height in [(1, 1), (200, 1), (1, 60), (5, 3), (20, 6), (60, 12), (90, 18), (200, 60), (7, 60)]:
            await pilot.resize_terminal(width, height)
            assert home.screen.size == (width, height)


async def test_runs_come_and_go(home, runs_folder):
    async with home.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        table = home.screen.query_one(Table)
        shutil.rmtree(runs_folder / "hopper_ppo")
        while len(table.rows.items) != 6:
            await pilot.pause(0.01)
        assert "hopper_ppo" not in [item.run.name for item in table.rows.shown]


async def test_a_folder_that_cant_be_read_is_told(tmp_path, clock):
    (tmp_path / "file").touch()
    app = Dashboard(tmp_path / "file", clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        while "can't be read" not in app.screen.query_one(Banner).text:
            await pilot.pause(0.01)
