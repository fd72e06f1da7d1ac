"""The question before the dashboard of a live run closes."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label


class QuitScreen(ModalScreen[str | None]):
    """Returns `stop`, `detach` or None.

    Args:
        run: its name.
    """

    DEFAULT_CSS = """
    QuitScreen .dialog { width: auto; height: auto; }
    QuitScreen Horizontal { width: auto; height: auto; margin-top: 1; }
    QuitScreen Button { margin-right: 2; }
    QuitScreen Label { color: $text-muted; }
    """
    BINDING_GROUP_TITLE = "Leave"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('stop')", "Stop: checkpoint and leave"),
        Binding("d", "answer('detach')", "Detach: training goes on"),
        Binding("escape,q", "answer('')", "Cancel"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        """A line and three buttons."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = f"{self._run} is training"
            yield Label("Stop saves a checkpoint first; detached training goes on.")
            with Horizontal():
                yield Button("s Stop", id="stop", action="screen.answer('stop')", compact=True)
                yield Button("d Detach", id="detach", action="screen.answer('detach')", compact=True)
                yield Button("esc Cancel", id="cancel", action="screen.answer('')", compact=True)

    def on_mount(self) -> None:
        """The answer that changes nothing is the one that enter gives."""
        self.query_one("#detach").focus()

    def action_answer(self, answer: str) -> None:
        """Leave with an answer."""
        self.dismiss(answer or None)
