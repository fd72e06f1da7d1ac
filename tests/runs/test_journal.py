import os
import random

import pytest

from erlcli.runs import journal as module
from erlcli.runs.journal import Board, Journal, fold
from erlcli.runs.jsonl import encode


def rows(*facts):
    """Rows with their numbers and times: 1, 2, 3 ..."""
    return [{"seq": i + 1, "time": float(i + 1), **row} for i, row in enumerate(facts)]


def spawn(member, parent=None, algorithm="ppo", steps=0, seed=1, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return {"event": "spawn", "member": member, "parent": parent, "algorithm": algorithm, "changes": changes,
            "seed": seed, "steps": steps}  # fmt: skip


def evaluate(member, mean, steps):
    return {"event": "evaluate", "member": member, "steps": steps, "mean": mean, "std": 2.0, "episodes": 50,
            "ci": [mean - 1, mean + 1]}  # fmt: skip


def start(member, slot="cuda:0", steps=0):
    return {"event": "slice_start", "member": member, "slot": slot, "from_steps": steps}


def end(member, steps):
    return {"event": "slice_end", "member": member, "to_steps": steps, "why": "budget"}


def on(event, member, **facts):
    return {"event": event, "member": member, **facts}


def test_a_member_through_its_life():
    facts = [
        spawn("a", algorithm="sac", seed=7, algorithm__gamma=0.99),
        start("a"),
        end("a", 100),
        evaluate("a", 5.0, 100),
        on("park", "a"),
        on("revive", "a"),
        on("promote", "a", rank=2),
        on("promote", "a", rank=1),
        on("retire", "a", reason="lowest score"),
    ]
    states = [fold(rows(*facts[: n + 1])).members["a"] for n in range(len(facts))]
    assert [member.state for member in states] == [
        "waiting", "running", "waiting", "waiting", "parked", "waiting", "waiting", "champion", "champion",
    ]  # fmt: skip
    assert [member.slot for member in states[:3]] == [None, "cuda:0", None]
    assert [member.rank for member in states[5:]] == [None, 2, 1, 1]
    last = states[-1]
    assert (last.activity, last.reason) == ("retired", "lowest score")
    assert (last.algorithm, last.seed, last.born, last.updated) == ("sac", 7, 1.0, 9.0)
    assert (last.steps, last.score, last.std, last.ci, last.episodes) == (100, 5.0, 2.0, (4.0, 6.0), 50)
    assert last.history == [(100, 5.0)]


def test_what_a_member_leaves_its_slot_by():
    for event, state in (("park", "parked"), ("retire", "retired")):
        board = fold(rows(spawn("a"), start("a"), on(event, "a"), end("a", 70)))
        assert (board.members["a"].state, board.members["a"].slot, board.members["a"].steps) == (state, None, 70)


def test_children_inherit_and_the_tree_has_them_below():
    board = fold(
        rows(
            spawn("a", algorithm="td3", x=1, y=2),
            end("a", 100),
            spawn("b"),
            {**spawn("c", "a", x=3), "steps": 100, "algorithm": None},
            spawn("d", "c", algorithm="td3", z=4),
            spawn("e", "a"),
        )
    )
    members = board.members
    assert (members["c"].algorithm, members["c"].steps, members["c"].born_steps) == ("td3", 100, 100)
    assert members["c"].changes == {"x": 3} and members["c"].parameters == {"x": 3, "y": 2}
    assert members["d"].parameters == {"x": 3, "y": 2, "z": 4}
    assert [member.id for member in members["d"].lineage] == ["a", "c", "d"]
    assert [(depth, member.id) for depth, member in board.lineage()] == [
        (0, "a"), (1, "c"), (2, "d"), (1, "e"), (0, "b"),
    ]  # fmt: skip
    x = [(change.time, change.steps, change.member, change.value) for change in board.changes["x"]]
    assert x == [(1.0, 0, "a", 1), (4.0, 100, "c", 3)]


def test_a_child_that_does_not_say_what_it_came_with_has_its_parents_steps():
    facts = spawn("b", "a")
    del facts["steps"]
    board = fold(rows(spawn("a"), end("a", 100), facts))
    assert board.members["b"].born_steps == 100


def test_the_ranking_has_the_highest_first_and_the_unscored_last():
    board = fold(
        rows(
            *[spawn(name) for name in "abcde"],
            evaluate("b", -3.0, 10),
            evaluate("d", 9.0, 10),
            evaluate("e", 9.0, 10),
            evaluate("b", 4.0, 20),
            evaluate("d", 1.0, 20),
        )
    )
    assert [member.id for member in board.ranking()] == ["e", "b", "d", "a", "c"]
    assert (board.members["d"].score, board.members["d"].best) == (1.0, 9.0)


def test_the_ranking_has_those_in_the_race_and_the_champion_before_the_retired():
    board = fold(
        rows(
            *[spawn(name) for name in "abcde"],
            *[evaluate(name, score, 10) for name, score in zip("abcd", (4.0, 3.0, 2.0, 1.0), strict=True)],
            on("promote", "b", rank=1),
            *[on("retire", name, reason="outdone") for name in "abe"],
        )
    )
    assert [member.id for member in board.ranking()] == ["b", "c", "d", "a", "e"]


def test_places_are_those_that_the_tournament_gives():
    scores = [{**evaluate("a", 10.0, 10), "ci": [2.0, 18.0]}, {**evaluate("b", 9.0, 10), "ci": [8.0, 10.0]}]
    facts = [spawn("a"), spawn("b"), *scores]
    for ranked_by, order in (("mean", ["a", "b"]), ("lower_bound", ["b", "a"])):
        board = fold(rows({"event": "open", "ranked_by": ranked_by}, *facts))
        assert [member.id for member in board.ranking()] == order


def test_the_crown_is_of_the_weights_that_were_promoted():
    facts = [
        spawn("a"),
        evaluate("a", 50.0, 10),
        on("promote", "a", rank=1, steps=10, mean=40.0, ci=[38.0, 42.0]),
        end("a", 20),
        evaluate("a", -5.0, 20),  # it trains on
    ]
    crown = fold(rows(*facts)).crown
    assert (crown.member.id, crown.steps, crown.mean, crown.ci) == ("a", 10, 40.0, (38.0, 42.0))
    again = {**evaluate("a", 45.0, 10), "fresh": {"mean": 41.0, "std": 1.0, "episodes": 60, "ci": [40.0, 42.0]}}
    crown = fold(rows(*facts, again)).crown
    assert (crown.mean, crown.ci) == (41.0, (40.0, 42.0))


def test_time_counts_while_somebody_is_at_work():
    facts = rows({"event": "open"}, spawn("a"), start("a"), end("a", 10), {"event": "open"}, start("a", steps=10))
    facts[4]["time"], facts[5]["time"] = 1000.0, 1002.0
    assert fold(facts).seconds == 3.0 + 2.0


def test_there_is_one_champion_at_a_time():
    board = fold(rows(spawn("a"), spawn("b"), on("promote", "a", rank=1), on("promote", "b", rank=1)))
    assert board.champion is board.members["b"]
    assert board.members["a"].rank is None
    assert fold([]).champion is None


def test_a_board_at_a_glance():
    board = fold(
        rows(
            {"event": "slots", "slots": ["cuda:0", "cuda:1"]},
            *[spawn(name) for name in "abcd"],
            start("a"),
            start("b", "cuda:1"),
            on("park", "c"),
            on("promote", "a", rank=1),
            {"event": "select", "candidates": ["a", "b"], "scores": [1, 2], "chosen": "b"},
            {"event": "slots", "slots": ["cuda:1"]},
        )
    )
    assert (board.slots, board.busy, board.skipped) == (["cuda:1"], 2, 0)
    assert board.counts() == {"champion": 1, "running": 1, "parked": 1, "waiting": 1}
    assert (board.started, board.updated, board.seq) == (1.0, 11.0, 11)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"event": "dance", "member": "a"},
        on("park", "nobody"),
        on("park", ["a"]),
        {"event": "park"},
        {"event": ["park"], "member": "a"},
        spawn("a"),  # a second time
        spawn("b", "nobody"),
        spawn(7),
        {**spawn("b"), "algorithm": None},
        {**spawn("b"), "changes": [1]},
        {**spawn("b"), "seed": "x"},
        {**evaluate("a", 1.0, 5), "mean": "nan"},  # as a NaN is written
        {**evaluate("a", 1.0, 5), "ci": [1.0]},
        {**evaluate("a", 1.0, 5), "ci": None},
        {**evaluate("a", 1.0, 5), "episodes": 1.5},
        {**start("a"), "slot": None},
        {**start("a"), "from_steps": "0"},
        {**end("a", 5), "to_steps": True},
        on("promote", "a", rank=0),
        on("retire", "a", reason=3),
        {"event": "slots", "slots": "cuda:0"},
        {"event": "slots", "slots": [0]},
        {**on("park", "a"), "seq": None},
        {**on("park", "a"), "time": "now"},
    ],
)
def test_a_row_that_makes_no_sense_changes_nothing(row):
    board = fold(rows({"event": "slots", "slots": ["cuda:0"]}, spawn("a")))
    before = (dict(vars(board.members["a"])), list(board.members), list(board.slots), board.seq, dict(board.changes))
    assert not board.add({"seq": 3, "time": 3.0, **row})
    member = board.members["a"]
    assert before == (dict(vars(member)), list(board.members), list(board.slots), board.seq, dict(board.changes))
    assert board.skipped == 1
    assert board.add({"seq": 3, "time": 3.0, **on("park", "a")})


