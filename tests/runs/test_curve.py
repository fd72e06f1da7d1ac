import itertools
import os
import random

import pytest

from erlcli.runs import curve as module
from erlcli.runs.curve import Curve
from erlcli.runs.jsonl import Appender, encode


def write(path, *pairs, **more):
    """Append (attempt, steps) rows."""
    appender = Appender(path)
    for attempt, steps in pairs:
        appender.append({"attempt": attempt, "steps": steps, "value": attempt * 1000 + steps, **more})
    appender.close()


def pairs(curve):
    return [(row["attempt"], row["steps"]) for row in curve.rows]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ([(1, 10), (1, 20), (1, 30)], [(1, 10), (1, 20), (1, 30)]),
        # back to a checkpoint at 10: 20 and 30 come again
        ([(1, 10), (1, 20), (1, 30), (2, 20), (2, 30)], [(1, 10), (2, 20), (2, 30)]),
        # back to the very start
        ([(1, 10), (1, 20), (2, 10)], [(2, 10)]),
        # nothing lost: the new attempt goes on where the old one stopped
        ([(1, 10), (2, 20)], [(1, 10), (2, 20)]),
        # three attempts, each from further back
        ([(1, 10), (1, 20), (1, 30), (2, 20), (2, 30), (2, 40), (3, 30)], [(1, 10), (2, 20), (3, 30)]),
        ([(1, 10), (1, 20), (2, 20), (3, 10), (3, 20)], [(3, 10), (3, 20)]),
        # an attempt that left before its first row
        ([(1, 10), (1, 20), (4, 20)], [(1, 10), (4, 20)]),
    ],
)
def test_a_newer_attempt_replaces_what_it_superseded(path, written, seen):
    write(path, *written)
    whole, piecewise = Curve(path), Curve(path)
    assert whole.refresh()
    assert pairs(whole) == seen
    # The same when the rows are read one by one, as a dashboard sees them come.
    path.unlink()
    path.touch()
    for pair in written:
        write(path, pair)
        assert piecewise.refresh()
    assert pairs(piecewise) == seen


def test_every_cut_leaves_neither_duplicates_nor_holes(path):
    """A run of 10 rows, killed after k of them and resumed from each earlier point."""
    for k in range(1, 10):
        for back in range(k + 1):
            path.unlink(missing_ok=True)
            write(path, *[(1, n * 10) for n in range(1, k + 1)])
            write(path, *[(2, n * 10) for n in range(back + 1, 11)])
            curve = Curve(path)
            curve.refresh()
            assert [row["steps"] for row in curve.rows] == [n * 10 for n in range(1, 11)]
            assert [row["attempt"] for row in curve.rows] == [1] * back + [2] * (10 - back)


def test_a_probe_and_a_full_evaluation_at_the_same_steps_both_stay(path):
    write(path, (1, 10), (1, 10), (1, 20))
    write(path, (2, 20), (2, 20))
    curve = Curve(path)
    curve.refresh()
    assert pairs(curve) == [(1, 10), (1, 10), (2, 20), (2, 20)]


def test_a_replaced_file_replaces_the_curve(path, tmp_path):
    """As when a copy of a run on another machine is brought up to date."""
    write(path, (1, 10), (1, 20))
    curve = Curve(path)
    curve.refresh()
    fresh = tmp_path / "fresh.jsonl"
    write(fresh, (1, 10), (1, 20), (1, 30))
    os.replace(fresh, path)
    assert curve.refresh()
    assert pairs(curve) == [(1, 10), (1, 20), (1, 30)]
    os.truncate(path, 0)
    assert curve.refresh()
    assert curve.rows == []
    assert not curve.refresh()


def test_rows_without_steps_are_passed_over(path):
    appender = Appender(path)
    for row in ({"value": 1}, {"steps": None}, {"steps": "10"}, {"steps": 10, "attempt": 1}):
        appender.append(row)
    curve = Curve(path)
    curve.refresh()
    assert pairs(curve) == [(1, 10)]


