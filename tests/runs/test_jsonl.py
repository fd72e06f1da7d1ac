import errno
import json
import os
import threading

import pytest

from erlcli.runs import jsonl
from erlcli.runs.jsonl import Appender, JsonFile, Tail, encode, read, read_json, write_json


def rows(*numbers):
    return [{"n": n} for n in numbers]


def test_rows_come_back_in_order(tmp_path):
    path = tmp_path / "sub" / "rows.jsonl"
    appender = Appender(path)
    for row in rows(1, 2, 3):
        appender.append(row)
    appender.sync()
    appender.close()
    assert read(path) == rows(1, 2, 3)
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n{"n":3}\n'


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert read(tmp_path / "none.jsonl") == []
    assert read_json(tmp_path / "none.json") is None


def test_a_tail_gives_each_row_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    tail, appender = Tail(path), Appender(path)
    assert tail.read() == []
    appender.append({"n": 1})
    assert tail.read() == rows(1)
    assert tail.read() == []
    appender.append({"n": 2})
    appender.append({"n": 3})
    assert tail.read() == rows(2, 3)
    assert tail.restarts == 0


def test_a_torn_tail_is_held_back_until_it_is_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1}\n{"n"')
    tail = Tail(path)
    assert tail.read() == rows(1)
    with path.open("ab") as file:
        file.write(b":2}")
    assert tail.read() == []  # whole, but not said to be
    with path.open("ab") as file:
        file.write(b"\n")
    assert tail.read() == rows(2)


@pytest.mark.parametrize("text", ['{"n":2,"text":"caf\u00e9 \\u00e9","list":[1,{"a":null}]}', '{"n":2}'])
def test_a_row_cut_at_any_byte_costs_no_other_row(tmp_path, text):
    whole = text.encode() + b"\n"
    for cut in range(len(whole) + 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(b'{"n":1}\n' + whole[:cut])
        assert read(path)[:1] == rows(1)
        appender = Appender(path)  # the next writer
        appender.append({"n": 3})
        appender.close()
        found = read(path)
        # Without its line end alone the row is whole, and is taken in once the next writer has set one.
        survives = cut >= len(whole) - 1
        assert [row["n"] for row in found] == ([1, 2, 3] if survives else [1, 3])
        if survives:
            assert found[1] == json.loads(text)


def test_blank_lines_are_passed_over(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\n{"n":1}\n\n   \n\r\n{"n":2}\r\n')
    assert read(path) == rows(1, 2)


def test_two_rows_joined_are_both_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1}{"n":2}\n{"n":3} {"n":4}\n')
    assert read(path) == rows(1, 2, 3, 4)


@pytest.mark.parametrize(
    "damage",
    [
        b'{"n":9,"te{"n":9}',  # a half row and a whole one: which is which can't be told
        b'{"n":9}]',
        b'{"n":9} 7',
        b'{"n":"\xff\xfe"}',
        b"\xff\xfe\x00",
        b"\x00" * 64 + b'{"n":9}',  # a block that a power cut left unwritten
        b"[1,2]",
        b"7",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda damage: repr(damage[:20]),
)
def test_a_damaged_line_is_set_aside(tmp_path, damage):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1}\n' + damage + b'\n{"n":2}\n')
    assert read(path) == rows(1, 2)


def test_a_cut_row_of_a_full_disk_is_closed_before_the_next(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    appender = Appender(path)
    appender.append({"n": 1})
    real = os.write

    def short(fd, data):
        if len(data) <= 4:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) - 4])

    monkeypatch.setattr(jsonl.os, "write", short)
    with pytest.raises(OSError, match="No space"):
        appender.append({"n": 2})
    monkeypatch.setattr(jsonl.os, "write", real)
    appender.append({"n": 3})
    appender.append({"n": 4})
    assert read(path) == rows(1, 3, 4)


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    appender = Appender(path)
    real = os.write
    monkeypatch.setattr(jsonl.os, "write", lambda fd, data: real(fd, data[:3]))
    appender.append({"n": 1, "text": "x" * 50})
    monkeypatch.setattr(jsonl.os, "write", real)
    appender.append({"n": 2})
    assert [row["n"] for row in read(path)] == [1, 2]
    assert b"\n\n" not in path.read_bytes()


def test_a_file_that_got_shorter_is_read_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n":')
    tail = Tail(path)
    assert tail.read() == rows(1, 2)
    os.truncate(path, 8)
    assert tail.read() == rows(1)
    assert tail.restarts == 1
    with path.open("ab") as file:
        file.write(b'{"n":5}\n')
    assert tail.read() == rows(5)