def test_rows_that_cant_be_read_are_counted_once_and_rows_that_come_twice_are_none_of_them():
    slots = {"event": "slots", "slots": ["cpu:0"]}
    board = fold([{"seq": seq, "time": 1.0, **slots} for seq in (1, 2, 1, 2, 5)])
    assert board.skipped == 2  # 3 and 4, whose lines were no JSON
    board.add({"seq": 6, "time": 1.0, "event": "unknown"})
    board.add({"event": "slots"})
    assert board.skipped == 4
    board.add({"seq": 9, "time": 1.0, **slots})
    assert (board.skipped, board.seq) == (5, 9)  # 6, one without a number, and one more of 7 and 8


def test_histories_stay_bounded_and_keep_their_ends():
    facts = [spawn("a"), *[evaluate("a", float(n), n) for n in range(5_000)]]
    member = fold(rows(*facts)).members["a"]
    assert len(member.history) <= module.HISTORY
    assert member.history[0] == (0, 0.0)
    newest = [(n, float(n)) for n in range(5_000 - module.HISTORY_WHOLE, 5_000)]
    assert member.history[-module.HISTORY_WHOLE :] == newest


@pytest.fixture
def written(tmp_path):
    """A tournament's directory with a journal of 60 rows, and its rows."""
    draw = random.Random(5)
    facts = [spawn("m0"), spawn("m1")]
    for i in range(2, 30):
        facts += [spawn(f"m{i}", f"m{draw.randrange(i)}", x=i), evaluate(f"m{i}", draw.gauss(0, 1), i)]
    facts += [on("promote", "m3", rank=1), on("retire", "m4", reason="slow")]
    content = rows(*facts)
    (tmp_path / "journal.jsonl").write_text("".join(encode(row) + "\n" for row in content))
    return tmp_path, content