def test_a_column_holds_numbers_only(path):
    appender = Appender(path)
    for steps, value in enumerate([1, 2.5, float("nan"), None, True, "text", 3]):
        appender.append({"steps": steps, "attempt": 1, "x": value})
    appender.append({"steps": 7, "attempt": 1})
    curve = Curve(path)
    curve.refresh()
    assert curve.column("x") == ([0, 1, 6], [1.0, 2.5, 3.0])
    assert curve.column("none") == ([], [])


def test_rows_whose_attempt_is_no_number_are_passed_over(path):
    appender = Appender(path)
    for attempt in (1, "2", None, 1):
        appender.append({"steps": 10, "attempt": attempt})
    curve = Curve(path)
    curve.refresh()
    assert pairs(curve) == [(1, 10), (1, 10)]


def test_columns_hold_the_rows_that_have_all_of_them(path):
    appender = Appender(path)
    appender.append({"steps": 1, "attempt": 1, "x": 1, "y": 2})
    appender.append({"steps": 2, "attempt": 1, "x": 3})
    appender.append({"steps": 3, "attempt": 1, "x": 4, "y": float("nan")})
    appender.append({"steps": 4, "attempt": 1, "x": 5, "y": 6.5})
    curve = Curve(path)
    curve.refresh()
    assert curve.columns("steps", "x", "y") == [[1.0, 4.0], [1.0, 5.0], [2.0, 6.5]]
    assert curve.columns("none") == [[]]


def test_names_and_version_tell_what_there_is_to_draw(path):
    curve = Curve(path)
    assert not curve.refresh()
    assert (curve.names, curve.version) == (set(), 0)
    write(path, (1, 10), text="no", flag=True, loss=float("inf"))
    curve.refresh()
    assert (curve.names, curve.version) == ({"attempt", "steps", "value"}, 1)
    write(path, (1, 20), loss=0.5)
    curve.refresh()
    curve.refresh()
    assert (curve.names, curve.version) == ({"attempt", "steps", "value", "loss"}, 2)


@pytest.fixture
def small(monkeypatch):
    """Bounds of a size that tests can fill."""
    monkeypatch.setattr(module, "WHOLE_ROWS", 20)
    return 100


def test_a_bounded_curve_keeps_the_newest_whole_and_the_old_evenly(path, small):
    """However the rows come, and for however long."""
    curve = Curve(path, small)
    sizes = itertools.cycle((1, 7, 30))
    steps = 0
    while steps < 20_000:
        write(path, *[(1, steps := steps + 1) for _ in range(next(sizes))])
        assert curve.refresh()
        assert len(curve.rows) <= small
        seen = [row["steps"] for row in curve.rows]
        assert seen[-20:] == list(range(steps + 1, 0, -1))[1:21][::-1][-len(seen) :]
        assert seen == sorted(set(seen)) and seen[0] == 1
    gaps = [b - a for a, b in itertools.pairwise(seen)]
    assert max(gaps) <= 2 * steps / 40  # 40 is what a thinning leaves of the old


def test_a_resume_in_the_dense_and_in_the_thinned_part_supersedes(path, small):
    curve = Curve(path, small)
    write(path, *[(1, n) for n in range(1, 1_001)])
    curve.refresh()
    write(path, *[(2, n) for n in range(990, 1_050)])
    curve.refresh()
    write(path, (3, 500))
    curve.refresh()
    seen = pairs(curve)
    assert seen[-1] == (3, 500)
    assert all(attempt == 1 and steps < 500 for attempt, steps in seen[:-1])
    assert seen[0] == (1, 1) and len(seen) > 10


def random_file(path, seed):
    """Rows of several attempts; the exact curve of it."""
    draw = random.Random(seed)
    lines, start = [], 0
    for attempt in range(1, draw.randint(2, 6)):
        stop = start + draw.randint(1, 4_000)
        lines += [
            encode({"attempt": attempt, "steps": n, "pad": "x" * draw.randint(0, 60)}) for n in range(start, stop)
        ]
        if draw.random() < 0.3:
            lines.insert(draw.randrange(len(lines)), draw.choice(["", "torn {", '{"steps":null}', "7"]))
        start = draw.choice([stop, max(0, stop - 1), draw.randint(0, stop)])
    path.write_text("\n".join(lines) + "\n" + draw.choice(["", '{"attempt":1,"st']))
    exact = Curve(path)
    exact.refresh()
    return exact


