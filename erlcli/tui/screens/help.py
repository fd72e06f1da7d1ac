"""Every key of a screen, as the screen itself declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

TEXTUAL = ("app.focus_next", "app.focus_previous", "screen.copy_text")  # keys that every screen of Textual has
Group = tuple[str, Sequence[tuple[str, str]]]  # its title, and the keys with what they do


class HelpScreen(ModalScreen[None]):
    """Shows keys.

    Args:
        groups: to show.
    """

    DEFAULT_CSS = """
    HelpScreen .dialog { width: 64; height: auto; scrollbar-size-vertical: 1; }
    HelpScreen Static { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,q", "dismiss", "Back"),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
    ]

    def __init__(self, groups: Sequence[Group]) -> None:
        super().__init__()
        self.groups = groups

    @classmethod
    def of(cls, screen: Screen[Any]) -> HelpScreen:
        """The keys that work on `screen` now."""
        groups: dict[str, dict[str, tuple[list[str], str]]] = {}
        for node, binding, enabled, _ in screen.active_bindings.values():
            if not enabled or binding.system or not binding.description or binding.action in TEXTUAL:
                continue
            title = node.BINDING_GROUP_TITLE or type(node).__name__
            keys, _ = groups.setdefault(title, {}).setdefault(binding.action, ([], binding.description))
            keys.append(screen.app.get_key_display(binding))
        return cls([(title, _merged(actions)) for title, actions in groups.items()])

    def compose(self) -> ComposeResult:
        """A table."""
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "keys"
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True, max_width=24)
        table.add_column()
        for number, (title, rows) in enumerate(self.groups):
            if number:
                table.add_row()
            table.add_row("", Text(title, style="bold"))
            for keys, what in rows:
                table.add_row(Text(keys, style=self.app.theme_variables["accent"]), Text(what))
        return table

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def _merged(actions: dict[str, tuple[list[str], str]]) -> list[tuple[str, str]]:
    """One row a description: left and right, which do the same the other way round, share theirs."""
    rows: dict[str, list[str]] = {}
    for keys, what in actions.values():
        rows.setdefault(what, []).extend(keys)
    return [(" ".join(dict.fromkeys(keys)), what) for what, keys in rows.items()]
