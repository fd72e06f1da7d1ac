"""The leaderboard and what opens from it."""

import json

import pytest
from textual.widgets import Label

from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.tui.app import Dashboard
from erlcli.tui.screens.board import BoardScreen
from erlcli.tui.screens.compare import CompareScreen
from erlcli.tui.screens.history import HistoryScreen
from erlcli.tui.screens.lineage import LineageScreen
from erlcli.tui.screens.quit import QuitScreen
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.member import Facts, lines_of
from erlcli.tui.widgets.table import Table

SIZES = [(80, 24), (120, 40), (40, 15)]
ODD_SIZES = [
    (1, 1), (200, 1), (1, 60), (2, 2), (3, 5), (5, 3), (20, 6), (59, 11), (60, 12), (89, 29), (90, 30), (200, 60),
    (7, 60), (200, 5), (38, 17), (39, 18),
]  # fmt: skip


async def ready(pilot):
    """Wait for the first rows."""
    while not pilot.app.screen.query(Table) or not pilot.app.screen.query_one(Table).rows.items:
        await pilot.pause(0.01)
    await pilot.pause()


async def until(pilot, condition):
    for _ in range(6000):
        if condition():
            break
        await pilot.pause(0.01)
    else:
        raise AssertionError("it never came to hold")
    await pilot.pause()


def requests(path):
    return [json.loads(file.read_text()) for file in sorted((path / "control" / "requests").glob("*.json"))]


@pytest.fixture
def open_board(clock):
    return lambda path: Dashboard(path, clock=clock)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_board_looks(snap_compare, tournament, open_board, size):
    assert snap_compare(open_board(tournament), terminal_size=size, run_before=ready)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_lineage_looks(snap_compare, tournament, open_board, size):
    async def tree(pilot):
        await ready(pilot)
        await pilot.press("t")
        await ready(pilot)

    assert snap_compare(open_board(tournament), terminal_size=size, run_before=tree)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_history_looks(snap_compare, tournament, open_board, size):
    async def charts(pilot):
        await ready(pilot)
        await pilot.press("g")
        await pilot.pause()

    assert snap_compare(open_board(tournament), terminal_size=size, run_before=charts)


async def test_the_head_tells_how_it_stands(tournament, open_board):
    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        text = app.screen.query_one(Banner).text
        standings = app.screen.standings
        best = standings.entries[0]
        assert text.startswith("tournament  tournament  BipedalWalker-v3dead  elapsed ")
        assert f"slots 0/4  {len(standings.entries)} members" in text  # nobody is at work any more
        counts = standings.counts()
        assert counts["running"] == 0 and sum(counts.values()) == len(standings.entries)
        assert f"champion {standings.champion}" in text
        ids = [entry.id for entry in app.screen.query_one(Table).rows.shown]
        assert ids[0] == best.id
        racing = [entry.state != "retired" for entry in standings.entries]
        assert racing == sorted(racing, reverse=True)
        scores = [entry.score for entry in standings.entries if entry.state != "retired" and entry.score is not None]
        assert scores == sorted(scores, reverse=True)


async def test_moving_shows_another_member_and_marking_overlays_scores(tournament, open_board):
    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        screen, rows = app.screen, app.screen.query_one(Table).rows
        await pilot.press("down")
        facts, chart = screen.query_one(Facts), screen.query_one(Chart)
        assert facts._entry is rows.current
        assert [series.name for series in chart.figure.series] == [rows.cursor]
        await pilot.press("space", "space")
        await pilot.pause()
        assert [series.name for series in chart.figure.series] == screen.marks == list(rows.marks)
        assert [series.color for series in chart.figure.series] == [0, 1]


