"""Going back from a screen that was opened from another one."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen


def go_back(screen: Screen[Any]) -> None:
    """Leave a screen that was opened from another one; the first one stays."""
    if len(screen.app.screen_stack) > 2:  # Textual's own blank screen lies below the first
        screen.app.pop_screen()
