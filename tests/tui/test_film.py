"""Films as cells of a terminal."""

import numpy as np
import pytest
from PIL import Image

from erlcli.tui.film import changed_lines, fitted, half_blocks, load


def save(path, frames, durations=100):
    first, *others = frames
    first.save(path, "WEBP", save_all=True, append_images=others, duration=durations, lossless=True)
    return path


@pytest.mark.parametrize(
    ("size", "columns", "lines", "cell", "expected"),
    [
        ((300, 200), 60, 40, (1, 2), (60, 20)),  # as wide as the pane
        ((300, 200), 60, 10, (1, 2), (30, 10)),  # as high as the pane
        ((300, 200), 60, 40, (10, 20), (60, 20)),
        ((300, 200), 60, 40, (10, 10), (60, 40)),
        ((1000, 1), 5, 5, (1, 2), (5, 1)),  # never nothing
        ((1, 1000), 5, 5, (1, 2), (1, 5)),
        ((7, 7), 1, 1, (1, 2), (1, 1)),
    ],
)
def test_fitted(size, columns, lines, cell, expected):
    assert fitted(size, columns, lines, cell) == expected


def test_half_blocks_join_equal_neighbours():
    red, blue = (252, 0, 0), (0, 0, 252)
    picture = np.array([[red, red, blue], [red, red, red]], np.uint8)
    (line,) = half_blocks(picture)
    assert [(part.text, part.style.color.name, part.style.bgcolor.name) for part in line] == [
        ("  ", "#fc0000", "#fc0000"),
        ("▀", "#0000fc", "#fc0000"),
    ]
    assert line.cell_length == 3


def test_changed_lines():
    one = np.zeros((6, 4, 3), np.uint8)
    other = one.copy()
    other[1, 2, 0] = 1  # lower half of line 0
    other[4, 0, 2] = 1  # upper half of line 2
    assert changed_lines(one, other) == [0, 2] and changed_lines(one, one) == []


def test_load_scales_and_keeps_time(tmp_path):
    frames = [Image.new("RGB", (40, 20), (80 * i, 0, 0)) for i in range(3)]
    clip = load(save(tmp_path / "a.webp", frames, [100, 300, 100]), 12, 12)
    assert clip.pixels.shape == (3, 6, 12, 3) and (clip.columns, clip.lines) == (12, 3)
    assert clip.pixels[:, 0, 0, 0].tolist() == [0, 80, 160] and clip.pictures == ()
    assert clip.seconds == pytest.approx(0.5)
    shown = [clip.at(second, hold=1.0) for second in (0.0, 0.05, 0.15, 0.35, 0.45, 1.2, 1.55)]
    assert shown == [0, 0, 1, 1, 2, 2, 0]


def test_load_for_a_terminal_that_draws_itself(tmp_path):
    frames = [Image.new("RGB", (40, 20), (80 * i, 0, 0)) for i in range(3)]
    clip = load(save(tmp_path / "a.webp", frames), 12, 12, (10, 20))
    assert len(clip.pictures) == 3 and clip.pictures[0].size == (40, 20)
    assert (clip.columns, clip.lines) == (12, 3) and not clip.pixels.size


def test_what_is_no_film(tmp_path):
    path = tmp_path / "a.webp"
    with pytest.raises(FileNotFoundError):
        load(path, 10, 10)
    path.write_bytes(b"RIFF....WEBPVP8X")
    with pytest.raises((OSError, SyntaxError, ValueError)):
        load(path, 10, 10)
    Image.new("RGB", (5000, 1)).save(path, "WEBP")
    with pytest.raises(ValueError, match="5000 x 1"):
        load(path, 10, 10)
    Image.new("RGB", (5, 5)).save(path, "PNG")  # another format under that name
    with pytest.raises(OSError):
        load(path, 10, 10)
