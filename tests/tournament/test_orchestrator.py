"""The real orchestrator and journal on simulated slots: modes, faults, requests."""

import collections
import itertools
import json

import pytest

from erlcli.engine.stop_signals import LEAVE_SECONDS
from erlcli.errors import DamagedError, DivergedError, EnvError
from erlcli.recipe.load import read_toml
from erlcli.recipe.shipped import find
from erlcli.recipe.tournament import check_tournament
from erlcli.runs import control
from erlcli.runs.journal import fold as fold_board
from erlcli.runs.jsonl import read, write_json
from erlcli.runs.layout import RunLayout
from erlcli.tournament import evolve
from erlcli.tournament.ledger import facts_of, fold
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

SLICE = 1000
MODES = ("tournament", "generational", "pbt", "independent")


def recipe(**section):
    data = read_toml(find("tournament_cartpole"))
    data["train"] |= {"total_steps": 50_000, "target_return": section.pop("target", 10_000.0)}
    data["train"]["seed"] = section.pop("seed", 0)
    own = data["tournament"]
    own["search"] = {"algorithm.learning_rate": {"kind": "loguniform", "low": 1e-6, "high": 1.0}}
    own["slice"], own["budget"] = {"steps": SLICE}, {"steps": section.pop("budget", 40_000)}
    for key, value in section.items():
        own[key] = {**own.get(key, {}), **value} if isinstance(value, dict) else value
    return check_tournament(data, "test")


class Tournament:
    """A directory, a disk, and orchestrators on them, one after the other."""

    def __init__(self, root, made, **backend):
        root.mkdir(exist_ok=True)
        self.layout, self.recipe, self.options = RunLayout(root), made, backend
        self.store = MemoryStore(slice_steps=SLICE)

    def start(self):
        self.backend = SimulatedBackend(self.store, **self.options)
        self.orchestrator = Orchestrator(self.layout, self.recipe, self.backend, self.store)
        self.orchestrator._due["requests"] = float("inf")  # none but those that a test gives
        return self.orchestrator

    def run(self, slots=2, tick=lambda: None):
        return self.start().run([f"cpu:{i}" for i in range(slots)], tick)

    @property
    def rows(self):
        return read(self.layout.root / "journal.jsonl")

    @property
    def ledger(self):
        return fold(self.rows, lower_bound=True)

    def ask(self, kind, **facts):
        request = control.tournament_request(self.layout.root, kind, **facts)
        self.orchestrator._due["requests"] = 0.0
        return request


def events(rows, name):
    return [row for row in rows if row["event"] == name]


def check(rows):
    """What holds in every journal: numbers, slots with one member each, slices counted once, steps that add up."""
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    board = fold_board(rows)
    assert board.skipped == 0
    at, spent, steps = {}, 0, {}
    for row in rows:
        member = row.get("member")
        if row["event"] == "spawn":
            steps[member] = row["steps"]
        elif row["event"] == "slice_start":
            assert row["slot"] not in at.values() and member not in at
            assert row["from_steps"] == steps[member]
            at[member] = row["slot"]
        elif row["event"] == "slice_end":
            at.pop(member, None)
            assert row["to_steps"] >= steps[member]
            spent, steps[member] = spent + row["to_steps"] - steps[member], row["to_steps"]
    assert fold(rows).spent_steps == spent
    return board


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_runs_to_the_end_of_its_budget(mode, tmp_path):
    tournament = Tournament(tmp_path, recipe(mode=mode, members=4))
    outcome = tournament.run(slots=3)
    assert (outcome.exit_code, outcome.state) == (0, "finished")
    rows, ledger = tournament.rows, tournament.ledger
    check(rows)
    assert ledger.spent_steps == 40_000
    assert ledger.completed == 40
    assert not any(entry.begun or entry.needs_score for entry in ledger.alive.values())
    assert rows[-1]["event"] == "finish"
    assert tournament.store.crowned[-1] == ledger.crown
    assert bool(events(rows, "select")) == (mode != "independent")
    spawned = len(events(rows, "spawn"))
    assert spawned == 4 if mode == "independent" else spawned > 4


