"""The journal's writer: numbers, durability, and what a torn tail costs."""

import errno
import json
import os

import pytest

from erlcli.errors import DamagedError
from erlcli.runs.jsonl import read
from erlcli.tournament.journal import JournalWriter


def row(seq, **facts):
    return {"seq": seq, "time": float(seq), "event": "open", **facts}


def written(path, count=3):
    writer = JournalWriter(path)
    for seq in range(1, count + 1):
        writer.write([row(seq)])
    writer.close()
    return path.read_bytes()


def test_rows_are_there_again(tmp_path):
    written(tmp_path / "j.jsonl")
    writer = JournalWriter(tmp_path / "j.jsonl")
    assert writer.rows == [row(1), row(2), row(3)]
    assert (writer.seq, writer.set_aside) == (3, None)
    writer.write([row(4), row(5)])
    assert writer.seq == 5
    assert read(tmp_path / "j.jsonl") == [row(n) for n in range(1, 6)]


def test_a_row_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.fstat(fd).st_size))
    writer = JournalWriter(tmp_path / "j.jsonl")
    calls.clear()
    writer.write([row(1), row(2)])
    assert calls == [(tmp_path / "j.jsonl").stat().st_size]


def test_cut_at_each_byte_of_its_last_row_the_others_stay(tmp_path):
    whole = written(tmp_path / "whole.jsonl")
    start = whole[:-1].rfind(b"\n") + 1
    for cut in range(start, len(whole) + 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        writer = JournalWriter(path)
        kept = 3 if cut >= len(whole) - 1 else 2  # a whole row needs no line end
        assert [r["seq"] for r in writer.rows] == list(range(1, kept + 1))
        torn = cut > start and kept == 2
        assert (writer.set_aside is not None) == torn
        if torn:
            assert writer.set_aside.read_bytes() == whole[start:cut]
        writer.write([row(kept + 1)])
        writer.close()
        assert [r["seq"] for r in read(path)] == list(range(1, kept + 2))


def test_what_is_set_aside_never_replaces_what_was_before(tmp_path):
    path = tmp_path / "j.jsonl"
    for number in (1, 2):
        written(path, 1)
        with path.open("a") as file:
            file.write('{"seq": 2, torn')
        writer = JournalWriter(path)
        assert writer.set_aside.name == f"j.torn-{number}"
        writer.close()
        path.unlink()


def test_blank_lines_and_joined_rows_are_read(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps(row(1)) + "\n\n" + json.dumps(row(2)) + json.dumps(row(3)) + "\n")
    assert [r["seq"] for r in JournalWriter(path).rows] == [1, 2, 3]


def test_a_hole_in_the_middle_is_no_base_for_decisions(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + '{"seq": 2, "tim\n' + json.dumps(row(3)) + "\n")
    with pytest.raises(DamagedError) as caught:
        JournalWriter(path)
    assert (caught.value.expected, caught.value.found) == ("row 2", "row 3")


def test_a_row_that_comes_twice_counts_once(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in (1, 2, 1, 2, 3, 3)))
    writer = JournalWriter(path)
    assert ([r["seq"] for r in writer.rows], writer.seq) == ([1, 2, 3], 3)
    writer.write([row(4)])
    writer.close()
    assert [r["seq"] for r in JournalWriter(path).rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("number", [1, 2])
def test_two_rows_of_one_number_are_told_as_such(number, tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (row(1), row(2), {**row(number), "event": "pause"})))
    with pytest.raises(DamagedError, match=f"row {number} comes twice") as caught:
        JournalWriter(path)
    assert (caught.value.expected, caught.value.found) == ("row 3", "another one")


@pytest.mark.parametrize("number", [0, -1, None, 2.5])
def test_numbers_that_are_none(number, tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + json.dumps(row(1) | {"seq": number}) + "\n")
    with pytest.raises(DamagedError, match="rows are missing"):
        JournalWriter(path)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    before = written(path)
    writer = JournalWriter(path)
    real, calls = os.write, []

    def full(fd, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        writer.write([row(4)])
    monkeypatch.undo()
    assert path.read_bytes() == before
    writer.write([row(4)])
    assert writer.seq == 4
