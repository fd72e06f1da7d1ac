"""The table in a small app of its own: what keys, mouse and sizes do to it, and what it paints."""

from dataclasses import dataclass, replace

import pytest
from textual.app import App
from textual.events import Key

from erlcli.tui.theme import DARK, LIGHT
from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.table import Table


@dataclass(frozen=True)
class Item:
    name: str
    kind: str
    score: float


ITEMS = [Item(f"m{i:03d}", ("ppo", "sac", "td3")[i % 3], float(i * 37 % 101)) for i in range(60)]
COLUMNS = (
    Column("name", 6, lambda item, _: item.name, lambda item: item.name),
    Column("kind", 5, lambda item, _: item.kind, lambda item: item.kind, keep=2),
    Column("score", 7, lambda item, _: f"{item.score:.1f}", lambda item: item.score, keep=1, right=True, falling=True),
    Column("note", 10, lambda item, _: "plain words", keep=3, grow=1),
)


class Shelf(App[None]):
    def __init__(self, items=ITEMS, **kwargs):
        super().__init__()
        self.items, self.kwargs, self.opened, self.moved = items, kwargs, [], []

    def compose(self):
        yield Table(
            COLUMNS,
            key=lambda item: item.name,
            search=lambda item: f"{item.name} {item.kind}",
            markable=True,
            empty="nothing\n\nmake something",
            **self.kwargs,
        )

    def on_mount(self):
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.table.show_items(self.items)

    @property
    def table(self):
        return self.query_one(Table)

    def on_table_opened(self, message):
        self.opened.append(message.key)

    def on_table_moved(self, message):
        self.moved.append(message.key)


def lines(table):
    return [table.render_line(y).text for y in range(table.size.height)]


async def test_rows_below_their_titles_with_the_cursor_on_the_first():
    app = Shelf()
    async with app.run_test(size=(50, 8)) as pilot:
        await pilot.pause()
        text = lines(app.table)
        assert text[0].split() == ["name", "kind", "score", "note"]
        assert text[1].startswith("▌ m000")
        assert text[2].startswith("  m001")
        assert len(text) == 6
        assert app.focused is app.table


async def test_keys_move_the_cursor_and_the_view_follows():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:  # six rows
        table = app.table
        for key, name in [
            ("down", "m001"), ("j", "m002"), ("up", "m001"), ("k", "m000"), ("up", "m000"), ("pagedown", "m005"),
            ("pagedown", "m010"), ("pageup", "m005"), ("end", "m059"), ("down", "m059"), ("home", "m000"),
        ]:  # fmt: skip
            await pilot.press(key)
            assert table.rows.cursor == name, key
            assert any(line.startswith(f"▌ {name}") for line in lines(table)), key
        assert app.moved[0] == "m000"
        assert app.moved[-1] == "m000"


async def test_enter_opens():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:
        await pilot.press("down", "enter")
        assert app.opened == ["m001"]


async def test_space_marks_and_goes_on_and_escape_clears():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:
        table = app.table
        await pilot.press("space", "down", "space")
        assert list(table.rows.marks) == ["m000", "m002"]
        assert table.rows.cursor == "m003"
        assert "2 marked" in str(table.border_subtitle)
        assert lines(table)[1].startswith(" •m000")
        await pilot.press("escape")
        assert not table.rows.marks
        assert not str(table.border_subtitle or "")


async def test_o_sorts_by_each_shown_column_and_then_by_none():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:
        table, orders = app.table, []
        for _ in range(4):
            await pilot.press("o")
            orders.append((table.rows.order.title, table.rows.falling) if table.rows.order else None)
        assert orders == [("name", False), ("kind", False), ("score", True), None]
        await pilot.press("o", "o", "o")
        scores = [item.score for item in table.rows.shown]
        assert scores == sorted(scores, reverse=True)
        assert "score▼" in lines(table)[0]
        await pilot.press("O")
        assert table.rows.shown[0].score == min(scores)
        assert "score▲" in lines(table)[0]


