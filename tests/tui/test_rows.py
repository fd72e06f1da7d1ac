from erlcli.tui.widgets.columns import Column
from erlcli.tui.widgets.rows import Rows

BY_NUMBER = Column("number", 5, lambda item, width: item[0], lambda item: item[1], falling=True)


def rows(*items, order=None):
    made = Rows(lambda item: item[0], lambda item: f"{item[0]} {item[1]}", order)
    made.replace(items)
    return made


def names(made):
    return "".join(item[0] for item in made.shown)


def test_the_first_order_is_the_columns_own():
    made = rows(("a", 1), ("b", 3), ("c", 2), order=BY_NUMBER)
    assert names(made) == "bca"
    made.sort(BY_NUMBER, falling=False)
    assert names(made) == "acb"
    made.sort(None)
    assert names(made) == "abc"


def test_the_cursor_stays_on_top_until_it_was_moved():
    made = rows(("a", 1), ("b", 2), order=BY_NUMBER)
    assert made.cursor == "b"
    made.replace([("a", 9), ("b", 2)])
    assert made.cursor == "a"
    assert made.go(1)
    assert made.cursor == "b"
    made.replace([("b", 10), ("a", 9)])
    assert (made.cursor, made.index) == ("b", 0)


def test_the_cursor_goes_to_the_nearest_row_where_its_item_is_gone():
    made = rows(("a", 1), ("b", 2), ("c", 3))
    made.go(2)
    made.replace([("a", 1), ("b", 2)])
    assert made.cursor == "b"
    made.replace([])
    assert (made.cursor, made.index, made.current) == (None, None, None)
    assert not made.go(1)


def test_a_move_stops_at_the_ends_and_says_whether_there_was_one():
    made = rows(("a", 1), ("b", 2))
    assert not made.go(-5)
    assert made.go(99)
    assert made.cursor == "b"


def test_each_word_of_a_search_has_to_occur():
    made = rows(("alpha", 1), ("beta", 1), ("alphabet", 2))
    made.seek("ALPHA 1")
    assert [item[0] for item in made.shown] == ["alpha"]
    made.seek("alpha")
    assert [item[0] for item in made.shown] == ["alpha", "alphabet"]
    made.seek("nothing")
    assert made.shown == []
    made.seek("")
    assert len(made.shown) == 3


def test_marks_keep_their_order_outlive_a_search_and_go_with_their_item():
    made = rows(("a", 1), ("b", 2), ("c", 3))
    made.go(2)
    made.toggle()
    made.go(0)
    made.toggle()
    assert list(made.marks) == ["c", "a"]
    assert [made.mark_number(key) for key in "abc"] == [1, -1, 0]
    made.seek("b")
    assert list(made.marks) == ["c", "a"]
    made.seek("")
    made.replace([("a", 5), ("b", 2)])
    assert list(made.marks) == ["a"]
    made.go(0)
    made.toggle()
    assert list(made.marks) == []


def test_a_look_is_equal_as_long_as_nothing_shows():
    made = rows(("a", 1), ("b", 2))
    first, second = made.look(0), made.look(1)
    made.replace([("a", 1), ("b", 3)])
    assert made.look(0) == first
    assert made.look(1) != second
    made.go(1)
    assert made.look(0) != first
    assert made.look(2) is None
