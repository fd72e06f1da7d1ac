"""Curves against canvases drawn by hand."""

import numpy as np
import pytest

from erlcli.tui.raster import NOBODY, Canvas


def rows(canvas):
    cells = canvas.cells()
    return [cells.text(row) for row in range(canvas.height)]


def test_a_diagonal_takes_one_dot_a_column():
    canvas = Canvas(4, 2, x=(0, 7), y=(0, 7))
    canvas.line([0, 7], [0, 7], 0)
    assert rows(canvas) == ["  ⡠⠊", "⡠⠊  "]


def test_a_flat_line_takes_one_dot_a_column():
    canvas = Canvas(3, 1, x=(0, 1), y=(0, 3))
    canvas.line([0, 1], [0, 0], 0)
    assert rows(canvas) == ["⣀⣀⣀"]


def test_quadrants_have_four_dots_a_cell():
    canvas = Canvas(2, 2, x=(0, 3), y=(0, 3), mode="quadrant")
    canvas.line([0, 3], [0, 3], 0)
    assert rows(canvas) == [" ▞", "▞ "]


def test_a_spike_of_one_row_among_a_million_is_seen():
    y = np.zeros(1_000_000)
    y[300_000] = 1.0
    canvas = Canvas(10, 1, x=(0, len(y) - 1), y=(0, 1))
    canvas.line(np.arange(len(y)), y, 0)
    assert rows(canvas) == ["⣀⣀⣀⣇⣀⣀⣀⣀⣀⣀"]


@pytest.mark.parametrize("points", [2, 3, 10, 1000])
def test_a_line_has_no_gaps_however_steep(points):
    canvas = Canvas(20, 10, x=(0, 1), y=(-1, 1))
    x = np.linspace(0, 1, points)
    canvas.line(x, np.where(np.arange(points) % 2, 1.0, -1.0), 0)
    bits = canvas.cells().glyphs - 0x2800
    dots = np.zeros((canvas.lines, canvas.columns), dtype=bool)
    for (i, j), bit in {
        (0, 0): 1,
        (1, 0): 2,
        (2, 0): 4,
        (0, 1): 8,
        (1, 1): 16,
        (2, 1): 32,
        (3, 0): 64,
        (3, 1): 128,
    }.items():
        dots[i::4, j::2] = (canvas.cells().owner == 0) & (bits & bit > 0)
    tops, bottoms = dots.argmax(0), canvas.lines - 1 - dots[::-1].argmax(0)
    assert dots.any(0).all()
    assert all(dots[tops[c] : bottoms[c] + 1, c].all() for c in range(canvas.columns))
    apart = np.maximum(tops[1:], tops[:-1]) - np.minimum(bottoms[1:], bottoms[:-1])
    assert (apart <= 1).all(), "neighbouring columns touch, at least at a corner"


def test_points_that_are_not_finite_are_passed_over():
    a, b = (Canvas(8, 2, x=(0, 4), y=(0, 4)) for _ in range(2))
    a.line([0, 1, 2, 4], [0, np.nan, 2, 4], 0)
    b.line([0, 2, 4], [0, 2, 4], 0)
    assert rows(a) == rows(b)
    a.line([np.nan, np.nan], [1, 2], 1)
    assert not (a.cells().owner == 1).any()


def test_what_lies_outside_is_not_drawn():
    canvas = Canvas(4, 2, x=(0, 1), y=(0, 1))
    canvas.line([-3, -2], [0, 1], 0)
    canvas.line([2, 3], [0, 1], 0)
    canvas.line([0, 1], [5, 6], 0)
    canvas.line([0, 1], [-1e300, -1e308], 0)
    canvas.points([9, 0.5], [0.5, 9], 0, "x")
    canvas.level(7, 0)
    canvas.line([], [], 0)
    assert rows(canvas) == ["    ", "    "]
    assert (canvas.cells().owner == NOBODY).all()


def test_a_zoomed_line_enters_and_leaves_at_the_edges():
    canvas = Canvas(4, 2, x=(3, 4), y=(3, 4))
    canvas.line([0, 10], [0, 10], 0)
    assert rows(canvas) == ["  ⡠⠊", "⡠⠊  "]


def test_what_is_drawn_later_covers_what_was_drawn_before():
    canvas = Canvas(2, 1, x=(0, 3), y=(0, 3))
    canvas.line([0, 3], [0, 0], 0)
    canvas.line([2, 3], [3, 3], 1)
    assert rows(canvas) == ["⣀⠉"]
    assert canvas.cells().owner.tolist() == [[0, 1]]


def test_a_line_goes_on_in_a_cell_of_its_own():
    canvas = Canvas(1, 1, x=(0, 1), y=(0, 3))
    canvas.line([0, 1], [0, 0], 0)
    canvas.line([0, 1], [3, 3], 0)
    assert rows(canvas) == ["⣉"]


def test_points_are_characters_of_their_cells():
    canvas = Canvas(3, 2, x=(0, 5), y=(0, 7))
    canvas.line([0, 5], [0, 0], 0)
    canvas.points([0, 5, np.nan], [0, 7, 1], 1, "•")
    assert rows(canvas) == ["  •", "•⣀⣀"]
    canvas.line([0, 5], [0, 0], 2)
    assert rows(canvas)[1] == "⣀⣀⣀"


def test_a_band_tints_the_cells_it_covers_by_half():
    canvas = Canvas(3, 3, x=(0, 5), y=(0, 11))
    canvas.band([0, 5], [3.5, 3.5], [7.5, 7.5], 4)
    assert canvas.cells().tint.tolist() == [[NOBODY] * 3, [4] * 3, [NOBODY] * 3]
    canvas = Canvas(3, 1, x=(0, 5), y=(0, 3))
    canvas.band([3, 5], [0, 0], [3, 3], 1)
    assert canvas.cells().tint.tolist() == [[NOBODY, NOBODY, 1]], "nothing beyond its ends"
    canvas.band([0], [0], [3], 2)
    assert 2 not in canvas.cells().tint


def test_a_level_is_dashed():
    canvas = Canvas(4, 1, x=(0, 1), y=(0, 3))
    canvas.level(0.2, 9)
    assert rows(canvas) == ["⣀ ⣀ "]
    assert canvas.cells().owner.tolist() == [[9, NOBODY, 9, NOBODY]]


def test_a_range_without_width_puts_things_in_the_middle():
    canvas = Canvas(4, 1, x=(2, 2), y=(1, 1))
    canvas.points([2], [1], 0, "x")
    assert rows(canvas) == ["  x "]
