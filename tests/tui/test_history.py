import math

import pytest

from erlcli.runs.jsonl import Appender
from erlcli.tui.app import Dashboard
from erlcli.tui.screens.history import HistoryScreen, lines_of, scale_of
from erlcli.tui.standings import StandingsReader
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.chart import Chart
from erlcli.tui.widgets.member import shown
from erlcli.tui.widgets.table import Table


def test_numbers_stay_and_wide_ones_are_shown_by_their_logarithm():
    assert scale_of([0.1, 0.5]) == ("", {0.1: 0.1, 0.5: 0.5})
    note, heights = scale_of([1e-4, 1e-2])
    assert "log10" in note
    assert heights == {1e-4: pytest.approx(-4.0), 1e-2: pytest.approx(-2.0)}
    assert scale_of([0.0, 1.0])[1] == {0.0: 0.0, 1.0: 1.0}  # zero has no logarithm


def test_words_are_numbered():
    note, heights = scale_of(["tanh", "relu", "tanh"])
    assert note.split() == ["0", "=", "relu", "1", "=", "tanh"]
    assert heights == {"tanh": 1.0, "relu": 0.0}
    assert scale_of([[64, 64], [32]])[1] == {"[64, 64]": 1.0, "[32]": 0.0}
    assert scale_of([True, False, True])[1] == {True: 1.0, False: 0.0}


def test_a_line_from_birth_to_the_last_row(tournament):
    reading = StandingsReader(tournament)
    reading.refresh()
    now = reading.latest
    key = "algorithm.learning_rate"
    _, by_steps = lines_of(key, now.entries, axis="steps", started=now.started)
    _, by_time = lines_of(key, now.entries, axis="seconds", started=now.started)
    assert len(by_steps) == len(by_time) == len(now.entries)
    for entry, steps, time in zip(now.entries, by_steps, by_time, strict=True):
        assert steps.name == entry.id
        assert steps.x.tolist() == [entry.born_steps, entry.steps]
        assert time.x.tolist() == pytest.approx([entry.born - now.started, entry.updated - now.started])
        assert steps.y[0] == steps.y[1]
        assert math.isclose(10 ** steps.y[0], entry.parameters[key]) or steps.y[0] == entry.parameters[key]
    assert [line.text for line in by_steps] == [shown(entry.parameters[key]) for entry in now.entries]
    assert lines_of("algorithm.nothing", now.entries, axis="steps", started=0.0) == ("", [])


async def test_a_chart_for_each_key_and_one_more_for_a_new_one(live_tournament, clock):
    app = Dashboard(live_tournament, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.screen.query(Table) or not app.screen.query_one(Table).rows.items:
            await pilot.pause(0.01)
        updated = app.screen.standings.updated
        await pilot.press("g")
        await pilot.pause()
        assert isinstance(app.screen, HistoryScreen)
        titles = [str(chart.border_title).split()[0] for chart in app.screen.query(Chart)]
        assert titles == ["entropy_coef", "gamma", "learning_rate"]
        await pilot.press("x")
        assert {chart.figure.axis for chart in app.screen.query(Chart)} == {"seconds"}
        assert "by time" in app.screen.query_one(Banner).text
        journal = Appender(live_tournament / "journal.jsonl")
        journal.append({"seq": 10_000, "time": updated + 1, "event": "spawn", "member": "late", "parent": None,
                        "algorithm": "ppo", "changes": {"algorithm.clip_range": 0.3}, "seed": 1})  # fmt: skip
        journal.close()
        while len(app.screen.query(Chart)) < 4:
            await pilot.pause(0.01)
