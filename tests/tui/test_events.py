"""What a run tells: a line each, or in full where the pane is alone."""

import pytest
from textual.app import App

from erlcli.tui.theme import DARK
from erlcli.tui.widgets.events import Entry, Events

LONG = "learner: the env raised ValueError: " + " ".join(f"word{i}" for i in range(20))


class Stage(App[None]):
    def __init__(self):
        super().__init__()
        self.register_theme(DARK)
        self.theme = DARK.name

    def compose(self):
        yield Events()


@pytest.fixture
async def events():
    app = Stage()
    async with app.run_test(size=(60, 10)) as pilot:
        events = app.query_one(Events)
        events.update_from([Entry(0.0, "learner", "info", f"event {i}") for i in range(20)])
        events.update_from([*events._entries, Entry(1.0, "supervisor", "error", LONG)])
        await pilot.pause()
        yield events


def lines(events):
    return [events.render_line(y).text.rstrip() for y in range(events.size.height)]


async def test_a_long_event_is_cut_among_other_panes(events):
    assert lines(events)[-1].endswith("…") and "event 19" in lines(events)[-2]


async def test_alone_it_is_told_in_full(events):
    events.add_class("-on")
    events.redraw()
    told = " ".join(line[9 + 11 + 2 :] for line in lines(events))
    assert LONG in " ".join(told.split())


async def test_alone_the_oldest_and_the_newest_can_be_read(events):
    events.add_class("-on")
    events.update_from([Entry(-1.0, "learner", "error", LONG), *events._entries])
    events.scroll_by(1_000_000)
    assert "the env raised" in lines(events)[0] and "event" in lines(events)[-1]
    events.scroll_by(-1_000_000)
    assert lines(events)[-1].endswith("word19")
