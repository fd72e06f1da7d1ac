from __future__ import annotations

import io
import os
import re

import numpy as np
import pytest

from erlcli.engine.terminal import RAMP, Screen, as_text, color_depth

RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def frame(*rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.asarray(rows, dtype=np.uint8)


@pytest.mark.parametrize(
    ("environ", "encoding", "expected"),
    [
        ({"COLORTERM": "truecolor"}, "utf-8", "truecolor"),
        ({"COLORTERM": "24bit"}, "UTF8", "truecolor"),
        ({"TERM": "xterm-direct"}, "utf-8", "truecolor"),
        ({"TERM": "xterm-256color"}, "utf-8", "256"),
        ({"COLORTERM": "truecolor", "NO_COLOR": "1"}, "utf-8", "ascii"),
        ({"COLORTERM": "truecolor", "NO_COLOR": ""}, "utf-8", "truecolor"),
        ({"COLORTERM": "truecolor"}, "ascii", "ascii"),
    ],
)
def test_depth(environ: dict[str, str], encoding: str, expected: str) -> None:
    assert color_depth(environ, encoding) == expected


def test_a_cell_shows_two_pixels_in_their_colors() -> None:
    lines = as_text(frame([RED, RED], [BLUE, WHITE]), columns=2, rows=1, depth="truecolor")
    # The upper color is named once, since it doesn't change.
    assert lines == ["\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀\x1b[48;2;255;255;255m▀\x1b[0m"]


def test_256_colors_take_the_nearest_of_cube_and_grays() -> None:
    lines = as_text(frame([RED], [(118, 118, 118)]), columns=1, rows=1, depth="256")
    assert lines == ["\x1b[38;5;196m\x1b[48;5;243m▀\x1b[0m"]  # 196: the cube's red; 243: gray 8 + 10 * 11
    lines = as_text(frame([(95, 135, 175)], [BLACK]), columns=1, rows=1, depth="256")
    assert lines == [f"\x1b[38;5;{16 + 36 * 1 + 6 * 2 + 3}m\x1b[48;5;16m▀\x1b[0m"]


def test_ascii_is_plain_characters_by_brightness() -> None:
    picture = frame([BLACK, WHITE, (140, 140, 140)], [BLACK, WHITE, (140, 140, 140)])
    assert as_text(picture, columns=3, rows=1, depth="ascii") == [RAMP[0] + RAMP[-1] + RAMP[5]]


@pytest.mark.parametrize(
    ("height", "width", "columns", "rows"), [(400, 600, 80, 23), (600, 200, 80, 23), (3, 5, 80, 23), (400, 600, 1, 1)]
)
def test_pictures_fit_and_keep_their_proportions(height: int, width: int, columns: int, rows: int) -> None:
    lines = as_text(np.full((height, width, 3), 9, np.uint8), columns, rows, "truecolor")
    across = re.sub(r"\x1b\[[0-9;]*m", "", lines[0])
    assert len(lines) <= rows
    assert len(across) <= columns
    assert len(lines) == rows or len(across) == columns  # as large as it can be
    if columns > 1:
        assert len(across) / (2 * len(lines)) == pytest.approx(width / height, rel=0.1)


def test_shrinking_averages_over_areas() -> None:
    checkered = np.zeros((8, 8, 3), np.uint8)
    checkered[::2, ::2] = checkered[1::2, 1::2] = 255
    assert as_text(checkered, columns=2, rows=1, depth="truecolor") == [
        "\x1b[38;2;128;128;128m\x1b[48;2;128;128;128m▀▀\x1b[0m"
    ]


def test_the_screen_is_given_back_whatever_happens() -> None:
    stream = io.StringIO()
    with (
        pytest.raises(KeyboardInterrupt),
        Screen(stream, "ascii", lambda: os.terminal_size((10, 4))) as screen,
    ):
        screen.show(frame([WHITE, WHITE], [WHITE, WHITE]), "episode 1")
        raise KeyboardInterrupt
    text = stream.getvalue()
    assert text.startswith("\x1b[?1049h\x1b[?25l")
    assert text.endswith("\x1b[?25h\x1b[?1049l")


def test_frames_never_scroll_and_a_resize_clears() -> None:
    sizes = [os.terminal_size((10, 4)), os.terminal_size((10, 4)), os.terminal_size((4, 2)), os.terminal_size((1, 1))]
    stream, steps = io.StringIO(), iter(sizes)
    with Screen(stream, "ascii", lambda: next(steps)) as screen:
        shown = []
        for _ in sizes:
            start = stream.tell()
            screen.show(np.full((40, 40, 3), 255, np.uint8), "a status line that is too long")
            shown.append(stream.getvalue()[start:])
    assert ["\x1b[2J" in text for text in shown] == [True, False, True, True]
    for text, size in zip(shown, sizes, strict=True):
        lines = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", text).split("\r\n")
        assert len(lines) <= size.lines
        assert all(len(line) <= size.columns for line in lines)
    assert "a status " in shown[0]
