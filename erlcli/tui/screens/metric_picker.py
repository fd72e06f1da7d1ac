"""Chooses the metrics that get a small curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option


class MetricPicker(ModalScreen[list[str] | None]):
    """Returns the chosen names in order, or None for the usual ones.

    Args:
        names: all metrics.
        chosen: those that are shown now.
    """

    DEFAULT_CSS = """
    MetricPicker .dialog { width: 52; height: 80%; }
    MetricPicker OptionList { height: 1fr; border: none; padding: 0; background: $surface; scrollbar-size-vertical: 1; }
    MetricPicker Label { color: $text-muted; }
    """
    BINDING_GROUP_TITLE = "Metrics"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "apply", "Back"),
        Binding("up", "move(-1)", "Choose", priority=True),
        Binding("down", "move(1)", "Choose", priority=True),
        Binding("ctrl+r", "usual", "The usual ones", priority=True),
    ]

    def __init__(self, names: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__()
        self._names, self._chosen = list(names), list(chosen)
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        """A search, the names that match, and a line about the keys."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "metrics"
            yield Input(placeholder="search", compact=True)
            names = OptionList()
            names.can_focus = False
            yield names
            yield Label("enter shows or hides, escape is done, ^r resets")

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one(Input).focus()
        self._list()

    def _list(self, keep: str | None = None) -> None:
        words = self.query_one(Input).value.lower().split()
        self._found = [name for name in self._names if all(word in name.lower() for word in words)]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(("■ " if name in self._chosen else "□ ") + name, id=name) for name in self._found)
        if self._found:
            options.highlighted = self._found.index(keep) if keep in self._found else 0

    def on_input_changed(self) -> None:
        """Search as it is typed."""
        self._list()

    def on_input_submitted(self) -> None:
        """Show or hide the highlighted one."""
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._found):
            self._toggle(self._found[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """The same with the mouse."""
        self._toggle(self._found[event.option_index])

    def _toggle(self, name: str) -> None:
        if name in self._chosen:
            self._chosen.remove(name)
        else:
            self._chosen.append(name)
        self._list(keep=name)

    def action_move(self, by: int) -> None:
        """Highlight another one."""
        options = self.query_one(OptionList)
        if self._found:
            options.highlighted = ((options.highlighted or 0) + by) % len(self._found)

    def action_usual(self) -> None:
        """Forget the choice."""
        self.dismiss(None)

    def action_apply(self) -> None:
        """Leave with the choice."""
        self.dismiss(self._chosen)
