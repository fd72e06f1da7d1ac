"""Shows one pane of a screen alone, or all of them."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen


class Panes:
    """Which pane has the screen to itself.

    The style sheet does the rest: a screen has the class `-zoomed` while one has, and that pane and all that it lies
    in have the class `-on`.

    Args:
        screen: whose.
        names: ids of the panes, in the order in which they come around.

    Attributes:
        current: the id of the pane that is alone; None where all are shown.
    """

    def __init__(self, screen: Screen[Any], names: tuple[str, ...]) -> None:
        self._screen, self._names = screen, names
        self.current: str | None = None

    def toggle(self, name: str) -> None:
        """Show it alone; all again if it is alone already."""
        self._show(None if self.current == name else name)

    def step(self, by: int) -> None:
        """On to the next one; all panes together are one stop on the way."""
        stops = (None, *self._names)
        at = stops.index(self.current) if self.current in stops else 0
        self._show(stops[(at + by) % len(stops)])

    def restore(self) -> bool:
        """Show all; whether one was alone."""
        was_alone = self.current is not None
        self._show(None)
        return was_alone

    def _show(self, name: str | None) -> None:
        self.current = name
        self._screen.query(".-on").remove_class("-on")
        if name is not None:
            for node in self._screen.query_one(f"#{name}").ancestors_with_self:
                if node is self._screen:
                    break
                node.add_class("-on")
        self._screen.set_class(name is not None, "-zoomed")
