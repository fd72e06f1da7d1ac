"""The line at the top: what it leaves out where it is narrow."""

import pytest
from textual.app import App

from erlcli.tui.theme import DARK
from erlcli.tui.widgets.banner import Banner

NAME = "a_name_that_tells_everything_about_a_tournament_50"


class Stage(App[None]):
    def __init__(self, *line):
        super().__init__()
        self.register_theme(DARK)
        self.theme = DARK.name
        self.line = line

    def compose(self):
        yield Banner()

    def on_mount(self):
        self.query_one(Banner).show(self.line)


@pytest.mark.parametrize(
    ("name", "width", "told"),
    [
        ("cup", 80, ["cup  tournament  CartPole-v1", "running  elapsed 25 s"]),
        (NAME, 80, ["a_name_that_tells_everything_…  tournament  CartPole-v1", "running  elapsed 25 s"]),
        (NAME, 60, ["a_name_that_tells_every…", "running  elapsed 25 s"]),
        (NAME, 46, ["a_name_that_tells_ev…", "running  elapsed 25 s"]),
    ],
)
async def test_a_long_name_hides_neither_the_state_nor_itself(name, width, told):
    left = [(name, "bright"), ("  tournament  ", "muted"), ("CartPole-v1", "")]
    app = Stage(left, [("running", "good"), ("  elapsed ", "muted"), ("25 s", "")])
    async with app.run_test(size=(width, 3)):
        line = app.query_one(Banner).render_line(0).text
        assert [part.strip() for part in (line[:-22], line[-22:])] == told