def test_a_replaced_file_is_read_from_its_start(tmp_path):
    path, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    path.write_bytes(b'{"n":1}\n{"n"')
    tail = Tail(path)
    assert tail.read() == rows(1)
    other.write_bytes(b'{"n":7}\n{"n":8}\n{"n":9}\n')
    os.replace(other, path)
    assert tail.read() == rows(7, 8, 9)
    assert tail.restarts == 1


def test_a_file_that_went_and_came_back_is_read_from_its_start(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1}\n')
    tail = Tail(path)
    tail.read()
    path.unlink()
    assert tail.read() == []
    path.write_bytes(b'{"n":2}\n{"n":3}\n')  # likely under the number of the old one
    assert tail.read() == rows(2, 3)


def test_appenders_of_several_threads_do_not_mix_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    appenders = [Appender(path) for _ in range(4)]

    def write(index):
        for n in range(50):
            appenders[index].append({"writer": index, "n": n, "pad": "x" * 200})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(path)
    assert len(found) == 200
    for index in range(4):
        assert [row["n"] for row in found if row["writer"] == index] == list(range(50))


def test_nan_and_infinities_become_text_and_files_stay_strict_json(tmp_path):
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "rows.jsonl"
    row = {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (float("-inf"),)}, "e": numpy.float64("nan")}
    Appender(path).append(row)

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "a": "nan",
        "b": ["inf", 1.5],
        "c": {"d": ["-inf"]},
        "e": "nan",
    }


def test_rows_are_ascii_on_one_line():
    assert encode({"text": "a\nb\u2028é"}) == '{"text":"a\\nb\\u2028\\u00e9"}'


def test_what_json_has_no_word_for_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    appender = Appender(path)
    with pytest.raises(TypeError):
        appender.append({"path": tmp_path})
    assert path.read_bytes() == b""


@pytest.mark.parametrize("sync", [False, True])
def test_a_json_file_is_replaced_as_a_whole(tmp_path, sync):
    path = tmp_path / "sub" / "status.json"
    write_json(path, {"n": 1}, sync=sync)
    inode = path.stat().st_ino
    with path.open() as old:
        write_json(path, {"n": 2}, sync=sync)
        assert json.load(old) == {"n": 1}  # who had it open still reads the old one whole
    assert read_json(path) == {"n": 2}
    assert path.stat().st_ino != inode
    assert os.listdir(path.parent) == ["status.json"]


def test_a_json_file_that_could_not_be_written_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_json(path, {"n": 1})

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jsonl.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"n": 2})
    assert read_json(path) == {"n": 1}
    assert os.listdir(tmp_path) == ["status.json"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"n":1', b"[1]", b"\xff", b'{"n":1}{"n":2}'])
def test_a_json_file_that_is_no_object_reads_as_none(tmp_path, content):
    path = tmp_path / "status.json"
    path.write_bytes(content)
    assert read_json(path) is None


def test_a_tail_reads_a_part_at_a_time_where_it_is_asked_to(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n":{n}}}\n' for n in range(10)))
    tail, seen = Tail(path), []
    for _ in range(100):
        seen += tail.read(5)
    assert [row["n"] for row in seen] == list(range(10))


def test_a_tail_goes_on_from_where_it_is_set(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n":0}\n{"n":1}\n')
    tail = Tail(path)
    assert tail.unread() == 16
    tail.start_at(8, path.stat().st_ino)
    assert (tail.unread(), tail.read(), tail.unread(), tail.restarts) == (8, [{"n": 1}], 0, 0)
    path.write_text("")
    assert (tail.unread(), tail.read(), tail.restarts) == (0, [], 1)
    tail = Tail(tmp_path / "none.jsonl")
    assert tail.unread() == 0


def test_a_json_file_is_read_when_it_was_written(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    file = JsonFile(path)
    assert (file.refresh(), file.row) == (False, {})
    write_json(path, {"n": 1})
    assert (file.refresh(), file.row) == (True, {"n": 1})
    monkeypatch.setattr(type(path), "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert not file.refresh()
    monkeypatch.undo()
    write_json(path, {"n": 2})
    assert (file.refresh(), file.row) == (True, {"n": 2})
    path.write_text('{"n":')  # torn: the last whole one stays
    assert (file.refresh(), file.row) == (True, {"n": 2})
    path.unlink()
    assert (file.refresh(), file.row) == (False, {"n": 2})


def test_a_write_that_fails_names_its_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    appender, path = Appender(tmp_path / "rows.jsonl"), tmp_path / "status.json"
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        appender.append({"a": 1})
    assert caught.value.filename == str(tmp_path / "rows.jsonl")
    with pytest.raises(OSError, match="No space left") as caught:
        write_json(path, {}, sync=True)
    assert caught.value.filename == str(path) and not path.exists()
