import pytest

from erlcli.tui.widgets.columns import Column, arrange, cell, fit


def column(title, width, **kwargs):
    return Column(title, width, lambda item, width: str(item), **kwargs)


COLUMNS = (column("a", 10), column("b", 8, keep=2), column("c", 6, keep=1), column("d", 4, keep=3))


def titles(width, columns=COLUMNS):
    return [columns[slot.index].title for slot in fit(columns, width)]


@pytest.mark.parametrize(
    ("width", "shown"),
    # 10 + 8 + 6 + 4 cells and gaps of 1
    [(1, "a"), (10, "a"), (16, "a"), (17, "ac"), (25, "ac"), (26, "abc"), (30, "abc"), (31, "abcd"), (59, "abcd")],
)
def test_columns_fold_by_what_is_to_be_kept(width, shown):
    assert "".join(titles(width)) == shown


def test_a_column_that_is_kept_less_never_outlives_one_that_is_kept_longer():
    columns = (column("a", 4), column("wide", 20, keep=1), column("slim", 2, keep=2))
    assert titles(12, columns) == ["a"]


def test_what_is_left_over_goes_to_columns_that_grow():
    columns = (column("a", 4, grow=1, most=10), column("b", 4), column("c", 4, grow=2))
    # 40 cells, gaps of 1: 26 are left over; a takes 6 of its share of 8, c the rest
    assert [slot.width for slot in fit(columns, 40)] == [10, 4, 24]


def test_nothing_grows_where_nothing_may():
    assert [slot.width for slot in fit((column("a", 4), column("b", 4, grow=1, most=4)), 50)] == [4, 4]


def test_a_cell_is_as_wide_as_asked():
    left, right = column("a", 6), column("a", 6, right=True)
    assert cell(left, "ab", 6) == "ab    "
    assert cell(right, "ab", 6) == "    ab"
    assert cell(left, "abcdefgh", 6) == "abcde…"
    assert cell(left, "abcdefgh", 1) == "a"
    assert cell(left, "日本語日本", 6) == "日本 …"  # a character of two cells doesn't fit into the fifth
    assert cell(left, "日", 4) == "日  "


def test_order_by_a_column_keeps_equals_and_puts_the_unknown_last():
    items = [("x", 2.0), ("y", None), ("z", 3.0), ("w", 2.0), ("v", float("nan"))]
    by_value = Column("value", 5, lambda item, width: item[0], lambda item: item[1])
    assert [name for name, _ in arrange(items, by_value, falling=False)] == ["x", "w", "z", "y", "v"]
    assert [name for name, _ in arrange(items, by_value, falling=True)] == ["z", "x", "w", "y", "v"]


def test_without_a_column_to_sort_by_the_order_stays():
    assert arrange([3, 1, 2], None, falling=True) == [3, 1, 2]
    assert arrange([3, 1, 2], column("a", 3), falling=True) == [3, 1, 2]