def test_evolution_beats_its_control_in_a_bad_search_space(tmp_path):
    """Most step sizes of the space learn next to nothing. Founders and budget are
    the same: evolution puts it where there is something to learn."""
    means = {}
    for mode in MODES:
        for seed in range(4):
            root = tmp_path / f"{mode}-{seed}"
            tournament = Tournament(root, recipe(mode=mode, members=8, budget=80_000, seed=seed))
            tournament.run(slots=4)
            means[mode, seed] = tournament.ledger.crown.mean
    for mode in ("tournament", "pbt"):
        assert all(means[mode, seed] > means["independent", seed] for seed in range(4))
    of = {mode: sum(means[mode, seed] for seed in range(4)) for mode in MODES}
    assert of["tournament"] > of["pbt"] > of["generational"] > of["independent"]


def test_lineages_grow_though_a_good_moment_is_rarely_repeated(tmp_path, monkeypatch):
    """Each slice throws a member off its learning curve, and scores are noisy. If children had to beat the best moment
    of their parents, the board would fill with those, and no lineage would get much further."""

    def grown(name):
        longest, champions = [], []
        for seed in range(8):
            root, made = tmp_path / f"{name}-{seed}", recipe(members=8, budget=80_000, seed=seed, target=1e9)
            tournament = Tournament(root, made, noise=100.0)
            tournament.store.wobble = 30.0
            tournament.run(slots=2)
            ledger = tournament.ledger
            longest.append(max(member.steps for member in ledger.board.members.values()) / SLICE)
            champions.append(tournament.store.members[ledger.crown.member].levels[ledger.crown.steps])
        return longest, sum(champions) / 8

    longest, champions = grown("succession")
    monkeypatch.setattr(evolve, "succession", lambda ledger, recipe: None)
    held, stuck = grown("none")
    assert min(longest) > max(held)
    assert champions > stuck + 30.0


@pytest.mark.parametrize("mode", MODES)
def test_a_tournament_of_one(mode, tmp_path):
    tournament = Tournament(tmp_path, recipe(mode=mode, members=1, budget=10_000))
    assert tournament.run(slots=2).state == "finished"
    check(tournament.rows)
    assert tournament.ledger.spent_steps == 10_000
    assert tournament.ledger.crown is not None


@pytest.mark.parametrize("mode", MODES)
def test_equal_scores_are_no_deadlock_and_lineages_still_grow(mode, tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryStore, "mean", lambda *_: 1.0)
    tournament = Tournament(tmp_path, recipe(mode=mode, members=4))
    assert tournament.run(slots=2).state == "finished"
    ledger = tournament.ledger
    assert ledger.spent_steps == 40_000
    assert max(entry.steps for entry in ledger.alive.values()) >= 5_000


@pytest.mark.parametrize("mode", ["tournament", "generational"])
def test_pods_of_a_member_differ_in_their_seeds_and_are_fused(mode, tmp_path):
    made = recipe(mode=mode, members=3, pods_per_member=3, budget=45_000)
    tournament = Tournament(tmp_path, made)
    assert tournament.run(slots=4).state == "finished"
    rows = tournament.rows
    check(rows)
    spawns = {row["member"]: row for row in events(rows, "spawn")}
    fused = [row for row in spawns.values() if row.get("fused")]
    assert len(fused) >= 5
    for row in fused:
        pods = [spawns[name] for name in row["fused"]]
        assert len(pods) == 3
        assert len({pod["seed"] for pod in pods}) == 3
        assert len({(pod["parent"], pod["steps"]) for pod in pods}) == 1
        parameters = [tournament.ledger.board.members[pod["member"]].parameters for pod in pods]
        assert parameters[0] == parameters[1] == parameters[2]
    for unit in tournament.ledger.units.values():
        left = [name for name in [*unit.members, unit.fused] if name in tournament.ledger.alive]
        assert len(left) <= 1 or not unit.settled


def test_the_target_ends_it_at_once_and_slices_are_saved(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=8, budget=1_000_000, target=120.0))
    outcome = tournament.run(slots=4)
    assert outcome.state == "finished"
    rows = tournament.rows
    assert rows[-1]["reason"] == "target reached"
    assert tournament.ledger.crown.mean >= 120.0
    confirmed = [row for row in events(rows, "evaluate") if row["kind"] == "confirm"]
    assert confirmed[-1]["member"] == tournament.ledger.crown.member


