import os

import pytest

from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.listing import RunList
from erlcli.runs.lock import RunLock


def make_run(folder, name, state="finished", *, started=100.0, heard=200.0, **status):
    layout = RunLayout(folder / name)
    layout.create()
    layout.recipe.write_text("[train]\n")
    os.utime(layout.recipe, (started, started))
    write_json(layout.status, {"state": state, "time": heard, "env": "E", "algorithm": "ppo", **status})
    return layout


def evaluate(layout, steps, mean, kind="full"):
    appender = Appender(layout.evals)
    appender.append({"attempt": 1, "steps": steps, "kind": kind, "return_mean": mean})
    appender.close()


def make_tournament(folder, name, *rows, **status):
    (folder / name).mkdir(parents=True)
    appender = Appender(folder / name / "journal.jsonl")
    for seq, row in enumerate(rows):
        appender.append({"seq": seq + 1, "time": 300.0 + seq, **row})
    appender.close()
    if status:
        write_json(folder / name / "status.json", status)


SPAWN = {"event": "spawn", "member": "a", "parent": None, "algorithm": "sac", "changes": {}, "seed": 1}
SCORE = {"event": "evaluate", "member": "a", "steps": 700, "mean": 4.5, "std": 1.0, "episodes": 9, "ci": [4, 5]}
CHAMPION = {"event": "promote", "member": "a", "rank": 1}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def names(listing):
    return [entry.name for entry in listing.entries]


def test_a_run_in_one_line(folder):
    layout = make_run(folder, "x", steps=700, total_steps=1_000, target_return=9)
    evaluate(layout, 10, 5.0)
    evaluate(layout, 20, 7.5)
    evaluate(layout, 30, 99.0, kind="probe")
    listing = RunList(folder)
    assert listing.refresh()
    (entry,) = listing.entries
    assert (entry.name, entry.path, entry.kind, entry.state, entry.live) == (
        "x", layout.root, "run", "finished", False,
    )  # fmt: skip
    assert (entry.env, entry.algorithm, entry.steps, entry.total_steps) == ("E", "ppo", 700, 1_000)
    assert (entry.best_return, entry.target_return) == (7.5, 9.0)
    assert (entry.started, entry.heard, entry.age_seconds(260.0), entry.age_seconds(0.0)) == (100.0, 200.0, 60.0, 0.0)


def test_a_tournament_in_one_line(folder):
    make_tournament(folder, "cup", SPAWN, SCORE, CHAMPION, state="running", env="E", target_return=9.0, time=200.0)
    listing = RunList(folder)
    listing.refresh()
    (entry,) = listing.entries
    assert (entry.kind, entry.state, entry.algorithm, entry.steps) == ("tournament", "dead", "sac", 700)
    assert (entry.best_return, entry.target_return, entry.started, entry.heard) == (4.5, 9.0, 300.0, 302.0)


def test_a_tournament_that_nobody_has_joined_yet(folder):
    make_tournament(folder, "cup")
    listing = RunList(folder)
    listing.refresh()
    (entry,) = listing.entries
    assert (entry.kind, entry.state, entry.algorithm, entry.steps, entry.best_return) == (
        "tournament", "dead", "", 0, None,
    )  # fmt: skip


def test_live_ones_first_then_those_heard_of_last(folder):
    make_run(folder, "old", heard=10.0)
    make_run(folder, "new", heard=20.0)
    locks = []
    for name, started in (("live-1", 5.0), ("live-2", 6.0)):
        locks.append(RunLock.acquire(make_run(folder, name, "running", started=started, heard=1_000.0 - started).lock))
    make_run(folder, "killed", "running", heard=15.0)
    listing = RunList(folder)
    listing.refresh()
    assert names(listing) == ["live-2", "live-1", "new", "killed", "old"]
    assert [entry.state for entry in listing.entries] == ["running", "running", "finished", "dead", "finished"]
    for lock in locks:
        lock.release()
    assert listing.refresh()  # although no file has changed
    assert [entry.live for entry in listing.entries] == [False] * 5


def test_refresh_says_whether_anything_has_changed(folder):
    listing = RunList(folder)
    assert not listing.refresh()  # no folder yet
    layout = make_run(folder, "x")
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    assert listing.refresh() and not listing.refresh()
    assert names(listing) == ["x"]
    evaluate(layout, 10, 5.0)
    assert listing.refresh() and not listing.refresh()
    make_run(folder, "y")
    assert listing.refresh() and names(listing) == ["x", "y"]
    layout.root.rename(folder.parent / "gone")
    assert listing.refresh() and names(listing) == ["y"]


def test_files_that_have_not_changed_are_not_opened(folder, monkeypatch):
    evaluate(make_run(folder, "x"), 10, 5.0)
    make_tournament(folder, "cup", SPAWN, SCORE)
    listing = RunList(folder)
    listing.refresh()

    def opened(path, *arguments, **more):
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(type(folder), "open", opened)
    monkeypatch.setattr(type(folder), "read_bytes", opened)
    assert not listing.refresh()


def test_a_status_of_odd_types_is_shown_as_far_as_it_goes(folder):
    make_run(folder, "x", steps="many", total_steps=None, target_return="high", time="late")
    listing = RunList(folder)
    listing.refresh()
    (entry,) = listing.entries
    assert (entry.steps, entry.total_steps, entry.target_return, entry.heard) == (0, None, None, 100.0)


def test_permission_errors_cost_only_the_run_itself(folder, monkeypatch):
    make_run(folder, "x")
    make_run(folder, "y")
    read = type(folder).read_bytes

    def refused(path):
        if path.parent.name == "x":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(type(folder), "read_bytes", refused)
    listing = RunList(folder)
    listing.refresh()
    assert sorted((entry.name, entry.state) for entry in listing.entries) == [("x", "unreadable"), ("y", "finished")]
