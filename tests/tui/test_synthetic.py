"""The fixtures themselves: always the same, and read as what they say they are."""

import pytest

from erlcli.runs.journal import Journal
from erlcli.runs.jsonl import read
from erlcli.runs.view import RunView

CHANGING = "lock"  # has the process id of its owner


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != CHANGING
    }


def test_equal_calls_write_equal_files(tmp_path, writer):
    for folder in ("a", "b"):
        writer.write_run(tmp_path / folder / "run", rows=50, seed=3, attempts=2, workers=1, gpu=True)
        writer.write_tournament(tmp_path / folder / "cup", members=4, seed=3, member_rows=5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    writer.write_run(tmp_path / "c" / "run", rows=50, seed=4, attempts=2, workers=1, gpu=True)
    assert contents(tmp_path / "c" / "run") != contents(tmp_path / "a" / "run")


def test_a_run_of_several_attempts_counts_each_row_once(fixed_run):
    view = RunView(fixed_run)
    view.refresh()
    assert len(read(fixed_run.metrics)) > len(view.metrics.rows) == 620
    assert [row["version"] for row in view.metrics.rows] == list(range(1, 621))
    assert {row["attempt"] for row in view.metrics.rows} == {1, 2, 3}
    assert (view.state, view.is_live, len(view.gpus)) == ("running", True, 1)
    assert view.restarts == {"learner": 2, "worker-1": 1}
    assert view.best["return_mean"] == max(row["return_mean"] for row in view.evals.rows)


@pytest.mark.parametrize(
    ("fixture", "state"), [("finished_run", "finished"), ("failed_run", "failed"), ("big_run", "dead")]
)
def test_runs_are_in_the_state_they_say(fixture, state, request):
    view = RunView(request.getfixturevalue(fixture), max_rows=4096)
    view.refresh()
    assert view.state == state
    assert 0 < len(view.metrics.rows) <= 4096


def test_a_replay_adds_a_row_a_call_until_all_are_there(tmp_path, writer):
    replay = writer.RunReplay(tmp_path / "run", rows=12, start=10)
    view = RunView(replay.layout)
    view.refresh()
    whole = writer.write_run(tmp_path / "whole", rows=12, planned=12)
    seen = []
    while replay.step(writer.NOW + len(seen)):
        assert view.refresh()
        seen.append((len(view.metrics.rows), view.steps, view.is_live))
    replay.close()
    assert seen == [(11, seen[0][1], True), (12, read(whole.metrics)[-1]["steps"], True)]


def test_a_tournament_is_understood_whole(tournament):
    journal = Journal(tournament)
    journal.refresh()
    board = journal.board
    assert (board.skipped, len(board.members), board.busy) == (0, 10, 4)
    assert board.champion is not None and board.counts()["retired"] > 0
    assert any(depth > 0 for depth, _ in board.lineage())
    assert all((tournament / "members" / name / "metrics.jsonl").exists() for name in board.members)


def test_a_replayed_tournament_has_every_member_at_work(tmp_path, writer):
    replay = writer.TournamentReplay(tmp_path / "cup", members=6)
    journal = Journal(tmp_path / "cup")
    for number in range(3):
        replay.step(writer.NOW + number)
    journal.refresh()
    replay.close()
    board = journal.board
    assert (board.skipped, len(board.members), board.busy, len(board.slots)) == (0, 6, 6, 6)
    assert all(len(member.history) >= 3 for member in board.members.values())