@pytest.mark.parametrize("seed", range(25))
def test_a_long_file_is_sampled_right(path, small, seed, monkeypatch):
    """As if all of it had been read: nothing superseded, evenly spaced, each attempt's ends and the newest exact."""
    monkeypatch.setattr(module, "ROW_BYTES", 1)
    exact = random_file(path, seed)
    sampled = Curve(path, small)
    assert sampled.refresh()
    everything, seen = pairs(exact), pairs(sampled)
    assert set(seen) <= set(everything) and seen == sorted(set(seen), key=seen.index)
    assert [steps for _, steps in seen] == sorted({steps for _, steps in seen})
    assert seen[0] == everything[0] and seen[-10:] == everything[-10:][-len(seen) :]
    for _, group in itertools.groupby(everything, key=lambda pair: pair[0]):
        rows = list(group)
        assert rows[0] in seen and rows[-1] in seen
    places = [everything.index(pair) for pair in seen]
    assert max(b - a for a, b in itertools.pairwise([*places, len(everything)])) <= max(4, len(everything) / 8)
    # What comes next is tailed, whether or not the file ended in the middle of a row.
    last = everything[-1]
    with path.open("a") as file:
        file.write("\n" + encode({"attempt": last[0], "steps": last[1] + 5}) + "\n")
    assert sampled.refresh()
    assert pairs(sampled)[-2:] == [last, (last[0], last[1] + 5)]
    assert not sampled.refresh()


def test_little_of_a_long_file_is_read(path, small, monkeypatch):
    with path.open("w") as file:
        for attempt, start, stop in ((1, 0, 60_000), (2, 50_000, 100_000)):
            file.writelines(
                encode({"attempt": attempt, "steps": n, "pad": "x" * 60}) + "\n" for n in range(start, stop)
            )
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: read.append(len(data := pread(*arguments))) or data)
    curve = Curve(path, small)
    assert curve.refresh()
    assert [row["steps"] for row in curve.rows[-20:]] == list(range(99_980, 100_000))
    assert 0 < sum(read) < path.stat().st_size / 10


def test_a_burst_after_a_long_sleep_is_sampled_too(path, small, monkeypatch):
    monkeypatch.setattr(module, "ROW_BYTES", 20)
    write(path, *[(1, n) for n in range(30)])
    curve = Curve(path, small)
    curve.refresh()
    assert len(curve.rows) == 30
    write(path, *[(1, n) for n in range(30, 5_000)])
    curve.refresh()
    assert len(curve.rows) <= small
    assert (curve.rows[0]["steps"], curve.rows[-1]["steps"]) == (0, 4_999)


@pytest.mark.parametrize(
    "content",
    ["", "x" * 9_000, "\n" * 9_000, '{"steps":"a"}\n' * 900, "[" * 9_000 + "\n"],
    ids=["empty", "no line end", "blank lines", "other rows", "deep"],
)
def test_a_long_file_without_a_row_gives_none(path, small, content, monkeypatch):
    monkeypatch.setattr(module, "ROW_BYTES", 1)
    path.write_text(content)
    curve = Curve(path, small)
    curve.refresh()
    assert curve.rows == []


@pytest.mark.parametrize(("kind", "expected"), [("probe", [3, 2, 5, 4]), ("full", [1, 3, 2, 5, 4])])
def test_a_late_row_gets_its_place_and_replaces_a_probe_of_its_snapshot(tmp_path, kind, expected):
    rows = Appender(tmp_path / "rows.jsonl")
    for steps, value in ((1, 1), (2, 2), (1, 3), (4, 4), (3, 5)):
        rows.append({"attempt": 1, "steps": steps, "value": value, "kind": kind})
    curve = Curve(tmp_path / "rows.jsonl")
    curve.refresh()
    assert curve.column("value")[1] == expected