def test_after_the_target_a_larger_budget_is_used_and_the_same_one_is_not(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=8, budget=100_000, target=120.0))
    tournament.run(slots=4)
    spent = tournament.ledger.spent_steps
    assert spent < 90_000
    assert tournament.run(slots=4).state == "finished"
    assert (tournament.rows[-1]["reason"], tournament.ledger.spent_steps) == ("target reached", spent)
    tournament.recipe = recipe(members=8, budget=110_000, target=120.0)
    assert tournament.run(slots=4).state == "finished"
    assert tournament.rows[-1]["reason"] == "budget used"
    assert tournament.ledger.spent_steps == 110_000


def test_nobody_is_champion_without_fresh_seeds(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=6), noise=80.0)
    tournament.run(slots=3)
    rows = tournament.rows
    for row in events(rows, "promote"):
        last = [r for r in rows[: row["seq"]] if r["event"] == "evaluate" and r["member"] == row["member"]][-1]
        assert (last["kind"] in ("confirm", "again"), last["steps"]) == (True, row["steps"])
        assert (last["fresh"]["mean"], last["ci"][0]) == (row["mean"], row["value"])


def test_more_members_than_slots_all_get_their_burn_in_and_nobody_starves(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=16, budget=64_000, burn_in=2))
    tournament.run(slots=2)
    rows = tournament.rows
    slices = collections.Counter(row["member"] for row in events(rows, "slice_start"))
    assert all(slices[f"m{i:03d}"] == 2 for i in range(16))


@pytest.mark.parametrize("mode", ["pbt", "independent"])
def test_the_wait_for_a_slot_is_bounded(mode, tmp_path):
    """Between two slices of a member nobody else gets more than two."""
    tournament = Tournament(tmp_path, recipe(mode=mode, members=9, budget=90_000))
    tournament.run(slots=2)
    starts = [row["member"] for row in events(tournament.rows, "slice_start")]
    for member in set(starts):
        places = [i for i, name in enumerate(starts) if name == member]
        assert max([b - a for a, b in itertools.pairwise(places)], default=0) <= 2 * 9


# Faults


class Killed(BaseException):
    pass


@pytest.mark.parametrize("mode", MODES)
def test_killed_at_every_line_of_the_journal_it_goes_on(mode, tmp_path):
    """Nothing is lost, nothing counted twice, and each row that was decided is one that follows from those before."""
    section = {"mode": mode, "members": 3, "budget": 9_000}
    if mode == "generational":
        section |= {"pods_per_member": 2, "budget": 12_000}
    whole = Tournament(tmp_path / "whole", recipe(**section))
    whole.run()
    for line in range(1, len(whole.rows), 1 if mode == "tournament" else 3):
        tournament = Tournament(tmp_path / str(line), recipe(**section))
        orchestrator = tournament.start()
        write = orchestrator.journal.write

        def torn(rows, write=write, line=line, root=tournament.layout.root):
            left = line - (rows[0]["seq"] - 1) if rows else 1
            if left >= len(rows):
                return write(rows)
            write(rows[:left])
            with (root / "journal.jsonl").open("a") as file:
                file.write(json.dumps(rows[left])[:-7])
            raise Killed

        orchestrator.journal.write = torn
        with pytest.raises(Killed):
            orchestrator.run(["cpu:0", "cpu:1"])
        assert len(tournament.rows) == line
        outcome = tournament.run()
        assert outcome.state == "finished"
        board = check(tournament.rows)
        assert (tmp_path / str(line) / "journal.torn-1").exists()
        ledger = tournament.ledger
        assert ledger.spent_steps == (12_000 if mode == "generational" else 9_000)
        assert not any(entry.begun or entry.needs_score for entry in ledger.alive.values())
        assert facts_of(board) == facts_of(tournament.orchestrator.ledger.board)


@pytest.mark.parametrize("mode", MODES)
def test_decisions_replay_identically_from_every_prefix(mode, tmp_path):
    pods = 2 if mode == "generational" else 1
    made = recipe(mode=mode, members=5, budget=30_000, pods_per_member=pods, mutation={"crossover": 0.5, "fresh": 0.2})
    tournament = Tournament(tmp_path, made)
    tournament.run(slots=3)
    rows = tournament.rows
    ledger, decided = fold([], lower_bound=True), 0
    for row in rows:
        if row["event"] in ("spawn", "promote", "retire", "generation"):
            again = evolve.settle(ledger, made)
        elif row["event"] == "select":
            again = evolve.settle(ledger, made) or evolve.breed(ledger, made, idle=False)
        else:
            again = None
        if again is None and row["event"] == "spawn":
            again = evolve.breed(ledger, made, idle=True)  # a fresh one
        if again is not None:
            assert {**again, "seq": row["seq"], "time": row["time"]} == row
            decided += 1
        ledger.add(row)
        assert facts_of(ledger.board) == facts_of(fold_board(rows[: row["seq"]]))
    assert decided > 10


