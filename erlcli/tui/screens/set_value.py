"""Asks for a new value of something that a run may be told while it trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

Answer = tuple[str, float]


class SetScreen(ModalScreen[Answer | None]):
    """Returns what to set and its value, or None.

    Args:
        values: what can be set, with its present value; at least one.
    """

    DEFAULT_CSS = """
    SetScreen .dialog { width: 48; height: auto; }
    SetScreen OptionList { height: auto; max-height: 8; border: none; padding: 0; background: $surface; }
    SetScreen Label { color: $text-muted; }
    SetScreen #hint { height: auto; }
    SetScreen #hint.-wrong { color: $text-error; }
    """
    BINDING_GROUP_TITLE = "Set a value"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel"),
        Binding("up", "move(-1)", "Choose", priority=True),
        Binding("down", "move(1)", "Choose", priority=True),
    ]

    def __init__(self, values: Sequence[Answer]) -> None:
        super().__init__()
        self._values = values

    def compose(self) -> ComposeResult:
        """Names, a field and a line for what is wrong."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "set, from the next rollout on"
            width = max(len(name) for name, _ in self._values)
            names = OptionList(*(Option(f"{name:<{width}}  {value:g}", id=name) for name, value in self._values))
            names.can_focus = False
            names.highlighted = 0
            yield names
            yield Input(placeholder="a number", compact=True)
            yield Label("enter sets it, escape leaves it", id="hint")

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one(Input).focus()

    def action_move(self, by: int) -> None:
        """Choose another name."""
        names = self.query_one(OptionList)
        names.highlighted = ((names.highlighted or 0) + by) % len(self._values)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave with a number, or say what is none."""
        try:
            value = float(event.value)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            self.dismiss((self._values[self.query_one(OptionList).highlighted or 0][0], value))
        else:
            hint = self.query_one("#hint", Label)
            hint.add_class("-wrong")
            hint.update(Content(f"{event.value!r} is no number: expected e.g. 3e-4"))  # what was typed is no markup
