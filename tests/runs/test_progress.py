"""How a tournament went, from rows of its journal."""

import pytest

from erlcli.runs.progress import fold, quantile


class Tale:
    def __init__(self):
        self.rows, self.time = [], 100.0

    def add(self, event, seconds=1.0, **facts):
        self.time += seconds
        self.rows.append({"seq": len(self.rows) + 1, "time": self.time, "event": event, **facts})
        return self

    def spawn(self, name, parent=None, steps=0):
        return self.add("spawn", member=name, parent=parent, algorithm="ppo", steps=steps, changes={"a": 1}, seed=0)

    def slice(self, name, first, last, why="budget"):
        self.add("slice_start", member=name, slot="cpu:0", from_steps=first)
        return self.add("slice_end", 10.0, member=name, to_steps=last, why=why)

    def score(self, name, mean, steps=None):
        return self.add("evaluate", member=name, kind="slice", steps=steps or 100, mean=mean, std=1.0, episodes=20,
                        ci=[mean - 1, mean + 1])  # fmt: skip


@pytest.fixture
def tale():
    made = Tale().add("open").spawn("m000").slice("m000", 0, 100).score("m000", 10.0)
    made.add("promote", member="m000", rank=1, steps=100, mean=9.0, value=9.5)
    made.spawn("m001", "m000", 100).slice("m001", 100, 150, "stopped")
    made.add("open", 5000.0)  # nobody was at work meanwhile
    return made.slice("m001", 150, 200).score("m001", 30.0, 200)


def test_steps_are_those_of_all_members_and_inherited_ones_count_once(tale):
    progress = fold(tale.rows)
    assert (progress.steps, progress.slices) == (200, 2)
    assert progress.births == {"m000": 0, "m001": 100}
    assert [(moment.steps, moment.member, moment.mean) for moment in progress.scores] == [
        (100, "m000", 10.0), (200, "m001", 30.0)
    ]  # fmt: skip


def test_time_at_work_leaves_out_the_nights(tale):
    assert fold(tale.rows).seconds == pytest.approx(tale.rows[-1]["time"] - 101.0 - 5000.0)


def test_the_best_is_of_champions_alone(tale):
    tale.add("promote", member="m001", rank=1, steps=200, mean=25.0, value=28.0)
    tale.add("promote", member="m000", rank=1, steps=100, mean=20.0, value=20.0)
    progress = fold(tale.rows)
    assert [moment.mean for moment in progress.best] == [9.0, 25.0, 20.0]
    assert [moment.mean for moment in progress.best_so_far()] == [9.0, 25.0]
    assert progress.reached(21.0).member == "m001"
    assert progress.reached(26.0) is None


def test_a_champion_that_is_played_again_has_a_new_mean(tale):
    fresh = {"mean": 7.0, "std": 1.0, "episodes": 70}
    row = {"member": "m000", "kind": "again", "mean": 8.0, "std": 1.0, "episodes": 90, "ci": [7.0, 9.0]}
    tale.add("evaluate", **row, steps=100, fresh=fresh)
    tale.add("evaluate", **row, steps=200, fresh=fresh)  # other weights
    progress = fold(tale.rows)
    assert [moment.mean for moment in progress.best] == [9.0, 7.0]
    assert [moment.mean for moment in progress.best_so_far()] == [9.0]


def test_the_crowd_is_who_is_in_the_race(tale):
    progress = fold(tale.rows)
    assert (progress.crowds[-1].low, progress.crowds[-1].median, progress.crowds[-1].high) == (15.0, 20.0, 25.0)
    tale.add("retire", member="m000", reason="x")
    progress = fold(tale.rows)
    assert progress.crowds[-1].median == 30.0
    assert [member.id for member in progress.top(5)] == ["m001"]


def test_quantiles_by_hand():
    assert [quantile([1.0, 2.0, 4.0, 8.0], share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.75, 3.0, 8.0]
    assert quantile([3.0], 0.75) == 3.0


def test_rows_of_no_meaning_change_nothing(tale):
    before = fold(tale.rows)
    tale.rows.append({"seq": 1, "time": 0.0, "event": "slice_end", "member": "m000", "to_steps": 999})
    tale.rows.append({"nonsense": True})
    after = fold(tale.rows)
    assert (after.steps, after.seconds, after.scores) == (before.steps, before.seconds, before.scores)