def error(kind, oom=False):
    return {**kind("it broke").to_json(), "oom": oom}


def test_a_member_that_always_fails_is_retired_and_the_others_go_on(tmp_path):
    broken = lambda order, number, slot: error(EnvError) if order.member == "m001" else None  # noqa: E731
    tournament = Tournament(tmp_path, recipe(mode="independent", members=3, budget=12_000), fails=broken)
    assert tournament.run().state == "finished"
    retired = events(tournament.rows, "retire")
    assert [(row["member"], row["reason"]) for row in retired] == [("m001", "failed 3 times in a row: it broke")]
    assert tournament.ledger.spent_steps == 12_000


def test_what_would_fail_again_is_not_tried_again(tmp_path):
    broken = lambda order, number, slot: error(DivergedError) if order.member == "m001" else None  # noqa: E731
    tournament = Tournament(tmp_path, recipe(members=3, budget=12_000), fails=broken)
    tournament.run()
    starts = [row for row in events(tournament.rows, "slice_start") if row["member"] == "m001"]
    assert len(starts) == 1


def test_a_parent_whose_checkpoint_is_damaged_is_retired_and_the_others_go_on(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=4))
    damaged = tournament.store.damaged

    def fails(order, number, slot):
        parent = tournament.orchestrator.ledger.board.members[order.member].parent
        if parent is not None and not damaged:
            damaged.add(parent.id)
        return error(DamagedError) if parent is not None and parent.id in damaged else None

    tournament.options = {"fails": fails}
    assert tournament.run().state == "finished"
    rows, [parent] = tournament.rows, damaged
    check(rows)
    assert f"{parent}: damaged" in [row["reason"] for row in events(rows, "retire") if row["member"] == parent]
    failed = [row for row in events(rows, "slice_end") if row["why"] == "failed"]
    assert 1 <= len(failed) <= 2  # no more than one child at each slot
    assert all((row["kind"], row["exit_code"]) == ("DamagedError", 6) for row in failed)
    assert tournament.ledger.spent_steps == 40_000


def test_a_parent_whose_files_are_gone_is_retired_and_the_others_go_on(tmp_path, monkeypatch):
    tournament = Tournament(tmp_path, recipe(members=4))
    create, damaged = MemoryStore.create, tournament.store.damaged

    def made(store, member, row):
        if member.parent is not None and damaged <= {member.parent.id}:
            damaged.add(member.parent.id)
            raise DamagedError("no checkpoint")
        create(store, member, row)

    monkeypatch.setattr(MemoryStore, "create", made)
    assert tournament.run().state == "finished"
    rows, [parent] = tournament.rows, damaged
    check(rows)
    children = [row["member"] for row in events(rows, "spawn") if row["parent"] == parent]
    reasons = {row["member"]: row["reason"] for row in events(rows, "retire")}
    assert len(children) <= 2
    assert (reasons[parent], reasons[children[0]]) == (f"{parent}: damaged", "no checkpoint")


def test_a_member_whose_scored_checkpoint_is_gone_is_retired_and_the_others_go_on(tmp_path, monkeypatch):
    tournament = Tournament(tmp_path, recipe(members=4))

    def scored_checkpoint(store, member, steps):
        if member == "m001":
            raise DamagedError("m001: no checkpoint")
        return str(steps)

    monkeypatch.setattr(MemoryStore, "mean", lambda store, member, *_: 500.0 if member == "m001" else 1.0)
    monkeypatch.setattr(MemoryStore, "scored_checkpoint", scored_checkpoint)
    assert tournament.run().state == "finished"
    check(tournament.rows)
    assert "m001: no checkpoint" in [row["reason"] for row in events(tournament.rows, "retire")]
    assert tournament.ledger.crown.member != "m001"


