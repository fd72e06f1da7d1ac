"""Help is made of bindings: whatever a screen binds is told, and nothing else."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding
from textual.screen import Screen

from erlcli.tui.screens.help import HelpScreen


class Bound(Screen[None]):
    BINDING_GROUP_TITLE = "Here"
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("a,b", "one", "First"),
        Binding("left", "two(-1)", "Both ways"),
        Binding("right", "two(1)", "Both ways"),
        Binding("z", "silent", ""),
        Binding("n", "never", "Never now"),
    ]

    def check_action(self, action, parameters):
        return None if action == "never" else True


async def test_help_tells_what_is_bound():
    app = App()
    async with app.run_test() as pilot:
        await app.push_screen(Bound())
        screen = HelpScreen.of(app.screen)
        groups = dict(screen.groups)
        assert groups["Here"] == [("a b", "First"), ("← →", "Both ways")]
        app.theme_variables["accent"] = "#ffffff"
        await app.push_screen(screen)
        for width, height in [(80, 24), (20, 6), (1, 1)]:
            await pilot.resize_terminal(width, height)
        await pilot.press("escape")
        assert isinstance(app.screen, Bound)