async def test_a_search_narrows_while_it_is_typed():
    app = Shelf()
    async with app.run_test(size=(60, 9)) as pilot:
        table = app.table
        await pilot.press("slash", "s", "a", "c")
        assert table.typing
        assert {item.kind for item in table.rows.shown} == {"sac"}
        assert lines(table)[0].startswith(" /sac▌  20 of 60")
        await pilot.press("backspace", "down")
        assert table.rows.query == "sa"
        assert table.rows.index == 1
        await pilot.press("enter")
        assert not table.typing
        assert app.opened == []
        assert "/sa  20 of 60" in str(table.border_subtitle)
        assert lines(table)[0].split()[0] == "name"
        await pilot.press("escape")
        assert len(table.rows.shown) == 60


async def test_letters_of_a_search_are_no_keys():
    app = Shelf()
    async with app.run_test(size=(60, 9)) as pilot:
        await pilot.press("slash", "o", "space", "k")
        assert app.table.rows.query == "o k"
        assert app.table.rows.order is None
        assert not app.table.rows.marks
        assert "no row matches" in lines(app.table)[1]
        await pilot.press("escape")
        assert (app.table.rows.query, app.table.typing) == ("", False)


async def test_a_search_that_arrives_at_once_loses_no_letter():
    app = Shelf()
    async with app.run_test(size=(60, 9)) as pilot:
        await pilot.pause()
        for key, character in [("slash", "/"), ("m", "m"), ("0", "0"), ("5", "5"), ("enter", "\r"), ("enter", "\r")]:
            app.post_message(Key(key, character))
        while not app.opened:
            await pilot.pause(0.01)
        assert app.table.rows.query == "m05"
        assert app.opened == ["m050"]


async def test_a_click_chooses_a_double_click_opens_a_title_sorts():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:
        table = app.table
        await pilot.click(Table, offset=(6, 4))  # the frame, the titles, and the third row
        assert table.rows.cursor == "m002"
        assert app.opened == []
        await pilot.click(Table, offset=(6, 4), times=2)
        assert app.opened == ["m002"]
        await pilot.click(Table, offset=(19, 1))
        assert (table.rows.order.title, table.rows.falling) == ("score", True)
        await pilot.click(Table, offset=(19, 1))
        assert (table.rows.order.title, table.rows.falling) == ("score", False)


async def test_only_rows_that_differ_are_painted_again(monkeypatch):
    app = Shelf()
    async with app.run_test(size=(50, 20)) as pilot:
        table = app.table
        await pilot.pause()
        refreshed = []
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: refreshed.append([r.y for r in regions]))
        table.show_items(list(ITEMS))
        table.show_items([replace(item) for item in ITEMS])
        assert refreshed == []
        table.show_items([replace(item, score=-1.0) if item.name in ("m003", "m050") else item for item in ITEMS])
        assert refreshed == [[4]]  # the titles are line 0; m050 is out of sight
        await pilot.press("down")
        assert refreshed[1:] == [[1, 2]]


async def test_changed_rows_show_what_is_new():
    app = Shelf()
    async with app.run_test(size=(50, 20)) as pilot:
        await pilot.pause()
        assert "777.0" not in lines(app.table)[4]
        app.table.show_items([replace(item, score=777.0) if item.name == "m003" else item for item in ITEMS])
        assert "777.0" in lines(app.table)[4]


async def test_nothing_to_show_says_what_to_do():
    app = Shelf(items=[])
    async with app.run_test(size=(50, 9)) as pilot:
        await pilot.press("down", "enter", "space", "end", "pageup")
        assert [line.strip() for line in lines(app.table)[1:4]] == ["nothing", "", "make something"]
        app.table.show_items([], empty="still nothing")
        assert lines(app.table)[1].strip() == "still nothing"
        assert app.opened == []


async def test_the_theme_changes_the_colours():
    app = Shelf()
    async with app.run_test(size=(50, 9)) as pilot:
        await pilot.pause()
        dark = [segment.style for segment in app.table.render_line(2)]
        app.theme = LIGHT.name
        await pilot.pause()
        assert [segment.style for segment in app.table.render_line(2)] != dark


@pytest.mark.parametrize("height", [1, 2, 3, 7, 60])
async def test_every_width_fits(height):
    app = Shelf(order="score")
    async with app.run_test(size=(1, height)) as pilot:
        for width in (1, 2, 3, 4, 5, 8, 13, 18, 23, 29, 36, 60, 61, 63, 120, 200):
            await pilot.resize_terminal(width, height)
            table = app.table
            for y in range(table.size.height):
                assert table.render_line(y).cell_length == table._painter.width
        await pilot.press("end", "home")