def test_a_damaged_parent_that_is_at_work_is_retired_when_it_has_left_its_slot(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=2, budget=8_000))
    tournament.store.damaged.add("m000")
    tournament.options = {"fails": lambda order, number, slot: error(DamagedError) if order.member == "m002" else None}
    tick, _ = at_rows(tournament, 12, lambda: tournament.ask("clone", member="m000"))
    assert tournament.run(slots=3, tick=tick).state == "finished"
    check(tournament.rows)
    assert {row["member"] for row in events(tournament.rows, "retire")} == {"m000", "m002"}


def test_where_all_are_damaged_the_remedy_is_no_training_of_a_fresh_one(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=3), fails=lambda *_: error(DamagedError))
    outcome = tournament.run()
    assert (outcome.state, outcome.exit_code) == ("failed", 6)
    assert "erl train" not in outcome.error.remedy
    assert "backup" in outcome.error.remedy


def test_a_single_failure_is_told_as_one(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=3, max_failures=1), fails=lambda *_: error(EnvError))
    tournament.run()
    assert events(tournament.rows, "retire")[0]["reason"] == "failed 1 time in a row: it broke"


def test_without_slots_it_says_so_at_each_start(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=3, budget=9_000))
    for _ in range(2):
        tick, _ = at_rows(tournament, 1, lambda: tournament.ask("stop"))
        assert tournament.run(slots=0, tick=tick).state == "interrupted"
    assert [row["slots"] for row in events(tournament.rows, "slots")] == [[], []]


def test_a_failure_now_and_then_costs_nothing_but_a_slice(tmp_path):
    flaky = lambda order, number, slot: error(EnvError) if number % 4 == 0 else None  # noqa: E731
    tournament = Tournament(tmp_path, recipe(members=4), fails=flaky)
    assert tournament.run().state == "finished"
    check(tournament.rows)
    assert tournament.ledger.spent_steps == 40_000


@pytest.mark.parametrize("mode", MODES)
def test_where_everybody_fails_it_ends_with_the_last_reason(mode, tmp_path):
    tournament = Tournament(tmp_path, recipe(mode=mode, members=3), fails=lambda *_: error(EnvError))
    outcome = tournament.run()
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert outcome.error.found.endswith("it broke")
    assert tournament.ledger.completed == 0

    # Whoever opens it again has mended what was broken.
    tournament.options = {}
    assert tournament.run().state == "finished"
    assert tournament.ledger.completed == 40
    check(tournament.rows)


def test_a_run_that_ends_before_its_lineage_should_is_not_begun_again_and_again(tmp_path, monkeypatch):
    """As one whose own recipe has fewer steps than the tournament's."""
    tournament = Tournament(tmp_path, recipe(mode="independent", members=2))
    orchestrator = tournament.start()
    end = orchestrator.end_slice
    done = lambda member, steps, why, *rest, **facts: end(member, steps, "done", *rest, **facts)  # noqa: E731
    monkeypatch.setattr(orchestrator, "end_slice", done)
    assert orchestrator.run(["cpu:0"]).state == "finished"
    assert tournament.ledger.completed == 2
    assert tournament.rows[-1]["reason"] == "nobody is left to train"


def test_a_gpu_without_memory_gets_fewer_members_and_nobody_is_blamed(tmp_path):
    def full(order, number, slot):
        gpu = slot.partition("/")[0]
        crowd = [s for s in tournament.backend._jobs if s.startswith(gpu)]
        return error(RuntimeOom, oom=True) if len(crowd) > 2 and order.train else None

    tournament = Tournament(tmp_path, recipe(members=6), fails=full)
    names = [f"cuda:0/{i}" for i in range(4)] + ["cuda:1"]
    assert tournament.start().run(names).state == "finished"
    assert tournament.ledger.board.slots == ["cuda:0/0", "cuda:0/1", "cuda:1"]
    assert all("broke" not in row["reason"] for row in events(tournament.rows, "retire"))
    assert tournament.ledger.failed == 0


def test_two_that_run_out_of_the_same_memory_are_both_not_to_blame(tmp_path):
    """The second one's news come when the first one's have already cost a slot."""
    tournament = Tournament(
        tmp_path,
        recipe(members=2),
        fails=lambda order, number, slot: error(RuntimeOom, oom=True) if number <= 2 and order.train else None,
    )
    assert tournament.start().run(["cuda:0/0", "cuda:0/1"]).state == "finished"
    assert tournament.ledger.board.slots == ["cuda:0/0"]
    assert not [row for row in events(tournament.rows, "slice_end") if row["why"] == "failed"]


