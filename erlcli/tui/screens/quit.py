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
        words: what the answers do.
        detach: whether to offer that, too.
    """

    DEFAULT_CSS = """
    QuitScreen .dialog { width: 64; height: auto; }
    QuitScreen Horizontal { width: 1fr; height: auto; margin-top: 1; }
    QuitScreen Button { margin-right: 2; }
    QuitScreen Label { width: 1fr; color: $text-muted; }
    QuitScreen.-thin Horizontal { layout: vertical; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (48, "-normal")]  # noqa: RUF012 - as Textual declares them
    BINDING_GROUP_TITLE = "Leave"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('stop')", "Stop: checkpoint and leave"),
        Binding("d", "answer('detach')", "Detach: training goes on"),
        Binding("escape,q", "answer('')", "Cancel"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, run: str, words: str, *, detach: bool = True) -> None:
        super().__init__()
        self._run, self._words, self._can_detach = run, words, detach

    def compose(self) -> ComposeResult:
        """What the answers do, and a button each."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = f"{self._run} is training"
            yield Label(self._words)
            with Horizontal():
                yield Button("s Stop", id="stop", action="screen.answer('stop')", compact=True)
                if self._can_detach:
                    yield Button("d Detach", id="detach", action="screen.answer('detach')", compact=True)
                yield Button("esc Cancel", id="cancel", action="screen.answer('')", compact=True)

    def on_mount(self) -> None:
        """The answer that changes nothing is the one that enter gives."""
        self.query_one("#detach" if self._can_detach else "#cancel").focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what has a button."""
        return self._can_detach or parameters != ("detach",)

    def action_answer(self, answer: str) -> None:
        """Leave with an answer."""
        self.dismiss(answer or None)
