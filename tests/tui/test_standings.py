from erlcli.runs.jsonl import Appender, write_json
from erlcli.tui.screens.board import head_of
from erlcli.tui.standings import StandingsReader


def write(path, *rows):
    journal = Appender(path / "journal.jsonl")
    for row in rows:
        journal.append(row)
    journal.close()


def row(seq, event, member=None, **facts):
    named = {"member": member} if member else {}
    return {"seq": seq, "time": 1000.0 + seq, "event": event, **named, **facts}


FIRST = (
    row(1, "slots", slots=["a", "b"]),
    row(2, "spawn", "m0", parent=None, algorithm="ppo", changes={"algorithm.learning_rate": 1e-3}, seed=5),
    row(3, "spawn", "m1", parent="m0", changes={"algorithm.learning_rate": 2e-3}, seed=6, steps=100),
    row(4, "slice_start", "m0", slot="a", from_steps=0),
    row(5, "evaluate", "m0", steps=100, mean=10.0, std=2.0, episodes=4, ci=[8.0, 13.0]),
    row(6, "promote", "m0", rank=1),
)


def test_a_tournament_at_a_moment(tmp_path):
    write(tmp_path, *FIRST)
    write_json(tmp_path / "status.json", {"state": "finished", "env": "CartPole-v1"})
    reading = StandingsReader(tmp_path)
    assert reading.refresh()
    now = reading.latest
    assert (now.name, now.env, now.state, now.live) == (tmp_path.name, "CartPole-v1", "finished", False)
    assert (now.busy, now.slots, now.champion, now.tree) == (0, 2, "m0", ((0, "m0"), (1, "m1")))
    first, second = now.entries
    assert (first.id, first.place, first.state, first.slot, first.margin) == ("m0", 1, "champion", None, 2.5)
    assert first.history == ((100, 10.0),)
    assert (second.place, second.parent, second.lineage, second.algorithm) == (None, "m0", ("m0", "m1"), "ppo")
    assert second.changes == (("algorithm.learning_rate", 1e-3, 2e-3),)
    assert now.seconds(9999.0) == 5.0  # nobody works on it: until its last row
    assert now.counts() == {"waiting": 2}  # nor on its members, whatever their last rows say
    assert (now.score, now.ci) == (10.0, (8.0, 13.0))
    assert now.entry("m1") is second
    assert now.entry(None) is None


def test_members_about_whom_nothing_is_new_stay_the_same_objects(tmp_path, own):
    write(tmp_path, *FIRST)
    write_json(tmp_path / "status.json", {"state": "running"})
    own(tmp_path)
    reading = StandingsReader(tmp_path)
    reading.refresh()
    before = reading.latest
    assert not reading.refresh()
    assert reading.latest is before
    write(tmp_path, row(7, "slice_start", "m1", slot="b", from_steps=100))
    assert reading.refresh()
    assert reading.latest.entries[0] is before.entries[0]
    assert reading.latest.entries[1] is not before.entries[1]
    assert reading.latest.tree is before.tree
    assert reading.latest.busy == 2
    assert reading.latest.counts() == {"running": 2}
    write(tmp_path, row(8, "spawn", "m2", parent="m1", changes={"algorithm.gamma": 0.9}))
    assert reading.refresh()
    assert reading.latest.tree == ((0, "m0"), (1, "m1"), (2, "m2"))
    assert set(reading.latest.changes) == {"algorithm.learning_rate", "algorithm.gamma"}


def test_a_killed_orchestrator_shows_without_a_new_row(tmp_path, own):
    write(tmp_path, *FIRST)
    write_json(tmp_path / "status.json", {"state": "running"})
    own(tmp_path)
    reading = StandingsReader(tmp_path)
    reading.refresh()
    assert (reading.latest.state, reading.latest.live) == ("running", True)
    assert reading.latest.seconds(1101.0) == 100.0
    (tmp_path / "lock").unlink()  # as if nobody held it
    assert reading.refresh()
    assert (reading.latest.state, reading.latest.live) == ("dead", False)
    assert (reading.latest.busy, reading.latest.counts()["running"]) == (0, 0)


def test_nothing_is_there_yet(tmp_path):
    reading = StandingsReader(tmp_path / "soon")
    assert reading.refresh()
    assert not reading.refresh()
    assert reading.latest.entries == ()
    assert reading.latest.seconds(5.0) is None


def test_a_board_says_how_many_rows_of_the_journal_it_lacks(tmp_path):
    write(tmp_path, *FIRST[:3], *FIRST[4:])
    reading = StandingsReader(tmp_path)
    reading.refresh()
    _, (left, _) = head_of(reading.latest, 0.0)
    assert "1 row unread" in "".join(text for text, _ in left)
    write(tmp_path, row(7, "slice_end", "m0", to_steps=200, why="budget"), FIRST[-1])  # one that comes twice
    reading.refresh()
    assert reading.latest.skipped == 1