def test_who_runs_out_of_memory_alone_is_to_blame_even_after_others_were_not(tmp_path):
    alone = lambda order, number, slot: error(RuntimeOom, oom=True) if order.train else None  # noqa: E731
    tournament = Tournament(tmp_path, recipe(members=2), fails=alone)
    tournament.start().run(["cuda:0/0", "cuda:0/1"])
    failed = [row for row in events(tournament.rows, "slice_end") if row["why"] == "failed"]
    assert len(events(tournament.rows, "slice_start")) == len(failed) + 2  # the two that shared


class RuntimeOom(EnvError):
    pass


# Requests


def at_rows(tournament, number, act):
    """Call `act` once there are `number` rows."""
    done = []

    def tick():
        if not done and tournament.orchestrator.journal.seq >= number:
            done.append(act())

    return tick, done


def test_slots_that_go_park_their_members_and_slots_that_come_revive_them(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=4))
    log = []

    def tick():
        seq = tournament.orchestrator.journal.seq
        if seq >= 30 and not log:
            log.append(tournament.ask("slots", slots=["cpu:1"]))
        elif seq >= 60 and len(log) == 1:
            log.append(tournament.ask("slots", slots=["cpu:1", "cpu:2", "cpu:5"]))

    assert tournament.run(slots=4, tick=tick).state == "finished"
    rows = tournament.rows
    check(rows)
    changes = events(rows, "slots")
    assert [row.get("request") for row in changes] == [None, *log]
    parked = [row["member"] for row in events(rows, "park")]
    broken_off = [row["member"] for row in events(rows, "slice_end") if row["why"] == "stopped"]
    assert parked == broken_off
    assert 1 <= len(parked) <= 3
    assert sorted(row["member"] for row in events(rows, "revive")) == sorted(parked)
    between = [row for row in events(rows, "slice_start") if changes[1]["seq"] < row["seq"] < changes[2]["seq"]]
    assert {row["slot"] for row in between} == {"cpu:1"}
    assert tournament.ledger.spent_steps == 40_000


def test_slots_can_be_asked_for_by_their_number(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=4))
    log = []

    def tick():
        seq = tournament.orchestrator.journal.seq
        if seq >= 30 and not log:
            log.append(tournament.ask("slots", count=1))
        elif seq >= 60 and len(log) == 1:
            log.append(tournament.ask("slots", count=3))

    assert tournament.run(slots=2, tick=tick).state == "finished"
    changes = events(tournament.rows, "slots")
    assert [row.get("request") for row in changes] == [None, *log]
    assert [len(row["slots"]) for row in changes] == [2, 1, 3]
    assert tournament.ledger.board.answers == dict.fromkeys(log, "")
    check(tournament.rows)


def test_a_slot_that_goes_during_an_evaluation_loses_nothing(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=2, budget=8_000), evaluate_seconds=5.0)
    log = []

    def tick():
        if not log and tournament.orchestrator._evaluating:
            [slot] = list(tournament.orchestrator._evaluating)[:1]
            log.append(tournament.ask("slots", slots=[s for s in ("cpu:0", "cpu:1") if s != slot]))

    assert tournament.run(tick=tick).state == "finished"
    rows = tournament.rows
    assert log
    assert not events(rows, "park")
    assert len([row for row in events(rows, "evaluate") if row["kind"] == "slice"]) == tournament.ledger.completed == 8


def test_all_slots_gone_is_a_wait_and_no_end(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=3, budget=9_000))
    log, waits = [], []

    def tick():
        if not log and tournament.orchestrator.journal.seq >= 20:
            log.append(tournament.ask("slots", slots=[]))
        elif log and not tournament.orchestrator.busy:
            waits.append(1)
            if len(waits) == 5:
                log.append(tournament.ask("slots", slots=["cpu:0"]))

    assert tournament.run(tick=tick).state == "finished"
    assert len(log) == 2
    assert tournament.ledger.spent_steps == 9_000


