"""`erl tournament`, `erl scale`, and the other verbs on a tournament, as processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from erlcli.cli.resume import _refuse_for_member
from erlcli.cli.tournament import _Lines, create
from erlcli.errors import OwnedError, RecipeError
from erlcli.recipe.load import load
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.jsonl import read, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock, is_owned
from erlcli.tournament.ledger import fold

COMMAND = [sys.executable, "-m", "erlcli"]
SMALL = [
    "env.backend=gymnasium", "env.num_envs=2", "algorithm.rollout_length=32", "algorithm.batch_size=64",
    "train.total_steps=100_000", "tournament.slice.steps=320", "tournament.members=3",
    "tournament.budget.steps=2_560", "tournament.evaluation.episodes=3", "tournament.evaluation.confirm_episodes=4",
    "eval.num_envs=2", "network.hidden=[8]", "train.target_return=1_000",  # which is never reached by luck
]  # fmt: skip
SETS = [part for setting in SMALL for part in ("--set", setting)]
LONG = [*SETS, "--set", "tournament.budget.steps=50_000_000", "--set", "tournament.slice.steps=6400"]


def erl(*arguments, **options):
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def rows_of(root):
    return read(root / "journal.jsonl")


def wait_for(root, event, count=1, seconds=60.0):
    deadline = time.monotonic() + seconds
    while len([row for row in rows_of(root) if row["event"] == event]) < count:
        assert time.monotonic() < deadline, rows_of(root)[-3:]
        threading.Event().wait(0.05)


def processes_of(root):
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in process.cmdline():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until_gone(root, seconds=10.0):
    deadline = time.monotonic() + seconds
    while (left := processes_of(root)) or is_owned(root / "lock"):
        assert time.monotonic() < deadline, left
        threading.Event().wait(0.05)


def test_json_is_one_value_and_lines_tell_the_story(tmp_path):
    root = tmp_path / "run"
    done = erl("tournament", "tournament_cartpole", *SETS, "--slots", 2, "--run-dir", root, "--json", "--seed", 3)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["state"], row["exit_code"], row["slices"], row["mode"]) == ("finished", 0, 8, "tournament")
    assert row["champion_path"] == str(root / "champion")
    assert row["champion"] == fold(rows_of(root)).crown.member
    done = erl("resume", root, "--no-tui", "--set", "tournament.budget.steps=3_200")
    assert done.returncode == 0, done.stderr
    assert "finished: budget used" in done.stdout
    assert "erl eval" in done.stdout
    assert max(len(line) for line in done.stdout.replace(str(root), "runs/t").splitlines()) <= 100
    assert fold(rows_of(root)).completed == 10
    done = erl("resume", root, "--no-tui")
    assert "--set tournament.budget.steps=6400" in done.stdout.splitlines()[-1]
    done = erl("resume", root, "--no-tui", "--set", "algorithm.adam_eps=1e-6")
    assert done.returncode == 0, done.stderr
    alive = fold(rows_of(root)).alive
    assert all(load(root / "members" / name / "recipe.toml").algorithm.adam_eps == 1e-6 for name in alive)
    done = erl("resume", root, "--set", "tournament.mode=pbt")
    assert done.returncode == 2
    assert "can't change within a tournament" in done.stderr
    recipe = (root / "recipe.toml").read_text()
    done = erl("resume", root, "--set", "network.hidden=[24]")
    assert done.returncode == 2
    assert "network.hidden" in done.stderr and (root / "recipe.toml").read_text() == recipe


def scale_until_parked(root):
    """A slot that goes while its member is evaluated, and not trained, parks nobody: the next one does."""
    for _ in range(10):
        done = erl("scale", root, "--slots", 1)
        assert done.returncode == 0, done.stderr
        assert "1 slot: cpu:" in done.stdout
        seq = max(row["seq"] for row in rows_of(root) if row["event"] == "slots")
        wait_until_parked_or_scored(root, seq, 4)
        if any(row["event"] == "park" for row in rows_of(root)):
            return
        assert erl("scale", root, "--slots", 2).returncode == 0
    raise AssertionError("nobody was ever parked")


def wait_until_parked_or_scored(root, seq, scores, seconds=60.0):
    """Until somebody is parked after row `seq`; or for so many scores, by when whatever was at the slot is over."""
    deadline = time.monotonic() + seconds
    while True:
        events = [row["event"] for row in rows_of(root) if row["seq"] > seq]
        if "park" in events or events.count("evaluate") >= scores:
            return
        assert time.monotonic() < deadline, events[-3:]
        threading.Event().wait(0.05)


def test_in_the_background_it_is_listed_scaled_stopped_and_resumed(tmp_path):
    root = tmp_path / "run"
    done = erl("tournament", "tournament_cartpole", *LONG, "--slots", 2, "--run-dir", root, "--detach")
    assert done.returncode == 0, done.stderr
    wait_for(root, "slice_end")  # the processes are there, not only asked for

    listed = json.loads(erl("ps", "--json").stdout)
    [mine] = [row for row in listed if row["path"] == str(root)]
    assert (mine["state"], mine["algorithm"], mine["env"]) == ("running", "tournament", "CartPole-v1")
    assert len(mine["pids"]) == 3

    second = erl("resume", root)
    assert second.returncode == 5

    scale_until_parked(root)
    done = erl("scale", root, "--gpus", "0-7") if not _gpus() else None
    assert done is None or done.returncode == 2
    assert erl("scale", root, "--slots", 3).returncode == 0
    wait_for(root, "revive")

    done = erl("stop", root)
    assert done.returncode == 0, done.stderr
    assert "erl resume" in done.stdout
    wait_until_gone(root)
    ledger = fold(rows_of(root))
    assert not ledger.running()
    assert len(ledger.board.slots) == 3
    assert erl("scale", root, "--slots", 1).returncode == 2

    more = f"tournament.budget.steps={ledger.spent_steps + 1}"
    done = erl("resume", root, "--no-tui", "--set", more, "--slots", 1)
    assert done.returncode == 0, done.stderr
    assert len(fold(rows_of(root)).board.slots) == 1
    wait_until_gone(root)


def test_a_resume_that_fails_has_its_exit_code_in_the_background_too(tmp_path):
    layout = create("tournament_cartpole", [], None, tmp_path / "run")
    rows = [{"seq": number, "time": 1.0, "event": "open"} for number in (1, 3)]
    (layout.root / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(layout.status, {"state": "finished", "slices": 0})
    told = []
    for how in ("--no-tui", "--detach"):
        done = erl("resume", layout.root, "--slots", 1, how)
        assert done.returncode == 6, done.stderr
        assert "erl resume" not in done.stdout
        told.append([line for line in done.stderr.splitlines() if line])
    assert told[0] == told[1]
    assert told[0][0].startswith("error: ") and "rows are missing" in told[0][0]


def member(root, *rows):
    """The directory of a member, in a tournament with these rows after its birth."""
    layout = create("tournament_cartpole", [], None, root)
    birth = {"event": "spawn", "member": "m000", "parent": None, "algorithm": "ppo", "changes": {}, "seed": 1}
    text = [json.dumps({"seq": seq, "time": 1.0, **row}) + "\n" for seq, row in enumerate([birth, *rows], start=1)]
    (layout.root / "journal.jsonl").write_text("".join(text))
    run = RunLayout(layout.root / "members" / "m000")
    run.create()
    return layout, run


def test_a_member_in_the_race_is_its_tournaments_to_train(tmp_path):
    layout, run = member(tmp_path / "t")
    with pytest.raises(RecipeError, match="a member in the race") as caught:
        _refuse_for_member(run)
    assert f"erl resume {layout.root};" in caught.value.remedy
    lock = RunLock.acquire(layout.lock)
    with pytest.raises(OwnedError, match="a member in the race"):
        _refuse_for_member(run)
    lock.release()
    (tmp_path / "link").symlink_to(run.root)
    with pytest.raises(RecipeError):
        _refuse_for_member(RunLayout(tmp_path / "link"))


def test_a_member_that_is_retired_and_a_run_of_its_own_train_on(tmp_path):
    layout, run = member(tmp_path / "t", {"event": "retire", "member": "m000", "reason": "stopped by its user"})
    for path in (run.root, layout.root / "members" / "unknown", layout.root / "champions" / "m000-100", tmp_path):
        path.mkdir(parents=True, exist_ok=True)
        _refuse_for_member(RunLayout(path))


def test_slots_that_there_are_none_of_come_with_the_command_for_more(tmp_path, capsys):
    layout = RunLayout(tmp_path / "my run")
    layout.root.mkdir()
    lines = _Lines(layout, quiet=False)
    rows = [{"event": "slots", "slots": ["cpu:0"]}, {"event": "slots", "slots": []}]
    (layout.root / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines.tick()
    assert capsys.readouterr().out == f"slots: cpu:0\nslots: none; erl scale '{layout.root}' --slots N\n"


def _gpus():
    from erlcli.tournament.slots import gpus

    return gpus()


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGINT, 2, 130), (signal.SIGTERM, 1, 130), (signal.SIGKILL, 1, -9)],
)
def test_signals_leave_nobody_behind(number, times, code, tmp_path):
    root = tmp_path / "run"
    command = [*COMMAND, "tournament", "tournament_cartpole", *LONG, "--slots", "2", "--run-dir", str(root), "--no-tui"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(root, "slice_start", 2)
    for _ in range(times):
        os.kill(process.pid, number)
        threading.Event().wait(0.05)
    assert process.wait(10) == code
    wait_until_gone(root)
    ledger = fold(rows_of(root))
    if times == 1 and number != signal.SIGKILL:
        assert not ledger.running()
        for entry in ledger.alive.values():
            if entry.begun:  # perhaps before it has taken a step
                member = RunLayout(root / "members" / entry.id)
                assert max((int(path.name) for path in member.checkpoints.glob("0*")), default=0) == entry.steps


def test_without_gpus_it_says_what_to_type_instead(tmp_path):
    done = erl("tournament", "--gpus", "0-99", "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert "not on this machine" in done.stderr
    assert "--slots" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_is_no_tournament(tmp_path):
    (tmp_path / "recipe.toml").touch()
    done = erl("scale", tmp_path, "--slots", 1)
    assert done.returncode == 2
    assert "no tournament that is running" in done.stderr


def test_a_directory_that_is_taken(tmp_path):
    (tmp_path / "file").touch()
    done = erl("tournament", "tournament_cartpole", "--slots", 1, "--run-dir", tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr


@pytest.mark.parametrize(("wanted", "found"), [([], "off"), (["engine.compile=on"], "on")])
def test_a_long_budget_is_no_reason_to_compile_each_member(tmp_path, wanted, found):
    layout = create("tournament_cartpole", ["train.total_steps=1_000_000_000", *wanted], None, tmp_path / "run")
    assert load_tournament(layout.recipe).base.engine.compile == found


def test_a_space_that_fits_nothing_is_told_before_anything_is_made(tmp_path):
    search = "tournament.search.algorithm.batch_size={kind='int', low=5000, high=6000}"
    done = erl("tournament", "tournament_cartpole", "--set", search, "--slots", 1, "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert "none gave a recipe that works" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_default_is_the_lunar_lander(tmp_path):
    root = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "tournament", "--slots", "1", "--run-dir", str(root), "--no-tui"], stdout=subprocess.PIPE, text=True
    )
    wait_for(root, "spawn", 8)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert "LunarLanderContinuous-v3" in (root / "recipe.toml").read_text()