def shown(board):
    """Everything that tells two boards apart."""
    members = [
        (m.id, m.parent and m.parent.id, m.state, m.score, m.steps, m.history, [c.id for c in m.children])
        for m in board.members.values()
    ]
    return members, board.seq, [m.id for m in board.ranking()], board.changes


def test_a_journal_read_as_it_grows_is_the_fold_of_its_rows(tmp_path, written):
    source, content = written
    text = (source / "journal.jsonl").read_bytes()
    root = tmp_path / "growing"
    root.mkdir()
    journal, draw, position = Journal(root), random.Random(1), 0
    assert not journal.refresh()
    while position < len(text):
        step = draw.randint(1, 300)
        with (root / "journal.jsonl").open("ab") as file:
            file.write(text[position : position + step])
        position += step
        journal.refresh()
    assert not journal.refresh()
    assert shown(journal.board) == shown(fold(content))
    assert journal.board.skipped == 0


def test_a_journal_is_read_in_parts(written, monkeypatch):
    root, content = written
    monkeypatch.setattr(module, "READ_BYTES", 500)
    journal = Journal(root)
    assert journal.refresh() and not journal.refresh()
    assert shown(journal.board) == shown(fold(content))


def test_a_cut_at_each_byte_of_the_last_row_loses_that_row_at_most(written):
    root, content = written
    path = root / "journal.jsonl"
    text = path.read_bytes()
    before, whole = shown(fold(content[:-1])), shown(fold(content))
    for cut in range(text.rindex(b"\n", 0, -1) + 1, len(text) + 1):
        path.write_bytes(text[:cut])
        journal = Journal(root)
        journal.refresh()
        assert shown(journal.board) == (whole if cut == len(text) else before)


def test_damage_in_the_middle_costs_what_it_hit(written):
    root, content = written
    lines = (root / "journal.jsonl").read_text().splitlines()
    lines[-3] = lines[-3] + lines[-2]  # two rows joined
    lines[-2] = ""
    lines.insert(10, '{"seq": 11, "ti')
    lines.append("not a row")
    (root / "journal.jsonl").write_text("\n".join(lines) + "\n")
    journal = Journal(root)
    journal.refresh()
    assert shown(journal.board) == shown(fold(content))


def test_another_journal_in_its_place_begins_anew(written):
    root, _ = written
    journal = Journal(root)
    journal.refresh()
    fresh = root / "fresh"
    fresh.write_text("".join(encode(row) + "\n" for row in rows(spawn("other"))))
    os.replace(fresh, root / "journal.jsonl")
    assert journal.refresh()
    assert list(journal.board.members) == ["other"]
    os.truncate(root / "journal.jsonl", 0)
    assert journal.refresh()
    assert not journal.board.members


def test_an_empty_board_has_nothing():
    board = Board()
    assert (board.ranking(), board.lineage(), board.busy, dict(board.counts())) == ([], [], 0, {})
