"""The reader's thread: takes turns with the app's, and never fails in silence."""

import threading

import pytest
from textual.app import App

from erlcli.tui.live import LiveScreen


class Page(LiveScreen):
    def __init__(self):
        super().__init__()
        self.reads, self.shows, self.trouble = 0, 0, None
        self.threads = set()
        self.looked = threading.Event()

    def read(self):
        self.reads += 1
        self.looked.set()
        self.threads.add(threading.current_thread().name)
        if self.trouble is not None:
            raise self.trouble
        return False

    def show(self):
        assert threading.current_thread() is threading.main_thread()
        self.shows += 1


async def until(pilot, condition):
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("it never came to hold")


async def test_it_shows_at_first_and_then_only_what_is_new():
    app, page = App(), Page()
    async with app.run_test() as pilot:
        await app.push_screen(page)
        await until(pilot, lambda: page.reads >= 3)
        assert page.shows == 1 and page.threads == {"reader"}
    assert not page._reader.is_alive() or page._reader._left.is_set()


async def test_what_cant_be_read_is_told_once_and_tried_again():
    app, page = App(), Page()
    async with app.run_test() as pilot:
        await app.push_screen(page)
        await until(pilot, lambda: page.shows == 1)
        page.trouble = OSError(5, "Input/output error")
        before = page.reads
        await until(pilot, lambda: page.reads >= before + 3)
        assert [note.message for note in app._notifications] == ["[Errno 5] Input/output error"]


async def test_a_defect_ends_the_app_with_its_traceback():
    app, page = App(), Page()
    with pytest.raises(ZeroDivisionError):
        async with app.run_test() as pilot:
            await app.push_screen(page)
            page.trouble = ZeroDivisionError("a defect")
            await until(pilot, lambda: not app.is_running)