def test_kill_and_clone(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=3, budget=20_000))
    log = []

    def tick():
        if not log and tournament.orchestrator.journal.seq >= 20:
            busy = next(iter(tournament.orchestrator.busy.values())).member
            log.extend([busy, tournament.ask("kill", member=busy), tournament.ask("clone", member="m000"),
                        tournament.ask("kill", member="nobody")])  # fmt: skip

    tournament.run(tick=tick)
    rows = tournament.rows
    check(rows)
    by_request = {row["request"]: row for row in rows if "request" in row}
    killed, kill, clone, refused = log
    assert (by_request[kill]["event"], by_request[kill]["member"]) == ("retire", killed)
    assert by_request[clone]["event"] == "spawn"
    assert (by_request[clone]["parent"], by_request[clone]["changes"]) == ("m000", {})
    assert by_request[refused]["event"] == "refuse"


def test_a_kill_of_one_that_fails_for_good_meanwhile_is_answered(tmp_path):

    def broken(order, number, slot):
        if order.member != "m001":
            return None
        row = {"event": "retire", "member": "m001", "reason": "killed by a user", "request": "r1"}
        tournament.orchestrator.killed["m001"] = row  # its slot is yet to be told
        return error(DivergedError)

    tournament = Tournament(tmp_path, recipe(mode="independent", members=3, budget=12_000), fails=broken)
    tournament.run()
    [answer] = [row for row in tournament.rows if row.get("request") == "r1"]
    assert (answer["event"], answer["reason"].startswith("m001")) == ("refuse", True)


def test_pause_and_resume(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=3, budget=9_000))
    log, idle = [], []

    def tick():
        if not log and tournament.orchestrator.journal.seq >= 12:
            log.append(tournament.ask("pause"))
        elif len(log) == 1 and not tournament.orchestrator.busy:
            idle.append(1)
            if len(idle) == 3:
                log.append(tournament.ask("resume"))

    assert tournament.run(tick=tick).state == "finished"
    rows = tournament.rows
    first, last = (row["seq"] for row in rows if row.get("request") in log)
    assert not [row for row in events(rows, "slice_start") if first < row["seq"] < last]
    assert tournament.ledger.spent_steps == 9_000


def test_a_stop_saves_everything_and_a_resume_ends_it(tmp_path):
    tournament = Tournament(tmp_path, recipe(members=4))
    tick, _ = at_rows(tournament, 25, lambda: tournament.ask("stop"))
    outcome = tournament.run(tick=tick)
    assert (outcome.exit_code, outcome.state) == (130, "interrupted")
    assert not tournament.ledger.running()
    assert tournament.run().state == "finished"
    check(tournament.rows)
    assert tournament.ledger.spent_steps == 40_000


@pytest.mark.parametrize(
    ("asked", "given"), [({}, LEAVE_SECONDS), ({"seconds": 1.0}, LEAVE_SECONDS), ({"seconds": 300.0}, 300.0)]
)
def test_slices_get_the_time_for_their_last_checkpoint_that_was_asked_for(asked, given, tmp_path, monkeypatch):
    tournament, granted = Tournament(tmp_path, recipe(members=4)), []
    stop = SimulatedBackend.stop

    def spy(backend, slot, seconds):
        granted.append(seconds)
        stop(backend, slot, seconds)

    def ask():
        write_json(tournament.layout.stop_request, {"reason": "user"} | asked)
        tournament.orchestrator._due["requests"] = 0.0

    monkeypatch.setattr(SimulatedBackend, "stop", spy)
    tick, _ = at_rows(tournament, 25, ask)
    assert tournament.run(tick=tick).state == "interrupted"
    assert granted and set(granted) == {given}


def test_a_member_stopped_by_its_user_leaves_the_race(tmp_path):
    tournament = Tournament(tmp_path, recipe(mode="independent", members=2, budget=8_000))
    done = []

    def tick():
        if not done and tournament.orchestrator.journal.seq >= 12:
            evaluating = tournament.orchestrator._evaluating
            busy = tournament.orchestrator.busy.items()
            slot = next((slot for slot, task in busy if task.kind == "slice" and slot not in evaluating), None)
            if slot is None:
                return
            tournament.backend.stop(slot, 20.0)
            report = tournament.backend._ready[-1]
            report.facts["user"] = True
            done.append(report.member)

    tournament.run(tick=tick)
    [row] = events(tournament.rows, "retire")
    assert row["member"] == done[0]
    assert "stopped by its user" in row["reason"]