async def test_new_rows_of_the_journal_show(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        table, standings = app.screen.query_one(Table), app.screen.standings
        member = [entry.id for entry in standings.entries if entry.state != "retired"][-1]
        journal = Appender(live_tournament / "journal.jsonl")
        journal.append({"seq": 10_000, "time": standings.updated + 1, "event": "evaluate", "member": member,
                        "steps": 9_000_000, "mean": 999.0, "std": 1.0, "episodes": 5, "ci": [998, 1000]})  # fmt: skip
        journal.close()
        await until(pilot, lambda: table.rows.shown[0].id == member)
        assert "999.0" in table.render_line(1).text


async def test_enter_opens_the_run_of_a_member_and_escape_returns(tournament, open_board):
    from erlcli.tui.screens.run import RunScreen

    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        member = app.screen.query_one(Table).rows.cursor
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert app.screen.view.layout.root == tournament / "members" / member
        await pilot.press("escape")
        assert isinstance(app.screen, BoardScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, BoardScreen)  # nothing below it


async def test_a_member_without_a_run_directory_is_told_so(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("enter", "space", "v")
        await pilot.pause()
        assert isinstance(app.screen, BoardScreen)
        assert "run directory" in " ".join(note.message for note in app._notifications)


async def test_v_compares_the_marked_members(tournament, open_board):
    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("v")
        assert isinstance(app.screen, BoardScreen)  # nothing is marked
        await pilot.press("space", "space")
        marks = app.screen.marks
        await pilot.press("v")
        await ready(pilot)
        assert isinstance(app.screen, CompareScreen)
        assert [contender.name for contender in app.screen.contenders] == marks
        await pilot.press("escape")
        assert isinstance(app.screen, BoardScreen)


async def test_t_and_g_open_and_escape_returns(tournament, open_board):
    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        for key, kind in (("t", LineageScreen), ("g", HistoryScreen)):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, kind)
            await pilot.press("escape")
            assert isinstance(app.screen, BoardScreen)


async def test_requests_are_offered_only_where_somebody_answers(tournament, open_board):
    app = open_board(tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        assert not {"K", "C", "p", "X", "plus", "minus"} & set(app.screen.active_bindings)
        await pilot.press("K", "K", "C", "p", "X", "X", "plus", "minus")
    assert requests(tournament) == []


async def test_requests_are_files(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        member = app.screen.query_one(Table).rows.cursor
        assert {"K", "C", "p", "X"} <= set(app.screen.active_bindings)
        await pilot.press("C", "p", "K")
        assert [row["do"] for row in requests(live_tournament)] == ["clone", "pause"]  # a kill asks first
        await pilot.press("K", "X", "X")
    rows = [{key: value for key, value in row.items() if key != "id"} for row in requests(live_tournament)]
    assert rows == [
        {"do": "clone", "member": member},
        {"do": "pause"},
        {"do": "kill", "member": member},
        {"do": "stop"},
    ]


async def test_slots_are_asked_for_and_the_answer_is_shown(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        assert app.screen.standings.slots == 4
        await pilot.press("plus", "plus", "minus")
        asked = requests(live_tournament)
        assert [(row["do"], row["count"]) for row in asked] == [("slots", 5), ("slots", 6), ("slots", 5)]
        journal, seq = Appender(live_tournament / "journal.jsonl"), app.screen._reading._journal.board.seq
        facts = {"time": app.screen.standings.updated + 1}
        slots = [f"cpu:{i}" for i in range(5)]
        journal.append({"seq": seq + 1, **facts, "event": "slots", "slots": slots, "request": asked[0]["id"]})
        journal.append({"seq": seq + 2, **facts, "event": "refuse", "do": "slots", "reason": "too many",
                        "request": asked[1]["id"]})  # fmt: skip
        journal.append({"seq": seq + 3, **facts, "event": "slots", "slots": slots, "request": asked[2]["id"]})
        journal.close()
        await until(pilot, lambda: not app.screen._pending)
        said = [notification.message for notification in app._notifications]
        assert "have 5 slots: done" in said
        assert "have 6 slots: refused, too many" in said
        await pilot.press("minus")
        assert requests(live_tournament)[-1]["count"] == 4  # from what there is now


async def test_the_last_slot_stays(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press(*["minus"] * 6)
        assert [row["count"] for row in requests(live_tournament)] == [3, 2, 1]


async def test_slots_are_in_help_and_palette(live_tournament, open_board):
    from erlcli.tui.screens.help import HelpScreen

    app = open_board(live_tournament)
    async with app.run_test(size=(120, 60)) as pilot:
        await ready(pilot)
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert {"One slot more", "One slot less"} <= set(titles)
        keys = dict(pair for _, group in HelpScreen.of(app.screen).groups for pair in group)
        assert keys.get("+") == "One slot more"
        assert keys.get("-") == "One slot less"


async def test_a_second_press_counts_only_for_the_same_member_and_for_a_while(live_tournament, clock):
    times = [clock()]
    app = Dashboard(live_tournament, clock=lambda: times[0])
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("K", "down", "K")
        times[0] += 6.0
        await pilot.press("K")
        assert requests(live_tournament) == []
        await pilot.press("K")
        assert [row["do"] for row in requests(live_tournament)] == ["kill"]


@pytest.mark.parametrize("key", ["", "t", "g"])
async def test_every_size_opens(tournament, open_board, key):
    app = open_board(tournament)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*key)
        for width, height in ODD_SIZES:
            await pilot.resize_terminal(width, height)
            assert app.screen.size == (width, height)


def test_facts_of_a_member(tournament, open_board):
    from erlcli.tui.standings import StandingsReader

    reading = StandingsReader(tournament)
    reading.refresh()
    child = next(entry for entry in reading.latest.entries if entry.parent and entry.score is not None)
    lines = {label: "".join(text for text, _ in words) for label, words in lines_of(child, 60) if label}
    assert lines["member"].startswith(f"{child.id} {child.algorithm}")
    assert lines["score"].startswith(f"{child.score:.1f}  [")
    assert " → " in lines["changes"]
    assert lines["lineage"].endswith(f"{child.parent} → {child.id}")


# Leaving


def finish(path, state="finished"):
    layout = RunLayout(path)
    write_json(layout.status, json.loads(layout.status.read_text()) | {"state": state, "exit_code": 0})


async def test_q_asks_what_shall_become_of_a_live_tournament(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("q")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, BoardScreen)
        await pilot.press("q", "d")
    assert app.return_value == "detached"
    assert not RunLayout(live_tournament).stop_request.exists()


async def test_a_stopped_tournament_is_waited_for(live_tournament, open_board):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("q", "s")
        await until(pilot, lambda: "stopping" in app.screen.query_one(Banner).text)
        assert json.loads(RunLayout(live_tournament).stop_request.read_text()) == {"reason": "user"}
        finish(live_tournament)
        await until(pilot, lambda: not app.is_running)
    assert app.return_value == "stopped"


@pytest.fixture
def open_member(own, writer):
    """Makes the member under the cursor live and opens its run from the board."""

    async def open_from(app, pilot):
        await ready(pilot)
        path = app.screen.path / "members" / app.screen.query_one(Table).rows.cursor
        writer.write_run(path, rows=20, seed=1, state="running")
        own(path)
        await pilot.press("enter")
        await until(pilot, lambda: getattr(app.screen, "_facts", None) is not None and app.screen.view.is_live)
        return path

    return open_from


async def test_q_on_the_run_of_a_member_is_about_the_tournament(live_tournament, open_board, open_member):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        member = await open_member(app, pilot)
        await pilot.press("q")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("s")
        await until(pilot, RunLayout(live_tournament).stop_request.exists)
        assert not RunLayout(member).stop_request.exists()


async def test_x_on_a_member_says_that_it_retires_and_returns_to_the_board(live_tournament, open_board, open_member):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        member = await open_member(app, pilot)
        await pilot.press("x", "d")
        assert isinstance(app.screen, QuitScreen), "nothing is detached from a member"
        assert "retires" in str(app.screen.query_one(Label).render())
        assert app.screen.focused.id == "cancel"
        await pilot.press("s")
        await until(pilot, RunLayout(member).stop_request.exists)
        assert not RunLayout(live_tournament).stop_request.exists()
        finish(member, "interrupted")
        await until(pilot, lambda: isinstance(app.screen, BoardScreen))
        assert app.is_running


async def test_a_member_is_not_asked_for_what_its_tournament_refuses(live_tournament, open_board, open_member):
    app = open_board(live_tournament)
    async with app.run_test(size=(120, 40)) as pilot:
        member = await open_member(app, pilot)
        assert {"space", "p", "c", "l", "x"} & set(app.screen.active_bindings) == {"x"}
        await pilot.press("space", "c", "l")
    assert not RunLayout(member).requests.exists()


async def test_the_end_of_a_members_slice_is_not_that_of_the_dashboard(live_tournament, clock, open_member):
    now = [clock()]
    app = Dashboard(live_tournament, owns=True, clock=lambda: now[0])
    async with app.run_test(size=(120, 40)) as pilot:
        member = await open_member(app, pilot)
        screen = app.screen
        finish(member, "interrupted")
        await until(pilot, lambda: screen.view.state == "interrupted" and not screen._facts.live)
        now[0] += 11
        screen.tick()
        await pilot.pause()
        assert app.screen is screen and not screen.query_one("#notice").display


async def test_the_dashboard_of_a_command_closes_some_time_after_its_tournament(live_tournament, clock):
    now = [clock()]
    app = Dashboard(live_tournament, owns=True, clock=lambda: now[0])
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        finish(live_tournament)
        await until(pilot, lambda: "finished: closing in 10 s" in app.screen.query_one(Banner).text)
        now[0] += 11
        app.screen.tick()
        await pilot.pause()
    assert app.return_value == "closed"
