"""The run screen: how it looks, what its keys do, what it asks of a run and how it closes."""

import json
import os
import time
from pathlib import Path

import pytest
from textual.widgets import Input
from textual.widgets._footer import FooterKey

from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.tui.app import Dashboard
from erlcli.tui.screens.metric_picker import MetricPicker
from erlcli.tui.screens.quit import QuitScreen
from erlcli.tui.screens.run import RunScreen
from erlcli.tui.screens.set_value import SetScreen
from erlcli.tui.widgets.agent import OVER, UNASKED
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.events import Events
from erlcli.tui.widgets.header import RunHeader
from erlcli.tui.widgets.metric_grid import MetricGrid
from erlcli.tui.widgets.processes import Processes

SIZES = [(80, 24), (120, 40), (40, 15)]


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def until(pilot, condition):
    """Lets the app work until something holds; pytest's own time limit is the caller's patience."""
    for _ in range(1000):
        if condition():
            break
        await pilot.pause(0.01)
    else:
        raise AssertionError("it never came to hold")
    await pilot.pause()


async def ready(pilot):
    await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen) and header(pilot.app) is not None)


def header(app):
    return app.screen_stack[1].query_one(RunHeader).facts


def requests(layout):
    return [json.loads(path.read_text()) for path in sorted(layout.requests.glob("*.json"))]


@pytest.fixture
def run(fixed_run, monkeypatch, clock):
    """A live run by a short relative path, whose output is as old as the rest of it."""
    return nearby(fixed_run, monkeypatch, clock)


def nearby(layout, monkeypatch, clock):
    """The run by its path from the folder it lies in, with output as old as the rest."""
    monkeypatch.chdir(layout.root.parent)
    for log in (layout.root / "errors").glob("*.log"):
        os.utime(log, (clock() - 2, clock() - 2))
    return type(layout)(layout.root.relative_to(layout.root.parent))


