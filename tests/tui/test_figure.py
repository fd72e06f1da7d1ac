import numpy as np
import pytest

from erlcli.tui.figure import Figure, Mark, Series, plot, terminal_mode

X = np.linspace(0, 1e6, 101)


def figure(**facts):
    return Figure(series=(Series("a", X, X / 1e4, 0, noisy=True),), **facts)


def test_axes_have_round_labels_where_they_belong():
    drawn = plot(figure(), 50, 13, mode="braille")
    assert [label.split()[0] for label in drawn.left if "┤" in label] == ["100", "50", "0"]
    assert drawn.bottom.split() == ["0", "0.5M", "1.0M"]
    assert len(drawn.bottom) == 50
    assert len({len(label) for label in drawn.left}) == 1
    assert drawn.canvas.width + drawn.gutter == 50


@pytest.mark.parametrize("width", [1, 2, 5, 19, 20, 21, 60, 200])
@pytest.mark.parametrize("height", [1, 2, 4, 5, 6, 20, 60])
def test_it_fits_whatever_the_size(width, height):
    for mode in ("braille", "quadrant"):
        drawn = plot(figure(target=50.0, cursor=3e5, marks=(Mark(1e5, 3.0),)), width, height, mode=mode)
        assert len(drawn.left) + (drawn.bottom is not None) == height
        assert drawn.cells.glyphs.shape == (len(drawn.left), max(1, width - drawn.gutter))


def test_the_target_is_on_the_axis_even_where_no_curve_reaches_it():
    low, high = figure(target=300.0).height
    assert low < 0 and high > 300


def test_the_y_axis_is_that_of_what_is_shown():
    low, high = figure(window=(4e5, 6e5)).height
    assert 35 < low < 40 and 60 < high < 65


def test_values_are_those_at_the_cursor():
    assert figure().value(0) == 100
    assert figure(cursor=3.04e5).value(0) == pytest.approx(30)
    assert figure(cursor=2e6).value(0) is None
    assert Figure(series=(Series("empty", X[:0], X[:0]),)).value(0) is None


def test_smoothing_is_worked_out_once_and_for_noisy_curves_only():
    shown = figure(smoothing=0.1)
    assert shown.smoothed(0) is shown.smoothed(0)
    assert not np.array_equal(shown.smoothed(0), shown.series[0].y)
    shown.series = (Series("a", X, X, 0),)
    assert shown.smoothed(0) is shown.series[0].y


def test_series_are_the_same_where_they_look_the_same():
    series = Series("a", X, X, 1, X - 1, X + 1)
    assert series.same(Series("a", X.copy(), X.copy(), 1, X - 1, X + 1))
    assert not series.same(Series("a", X, X, 1, X - 1, X + 2))
    assert not series.same(Series("a", X, X, 1))
    assert not series.same(Series("b", X, X, 1, X - 1, X + 1))
    assert not series.same(Series("a", X, X, 1, X - 1, X + 1, text="5"))


def test_the_linux_console_gets_quadrants(monkeypatch):
    monkeypatch.setenv("TERM", "linux")
    assert terminal_mode() == "quadrant"
    monkeypatch.setenv("TERM", "xterm-256color")
    assert terminal_mode() == "braille"
