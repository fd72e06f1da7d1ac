"""The dashboard application: opens the screen that fits a path, and what all screens share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from erlcli.runs.layout import RunLayout
from erlcli.tui.live import LiveScreen
from erlcli.tui.theme import DARK, LIGHT

JOURNAL = "journal.jsonl"


class Dashboard(App[str]):
    """See the module's docstring. It returns how it ended: `closed`, `detached` or `stopped`.

    Args:
        path: a run directory, a tournament's, or a folder of runs.
        owns: whether it was opened by the command that started the run, and is to leave once that has ended.
        clock: seconds since the epoch; tests hold it still.

    Attributes:
        first: the screen of `path`; others are opened from it.
        touched: keys pressed and buttons clicked so far.
    """

    TITLE = "erl"
    CSS_PATH = "styles.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDING_GROUP_TITLE = "Everywhere"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "leave", "Quit"),
        Binding("ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("ctrl+c", "interrupt", "Quit; twice stops the run", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Command palette", show=False, priority=True),
        Binding("d", "toggle_light", "Light or dark", show=False),
        Binding("s", "picture", "Save a screenshot", show=False),
    ]

    def __init__(self, path: Path, *, owns: bool = False, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.path, self.owns, self.clock = path, owns, clock
        self.first: LiveScreen | None = None
        self.touched = 0
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name

    def on_mount(self) -> None:
        """Open the first screen."""
        self.set_class(os.environ.get("TERM") == "linux", "-console")  # its font lacks round corners
        self.first = self.screen_for(self.path)
        self.push_screen(self.first)

    @staticmethod
    def screen_for(path: Path) -> LiveScreen:
        """The screen of a path; imported late, since each costs start-up time that the others need not pay."""
        if (path / JOURNAL).exists():
            from erlcli.tui.screens.board import BoardScreen

            return BoardScreen(path)
        if (path / "recipe.toml").exists():
            from erlcli.tui.screens.run import RunScreen

            return RunScreen(RunLayout(path))
        from erlcli.tui.screens.home import HomeScreen

        return HomeScreen(path)

    async def on_event(self, event: events.Event) -> None:
        """Count what the user does, wherever it goes."""
        if isinstance(event, (events.Key, events.MouseDown)) and not event.is_forwarded:
            self.touched += 1
        await super().on_event(event)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: everything that has a key."""
        seen = set()
        for node, binding, enabled, _ in screen.active_bindings.values():
            if enabled and binding.description and binding.action not in seen and not binding.system:
                seen.add(binding.action)
                run = partial(self.run_action, binding.action, default_namespace=node)
                yield SystemCommand(binding.description, f"key {self.get_key_display(binding)}", run)

    def action_leave(self) -> None:
        """Ask the screen to leave; it may have a question first."""
        stack = [screen for screen in self.screen_stack if isinstance(screen, LiveScreen)]
        whole = next((screen for screen in stack if screen.HOLDS_MEMBERS), None)
        for screen in reversed(self.screen_stack):
            if isinstance(screen, LiveScreen):
                (whole or screen).leave()
                return
            if screen.is_modal:
                screen.dismiss(None)
                return
        self.exit("closed")

    def action_interrupt(self) -> None:
        """As quit; where it has been asked already how to, stop."""
        from erlcli.tui.screens.quit import QuitScreen

        if isinstance(self.screen, QuitScreen):
            self.screen.dismiss("stop")
        else:
            self.action_leave()

    def action_help(self) -> None:
        """Show every key of the screen."""
        from erlcli.tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.of(self.screen))

    def action_toggle_light(self) -> None:
        """Switch between the dark and the light theme."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_picture(self) -> None:
        """Save what is on screen as an SVG in the current folder."""
        name = time.strftime("erl-%Y%m%d-%H%M%S.svg", time.localtime(self.clock()))
        try:
            self.notify(f"saved {self.save_screenshot(name)}")
        except OSError as error:
            self.notify(f"no screenshot: {error}", severity="error")