@pytest.fixture
async def page(run, clock):
    app = Dashboard(run.root, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        yield app, pilot


# Looks


@pytest.mark.parametrize("size", SIZES)
def test_a_live_run_looks(snap_compare, run, clock, size):
    assert snap_compare(Dashboard(run.root, clock=clock), terminal_size=size, run_before=ready)


@pytest.mark.parametrize("size", SIZES)
def test_a_failed_run_looks(snap_compare, failed_run, clock, size, monkeypatch):
    app = Dashboard(nearby(failed_run, monkeypatch, clock).root, clock=clock)
    assert snap_compare(app, terminal_size=size, run_before=ready)


@pytest.mark.parametrize("keys", ["1", "2", "3", "4", "5", "d", "m", "l", "q", "question_mark"])
def test_what_keys_show_looks(snap_compare, run, clock, keys):
    async def press(pilot):
        await ready(pilot)
        await pilot.press(keys)
        await pilot.pause()
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False

    assert snap_compare(Dashboard(run.root, clock=clock), terminal_size=(80, 32), run_before=press)


def test_without_colour_it_looks(snap_compare, run, clock, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(Dashboard(run.root, clock=clock), terminal_size=(80, 24), run_before=ready)


def test_on_the_linux_console_it_looks(snap_compare, run, clock, monkeypatch):
    monkeypatch.setenv("TERM", "linux")
    assert snap_compare(Dashboard(run.root, clock=clock), terminal_size=(80, 24), run_before=ready)


async def test_narrow_and_wide_low_and_high_can_be_drawn(page):
    app, pilot = page
    for width in range(1, 201, 3):
        await pilot.resize_terminal(width, width * 17 % 60 + 1)
    await pilot.resize_terminal(120, 40)
    await pilot.pause()
    assert app.screen.query_one("#metrics").display and app.screen.query_one("#right").display


@pytest.mark.slow
@pytest.mark.parametrize("height", range(1, 61))
async def test_every_size_can_be_drawn(page, height):
    _, pilot = page
    for width in range(1, 201):
        await pilot.resize_terminal(width, height)


async def test_an_empty_run_can_be_drawn(tmp_path, clock):
    (tmp_path / "recipe.toml").write_text("")
    app = Dashboard(tmp_path, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("1", "left", "plus", "2", "2", "m", "escape", "t", "y")
        assert header(app).state == "dead"


# Folding


@pytest.mark.parametrize(
    ("size", "shown", "hidden"),
    [
        ((120, 40), ["curve", "metrics", "throughput", "best", "processes", "gpus", "events"], ["numbers"]),
        ((80, 24), ["curve", "numbers", "throughput", "events"], ["metrics", "best", "processes", "gpus"]),
        ((40, 15), ["header", "curve"], ["numbers", "right", "metrics"]),
        ((40, 5), ["header", "curve"], ["right", "numbers"]),
    ],
)
async def test_panes_fold(page, size, shown, hidden):
    app, pilot = page
    await pilot.resize_terminal(*size)
    await pilot.pause()
    assert all(app.screen.query_one(f"#{name}").size.area > 0 for name in shown)
    assert not any(app.screen.query_one(f"#{name}").display for name in hidden)


async def test_number_keys_give_a_pane_the_screen_and_take_it_back(page):
    app, pilot = page
    for key, name in zip("12345", ["curve", "metrics", "throughput", "processes", "events"], strict=True):
        await pilot.press(key)
        await pilot.pause()
        panes = [pane.id for pane in app.screen.query(".pane") if pane.size.area]
        assert panes == [name]
        assert app.screen.query_one(f"#{name}").outer_size.width == 120
    await pilot.press("5")
    await pilot.pause()
    assert app.screen.query_one("#curve").size.area and app.screen.query_one("#metrics").size.area
    await pilot.press("tab")
    assert app.screen.has_class("-zoomed")
    await pilot.press("shift+tab", "tab", "escape")
    assert not app.screen.has_class("-zoomed")


# Data


async def test_new_rows_and_events_appear(page, run):
    app, pilot = page
    row = dict(app.screen.view.last)
    row |= {"steps": row["steps"] + 16_384, "episode/return": 777.0}
    Appender(run.metrics).append(row)
    Appender(run.events("learner")).append(
        {"time": 1e10, "process": "learner", "attempt": 3, "level": "info", "event": "x", "message": "news"}
    )
    screen = app.screen
    await until(pilot, lambda: header(app).steps == row["steps"])
    await until(
        pilot, lambda: "news" in screen.query_one(Events).render_line(screen.query_one(Events).size.height - 1).text
    )
    assert screen.query_one(Chart).figure.series[0].y[-1] == 777.0


async def test_what_a_process_prints_lands_in_the_events_without_control_characters(page, run):
    app, pilot = page
    with run.output("learner").open("ab") as log:
        log.write(b"\x1b[2J\x1b[31mred\x1b[0m \x07alert\r\n")
    events = app.screen.query_one(Events)
    await until(pilot, lambda: "> red alert" in events.render_line(events.size.height - 1).text)


async def test_idle_it_draws_nothing(page):
    app, pilot = page
    drawn = []
    for widget in app.screen.query(".pane, RunHeader, MetricLine"):
        widget.draw = lambda *a, _draw=widget.draw, _id=widget.id: (drawn.append(_id), _draw(*a))[1]
    await pilot.pause(0.6)  # two looks at the files
    app.screen.tick()
    await pilot.pause()
    assert drawn == []


async def test_a_late_heartbeat_is_seen(page, clock):
    app, pilot = page
    app.clock = lambda: clock() + 60
    app.screen.tick()
    await pilot.pause()
    assert "1:00" in app.screen.query_one(Processes).render_line(1).text
    assert all(row.late for row in app.screen.query_one(Processes).rows)


# Views


async def test_the_axis_changes_to_time_and_back(page):
    app, pilot = page
    await pilot.press("t")
    chart = app.screen.query_one(Chart)
    assert chart.figure.axis == "seconds" and chart.figure.view[1] < 1000
    await pilot.press("t")
    assert chart.figure.axis == "steps"


async def test_levels_and_search_choose_events(page):
    app, pilot = page
    events = app.screen.query_one(Events)
    for level in ("warnings", "errors", "output", "all"):
        await pilot.press("e")
        assert events.level == level
    await pilot.press("slash", *"sigkill", "enter")
    await pilot.pause()
    shown = [events.render_line(y).text for y in range(events.size.height)]
    assert any("learner was killed" in line for line in shown) and not any("saved" in line for line in shown)
    assert events.border_title == "events /sigkill" and app.screen.focused.id == "curve"
    await pilot.press("escape")
    assert events.border_title == "events"


async def test_what_is_searched_for_is_text_and_escape_leaves_the_search(page):
    """Brackets would be markup, and break the title."""
    app, pilot = page
    screen, events = app.screen, app.screen.query_one(Events)
    await pilot.press("slash", "[", "/")
    await pilot.pause()
    assert events.search == "[/" and str(events.border_title).endswith("[/")
    await pilot.press("escape")
    await pilot.pause()
    assert not events.search and not screen.has_class("-searching")
    assert not isinstance(screen.focused, Input) and app.screen is screen


async def test_a_look_at_the_metrics_chooses_none(page):
    app, pilot = page
    screen = app.screen
    await pilot.press("m", "escape")
    await pilot.pause()
    assert app.screen is screen and screen.chosen is None


async def test_events_scroll_and_follow_again(page):
    app, pilot = page
    events = app.screen.query_one(Events)
    newest = events.render_line(events.size.height - 1).text
    await pilot.press("home")
    await pilot.pause()
    assert "64 x BipedalWalker" in events.render_line(0).text and "scrolled" in events.border_title
    await pilot.press("down", "pagedown", "up", "pageup", "end")
    await pilot.pause()
    assert events.render_line(events.size.height - 1).text == newest and events.border_title == "events"


async def test_any_metric_can_be_picked(page):
    app, pilot = page
    await pilot.press("m")
    assert isinstance(app.screen, MetricPicker)
    await pilot.press(*"length", "enter", "escape")
    await pilot.pause()
    grid = app.screen.query_one(MetricGrid)
    assert grid.minis[-1].name == "episode/length" and len(grid.minis) > 5
    await pilot.press("m", *"entropy", "down", "up", "enter", "escape")
    await pilot.pause()
    assert "policy/entropy" not in [mini.name for mini in grid.minis]
    await pilot.press("m", "ctrl+r")
    await pilot.pause()
    assert "policy/entropy" in [mini.name for mini in grid.minis]


async def test_the_command_that_shows_this_is_copied(page):
    app, pilot = page
    await pilot.press("y")
    assert app.clipboard == "erl watch bipedal_ppo"
    await pilot.press("1", "t", "y")
    assert app.clipboard == "erl plot bipedal_ppo --x time"


async def test_the_agent_is_shown_and_asked_for(page, run):
    app, pilot = page
    assert not run.agent_request.exists()
    await pilot.press("a")
    await until(pilot, run.agent_request.exists)
    assert app.screen.query_one("#agent").size.area
    await pilot.press("a")
    await pilot.pause()
    assert not app.screen.query_one("#agent").display


async def test_a_film_that_cant_be_asked_for_is_told_once_in_its_pane(page, run, monkeypatch):
    app, pilot = page
    asked = []

    def readonly(layout):
        asked.append(layout)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("erlcli.runs.control.watch_agent", readonly)
    monkeypatch.setattr("erlcli.tui.screens.run.WATCH_EVERY_SECONDS", 0.0)
    await pilot.press("a")
    await until(pilot, lambda: len(asked) >= 2)
    await until(pilot, lambda: app.screen.query_one("#agent").lack == UNASKED)
    assert not app._notifications


async def test_a_run_that_is_over_will_have_no_film(finished_run, clock):
    app = Dashboard(finished_run.root, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("a")
        await until(pilot, lambda: app.screen.query("#agent") and app.screen.query_one("#agent").lack == OVER)


async def test_in_a_small_terminal_the_agent_has_the_screen(page):
    app, pilot = page
    await pilot.resize_terminal(80, 24)
    await pilot.press("a")
    await until(pilot, lambda: app.screen.query_one("#agent").size.area > 0)
    assert not app.screen.query_one("#curve").size.area
    await pilot.press("a")
    await until(pilot, lambda: app.screen.query_one("#curve").size.area > 0)


async def test_a_screenshot_is_saved_here(page, tmp_path, monkeypatch):
    _app, pilot = page
    monkeypatch.chdir(tmp_path)
    await pilot.press("s")
    (picture,) = tmp_path.glob("erl-*.svg")
    assert "BipedalWalker" in picture.read_text()


@pytest.mark.parametrize("size", SIZES)
async def test_the_way_to_help_and_out_is_on_every_footer(page, size):
    app, pilot = page
    await pilot.resize_terminal(*size)
    await pilot.pause()
    shown = [key.action for key in app.screen.query(FooterKey) if key.region.right <= size[0]]
    assert shown[:2] == ["help", "leave"] and len(shown) > 2


async def test_help_has_every_key(page):
    app, pilot = page
    bindings = {b.description for b in (*RunScreen.BINDINGS, *Chart.BINDINGS, *Dashboard.BINDINGS)}
    await pilot.press("question_mark")
    told = {what for _, rows in app.screen.groups for _, what in rows}
    assert bindings <= told
    await pilot.press("down", "up", "escape")
    assert isinstance(app.screen, RunScreen)


async def test_the_palette_has_every_key(page):
    app, _ = page
    told = {command.title for command in app.get_system_commands(app.screen)}
    assert {"Pause", "Checkpoint", "Stop", "Set", "Zoom in", "Light or dark"} <= told


# Requests


async def answer(run, found, message, level="info"):
    Appender(run.events("learner")).append(
        {"time": 1e10, "process": "learner", "attempt": 3, "level": level, "event": "request", "message": message}
        | {"request": found["id"], "do": found["do"]}
    )


@pytest.mark.parametrize(("key", "kind"), [("space", "pause"), ("p", "pause"), ("c", "checkpoint")])
async def test_requests_are_written_and_their_answers_shown(page, run, key, kind):
    app, pilot = page
    await pilot.press(key)
    (found,) = requests(run)
    assert found["do"] == kind
    assert header(app).asked.startswith("asked to ")
    await answer(run, found, "done at 1 step")
    await until(pilot, lambda: not header(app).asked)
    assert [note.message for note in app._notifications] == ["done at 1 step"]


async def test_a_refusal_is_a_warning(page, run):
    app, pilot = page
    await pilot.press("c")
    await answer(run, requests(run)[0], "refused: disk full", level="warning")
    await until(pilot, lambda: not header(app).asked)
    assert [note.severity for note in app._notifications] == ["warning"]


async def test_a_paused_run_goes_on(page, run):
    app, pilot = page
    status = json.loads(run.status.read_text())
    write_json(run.status, status | {"state": "paused"})
    await until(pilot, lambda: header(app).state == "paused")
    await pilot.press("space")
    assert requests(run)[0]["do"] == "resume"


async def test_what_the_learner_answered_counts_before_the_status_says_so(page, run):
    app, pilot = page
    await pilot.press("space")
    await answer(run, requests(run)[-1], "paused")
    await until(pilot, lambda: not header(app).asked)
    assert header(app).state == "running"
    await pilot.press("space")
    assert requests(run)[-1]["do"] == "resume"


async def test_a_value_is_set(page, run):
    app, pilot = page
    await pilot.press("l")
    assert isinstance(app.screen, SetScreen)
    await pilot.press("down", "up", *"nan", "enter")
    assert isinstance(app.screen, SetScreen), "no number, no answer"
    app.screen.query_one(Input).value = "3e-4"
    await pilot.press("enter")
    (found,) = requests(run)
    assert (found["do"], found["key"], found["value"]) == ("set", "algorithm.learning_rate", 3e-4)
    await pilot.press("l", "escape")
    assert len(requests(run)) == 1


async def test_a_directory_that_cant_be_written_is_told(page, run, monkeypatch):
    app, pilot = page

    def full(*args, **facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("erlcli.runs.control.request", full)
    await pilot.press("c")
    await pilot.pause()
    assert "No space left" in next(note.message for note in app._notifications)
    assert not header(app).asked


# The end


@pytest.mark.parametrize(("keys", "result"), [(["q", "d"], "detached"), (["q", "enter"], "detached")])
async def test_detach_leaves_the_run_alone(run, clock, keys, result):
    app = Dashboard(run.root, clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*keys)
    assert app.return_value == result
    assert not run.stop_request.exists()


async def test_cancel_changes_nothing(page, run):
    app, pilot = page
    for key in ("escape", "q"):
        await pilot.press("q")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press(key)
        assert isinstance(app.screen, RunScreen)
    assert not run.stop_request.exists() and app.return_value is None


@pytest.mark.parametrize("keys", [["q", "s"], ["x", "s"], ["ctrl+c", "ctrl+c"]])
async def test_stop_waits_for_the_run_and_then_leaves(fixed_run, clock, keys):
    app = Dashboard(fixed_run.root, clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*keys)
        await pilot.pause()
        assert json.loads(fixed_run.stop_request.read_text()) == {"reason": "user"}
        assert header(app).asked == "stopping …" and app.is_running
        status = json.loads(fixed_run.status.read_text())
        write_json(fixed_run.status, status | {"state": "interrupted", "exit_code": 130})
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value == "stopped"


async def test_a_second_quit_does_not_wait(run, clock):
    app = Dashboard(run.root, clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("q", "s", "q")
    assert app.return_value == "stopped"


async def test_a_run_that_is_over_closes_at_once_and_takes_no_requests(finished_run, clock):
    app = Dashboard(finished_run.root, clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("space", "c", "l", "x")
        assert isinstance(app.screen, RunScreen) and not finished_run.requests.exists()
        await pilot.press("q")
    assert app.return_value == "closed"


async def test_the_dashboard_of_a_command_closes_some_time_after_its_run(fixed_run, clock):
    now = [clock()]
    app = Dashboard(fixed_run.root, owns=True, clock=lambda: now[0])
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        status = json.loads(fixed_run.status.read_text())
        write_json(fixed_run.status, status | {"state": "finished", "exit_code": 0})
        await until(pilot, lambda: app.screen.query_one("#notice").display)
        assert "finished: closing in 10 s" in str(app.screen.query_one("#notice").render())
        now[0] += 11
        app.screen.tick()
        await pilot.pause()
    assert app.return_value == "closed"


async def test_any_key_keeps_it_open(fixed_run, clock):
    now = [clock()]
    app = Dashboard(fixed_run.root, owns=True, clock=lambda: now[0])
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        status = json.loads(fixed_run.status.read_text())
        write_json(fixed_run.status, status | {"state": "finished", "exit_code": 0})
        await until(pilot, lambda: app.screen.query_one("#notice").display)
        await pilot.press("j")
        now[0] += 11
        app.screen.tick()
        await pilot.pause()
        assert app.is_running and not app.screen.query_one("#notice").display


async def test_a_directory_that_is_gone_is_told(page, run):
    app, pilot = page
    run.root.rename("elsewhere")
    notice = app.screen.query_one("#notice")
    await until(pilot, lambda: notice.display)
    assert "moved or deleted" in str(notice.render())
    RunLayout(Path("elsewhere")).root.rename(run.root)
    await until(pilot, lambda: not notice.display)


@pytest.mark.parametrize("size", [(200, 50), (60, 20), (40, 15)])
async def test_the_question_is_whole(page, size):
    app, pilot = page
    await pilot.resize_terminal(*size)
    await pilot.press("q")
    await pilot.pause()
    dialog = app.screen.query_one(".dialog")
    assert all(dialog.region.contains_region(node.region) for node in app.screen.query("Label, Button"))
    words = " ".join(" ".join(strip.text for strip in app.screen._compositor.render_strips()).split())
    assert "training goes on." in words.replace("│ ", "") and "esc Cancel" in words


async def test_a_dead_supervisor_is_seen(clock, tmp_path, writer):
    layout = writer.write_run(tmp_path / "run", rows=50, state="running", seed=1)
    lock = RunLock.acquire(layout.lock)
    app = Dashboard(layout.root, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        assert header(app).state == "running"
        lock.release()
        await until(pilot, lambda: header(app).state == "dead")
        assert "space" not in {key for key, bound in app.screen.active_bindings.items() if bound.enabled}
