"""The line of keys at the bottom of a screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Footer

FIRST = ("help", "leave")  # what has no room is cut at the right end, and these tell the way to all others


class Keys(Footer):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)

    def compose(self) -> ComposeResult:
        """The keys, those that every screen has in front."""
        yield from sorted(super().compose(), key=lambda key: getattr(key, "action", None) not in FIRST)
