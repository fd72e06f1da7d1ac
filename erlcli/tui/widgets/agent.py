"""The agent acting: the newest film of a run, in a loop, as large as the pane allows."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.timer import Timer
from textual.worker import get_current_worker

from erlcli.runs.agent import AgentFilm
from erlcli.runs.text import count, score
from erlcli.tui import graphics
from erlcli.tui.palette import Palette
from erlcli.tui.widgets.lines import Lines, strip

if TYPE_CHECKING:
    from erlcli.tui.film import Clip

MOST_FPS = {"blocks": 15.0, "kitty": 15.0, "sixel": 5.0}
HOLD_SECONDS = 1.0  # on the last picture, before the film starts again
FIRST_NUMBER = 0x5E0000  # of pictures in a terminal; two films never share numbers
NUMBERS = 1024
WAITING = "No film of the agent yet. One is made soon after the next evaluation."
OVER = "No film of the agent was made while this run trained. erl eval plays it."
UNFILMED = "A tournament films none of its members. erl eval plays this one."
UNASKED = "No film of the agent can be asked for: the run directory can't be written."
COLOURLESS = "The agent's pictures need colour, and NO_COLOR is set."


class AgentPane(Lines):
    """See the module's docstring. Reads its film in a thread, once a film and size; does nothing while hidden."""

    DEFAULT_CSS = "AgentPane { height: 1fr; min-height: 4; align: center middle; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.film: AgentFilm | None = None
        self.lack = WAITING
        self.kind: graphics.Kind = "blocks"
        self._clip: Clip | None = None
        self._wanted: tuple[AgentFilm, int, int] | None = None  # what is shown or being read: film, columns, lines
        self._problem = ""
        self._began = 0.0
        self._frame = 0
        self._playing: Timer | None = None
        self._ticking: Timer | None = None
        self._kitty: dict[int, graphics.KittyPicture] = {}  # sent, by frame
        self._films = 0
        self._sixel: Any = None

    def on_mount(self) -> None:
        """Find out what the terminal can."""
        self.kind = "blocks" if self.app.is_headless else graphics.kind(os.environ)
        self._ticking = self.set_interval(1.0, self._caption)

    def update_from(self, film: AgentFilm | None, lack: str = WAITING) -> None:
        """Show this film, or why there is none."""
        if (film, lack) != (self.film, self.lack):
            self.film, self.lack = film, lack
            self._prepare()

    def on_resize(self) -> None:
        """Another size needs the pictures anew."""
        self._prepare()

    def on_show(self) -> None:
        """Go on."""
        for timer in (self._playing, self._ticking):
            if timer is not None:
                timer.resume()
        self._prepare()

    def on_hide(self) -> None:
        """Rest."""
        for timer in (self._playing, self._ticking):
            if timer is not None:
                timer.pause()

    def on_unmount(self) -> None:
        """Leave nothing in the terminal."""
        self._forget()

    # The film

    def _prepare(self) -> None:
        """Read the film for the size that the pane has, unless that is done or under way."""
        film, (columns, lines) = self.film, self.size
        self._caption()
        if film is None or film.unavailable or self.app.no_color:
            self.redraw()
            return
        if not columns or not lines or not self.is_on_screen or self._wanted == (film, columns, lines):
            return
        self._wanted = (film, columns, lines)
        self.run_worker(self._read(film, columns, lines), exclusive=True, group="film", exit_on_error=True)

    async def _read(self, film: AgentFilm, columns: int, lines: int) -> None:
        from erlcli.tui.film import load

        cell = None if self.kind == "blocks" else graphics.cell_size()
        try:
            clip = await asyncio.to_thread(load, film.path, columns, lines, cell)
            if cell is not None:
                await asyncio.to_thread(graphics.prepare, cell)
            if self.kind == "sixel" and self._sixel is None:
                self._sixel = graphics.sixel_widget()
                await self.mount(self._sixel)
        except FileNotFoundError:
            self._wanted = None  # replaced by a newer one meanwhile, which is about to be told of
            return
        except (OSError, ValueError, SyntaxError) as error:  # the last is PIL's word for a damaged file
            self._problem = f"The film can't be read: {error}"
            self._clip = None
            self.redraw()
            return
        if not get_current_worker().is_cancelled:
            self._play(clip)

    def _play(self, clip: Clip) -> None:
        self._forget()
        self._clip, self._problem, self._frame = clip, "", 0
        self._films += 1
        self._began = self._now()
        if self._playing is not None:
            self._playing.stop()
        interval = 1.0 / min(MOST_FPS[self.kind], self.film.fps if self.film is not None else 1.0)
        self._playing = self.set_interval(interval, self._advance) if len(clip.starts) > 1 else None
        if self._sixel is not None:
            self._sixel.styles.width, self._sixel.styles.height = clip.columns, clip.lines
            self._sixel.image = clip.pictures[0]
        self.redraw()

    def _advance(self) -> None:
        """The next picture; one that comes late leaves others out."""
        clip = self._clip
        if clip is None or not self.is_on_screen or not self.screen.is_active:
            return
        frame = clip.at(self._now() - self._began, HOLD_SECONDS)
        if frame == self._frame:
            return
        before, self._frame = self._frame, frame
        if self.kind == "sixel":
            self._sixel.image = clip.pictures[frame]
            return
        self._drawn = None
        _, top = self._corner(clip)
        if self.kind == "kitty":
            self.refresh()
            return
        from erlcli.tui.film import changed_lines

        lines = changed_lines(clip.pixels[before], clip.pixels[frame])
        if lines:
            self.refresh(*(Region(0, top + y, self.size.width, 1) for y in lines))

    def _forget(self) -> None:
        for picture in self._kitty.values():
            self._send(picture.farewell())
        self._kitty.clear()

    def _send(self, message: str) -> None:
        """To the terminal, in order with what Textual writes; textual_image would write past it."""
        driver = self.app._driver
        if driver is not None:
            driver.write(message)

    def _now(self) -> float:
        return float(self.app.clock())  # type: ignore[attr-defined]  # of Dashboard

    # What is drawn

    def _caption(self) -> None:
        film = self.film
        if film is None or film.unavailable:
            self.border_subtitle = ""
            return
        parts = [f"{count(film.steps)} steps", f"return {score(film.total)}" + ("" if film.complete else " so far")]
        if film.quickness >= 1.5:
            parts.append(f"{film.quickness:.0f}x")
        parts.append(_ago(self._now() - film.time))
        self.border_subtitle = "  ".join(parts)

    def _corner(self, clip: Clip) -> tuple[int, int]:
        """Where the picture begins within the pane."""
        return max(self.size.width - clip.columns, 0) // 2, max(self.size.height - clip.lines, 0) // 2

    def _message(self) -> str:
        if self.film is None:
            return self.lack
        if self.film.unavailable:
            return f"No pictures: {self.film.unavailable}."
        return COLOURLESS if self.app.no_color else self._problem

    def draw(self, width: int, height: int, palette: Palette) -> Sequence[Strip]:
        """The picture in the middle, or what there is to say instead."""
        message = self._message()
        if message:
            lines = textwrap.wrap(message, max(width - 2, 1))[:height]
            above = (height - len(lines)) // 2
            return [strip()] * above + [strip((line.center(width)[:width], palette.muted)) for line in lines]
        clip = self._clip
        if clip is None or self.kind == "sixel":
            return []
        left, top = self._corner(clip)
        margin = [Segment(" " * left, palette.plain)] if left else []
        return [strip()] * top + [Strip([*margin, *line]) for line in self._picture(clip)]

    def _picture(self, clip: Clip) -> Sequence[Strip]:
        if self.kind == "blocks":
            from erlcli.tui.film import half_blocks

            return list(half_blocks(clip.pixels[self._frame]))
        if self._frame not in self._kitty:
            number = FIRST_NUMBER + self._films % 2 * NUMBERS + self._frame
            size = (clip.columns, clip.lines)
            picture = graphics.KittyPicture(clip.pictures[self._frame], number, *size)
            self._send(picture.message())
            self._kitty[self._frame] = picture
        return self._kitty[self._frame].strips(self.app.console)


def _ago(seconds: float) -> str:
    """An age to one unit, such as `42 s ago`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago" if seconds >= 5 else "now"
