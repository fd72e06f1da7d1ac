"""The chart as a widget: what keys and mouse do, and that it draws no more often than it has to."""

import numpy as np
import pytest
from textual.app import App

from erlcli.tui.figure import Mark, Series
from erlcli.tui.theme import DARK, LIGHT
from erlcli.tui.widgets.chart import EMPTY, Chart

X = np.arange(1000.0)


class Page(App[None]):
    def __init__(self):
        super().__init__()
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.drawn = 0

    def compose(self):
        app = self

        class Counted(Chart):
            def draw(self, width, height, palette):
                app.drawn += 1
                return super().draw(width, height, palette)

        yield Counted(id="chart")


def curves(n=1000):
    y = np.sin(X[:n] / 100)
    return [
        Series("training return", X[:n], y, 0, noisy=True),
        Series("evaluation", X[:n:100], y[::100], 1, points=True),
    ]


def lines(chart):
    return [chart.render_line(y).text for y in range(chart.size.height)]


@pytest.fixture
async def page():
    app = Page()
    async with app.run_test(size=(60, 14)) as pilot:
        app.chart = app.query_one(Chart)
        app.chart.show(curves(), target=2.0, marks=[Mark(200.0, 0.9, 1)])
        await pilot.pause()
        yield app, pilot


async def test_legend_axes_and_curves(page):
    app, _ = page
    text = lines(app.chart)
    assert text[0].startswith("━━ training return -0.") and "━•" in text[0] and "target 2" in text[0]
    assert "◆" in "".join(text) and "•" in "".join(text)
    assert text[-1].split() == ["0", "500"]
    assert all(len(line) == 60 for line in text)


async def test_the_same_again_is_not_drawn_again(page):
    app, pilot = page
    before = app.drawn
    app.chart.show(curves(), target=2.0, marks=[Mark(200.0, 0.9, 1)])
    await pilot.pause()
    assert app.drawn == before
    app.chart.show(curves(900), target=2.0)
    await pilot.pause()
    assert app.drawn == before + 1


async def test_zoom_and_whole(page):
    app, pilot = page
    await pilot.press("plus", "plus")
    low, high = app.chart.figure.view
    assert high == 999 and high - low == pytest.approx(999 / 1.5**2)
    await pilot.press("shift+left")
    assert app.chart.figure.view[1] < 999
    await pilot.press("minus", "minus", "minus", "minus")
    assert app.chart.figure.window is None, "no further out than all there is"
    await pilot.press("equals_sign", "0")
    assert app.chart.figure.window is None


async def test_a_zoomed_view_of_the_newest_rows_follows_them(page):
    app, pilot = page
    app.chart.show(curves(500))
    await pilot.press("plus")
    span = np.diff(app.chart.figure.view)
    app.chart.show(curves(600))
    assert app.chart.figure.view[1] == 599
    assert np.diff(app.chart.figure.view) == pytest.approx(span)
    await pilot.press("shift+left")
    view = app.chart.figure.view
    app.chart.show(curves(700))
    assert app.chart.figure.view == view, "one that looks back stays"


async def test_the_cursor_reads_values_off(page):
    app, pilot = page
    await pilot.press("left", "left", "left")
    at = app.chart.figure.cursor
    assert 940 < at < 999
    await pilot.pause()
    text = lines(app.chart)
    assert text[0].startswith(f"{at:.0f} steps")
    assert "│" in text[4][-10:], "a line where the cursor is"
    await pilot.press("right", "right", "right", "right")
    assert app.chart.figure.cursor == 999
    assert app.chart.forget_cursor() and not app.chart.forget_cursor()


async def test_the_cursor_takes_a_zoomed_view_along(page):
    app, pilot = page
    await pilot.press("plus", "plus", "plus")
    low = app.chart.figure.view[0]
    await pilot.press(*["left"] * 70)
    assert app.chart.figure.view[0] < low
    assert app.chart.figure.view[0] <= app.chart.figure.cursor <= app.chart.figure.view[1]


async def test_the_mouse_reads_and_zooms(page):
    app, pilot = page
    await pilot.hover("#chart", offset=(30, 6))
    at = app.chart.figure.cursor
    assert 400 < at < 600
    app.chart.post_message(scroll(30, 6))
    await pilot.pause()
    low, high = app.chart.figure.view
    assert low < at < high and high - low == pytest.approx(999 / 1.5, rel=1e-3)


def scroll(x, y):
    from textual.events import MouseScrollUp

    return MouseScrollUp(None, x, y, 0, 0, 0, False, False, False, screen_x=x, screen_y=y)


async def test_smoothing_goes_around(page):
    app, pilot = page
    found = []
    for _ in range(4):
        await pilot.press("w")
        found.append(app.chart.figure.smoothing)
    assert sorted(found) == [0.0, 0.01, 0.03, 0.1] and found[-1] == 0.01


async def test_another_axis_resets_what_was_in_units_of_the_old_one(page):
    app, pilot = page
    await pilot.press("plus", "left")
    app.chart.show(curves(), axis="seconds")
    assert app.chart.figure.window is None and app.chart.figure.cursor is None


async def test_keys_do_nothing_where_there_is_nothing(page):
    app, pilot = page
    app.chart.show([])
    await pilot.press("plus", "minus", "left", "right", "0", "w", "shift+left")
    await pilot.hover("#chart", offset=(30, 6))
    assert EMPTY in "".join(lines(app.chart))


async def test_one_point_and_no_finite_point_are_drawn(page):
    app, pilot = page
    app.chart.show([Series("one", X[:1], X[:1], points=True)])
    await pilot.press("plus", "left")
    await pilot.pause()
    assert "•" in "".join(lines(app.chart))
    app.chart.show([Series("none", X[:3], np.full(3, np.nan))])
    await pilot.pause()
    assert "none" in lines(app.chart)[0]


async def test_a_value_that_has_a_text_is_told_by_it(page):
    app, _ = page
    app.chart.show([Series("m003", X[:2], np.full(2, -4.0), text="0.0001")])
    assert "m003 0.0001" in lines(app.chart)[0]


async def test_long_legends_lose_words_then_curves(page):
    app, pilot = page
    await pilot.resize_terminal(40, 14)
    assert "training -" in lines(app.chart)[0] and "return" not in lines(app.chart)[0]
    await pilot.resize_terminal(24, 14)
    assert "evaluation" not in lines(app.chart)[0]


async def test_it_follows_the_theme(page):
    app, pilot = page
    style = app.chart.render_line(0)._segments[0].style
    app.theme = LIGHT.name
    await pilot.pause()
    assert app.chart.render_line(0)._segments[0].style != style
