"""`erl ps` and `erl stop`, on processes that look like the engine's, and on a real run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner, Result

from erlcli.cli import stop as stop_module
from erlcli.cli.ps import engine_processes, ps, row_of, run_argument, table
from erlcli.cli.stop import stop
from erlcli.errors import ErlError, RecipeError
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock, is_owned
from erlcli.runs.text import quoted

# Holds the lock of a run until it is asked to stop, like a supervisor; `stubborn` ones don't listen.
OWNER = """
import sys
import time
from pathlib import Path

from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock
from erlcli.runs.text import quoted

layout = RunLayout(Path(sys.argv[-1]))
lock = RunLock.acquire(layout.lock)
print("ready", flush=True)
forgetful = "forgetful" in sys.argv  # clears older requests at its start, as the engine does
while True:
    if layout.stop_request.exists() and "stubborn" not in sys.argv:
        if not forgetful:
            break
        layout.stop_request.unlink()
        forgetful = False
    time.sleep(0.01)
write_json(layout.status, {"state": "interrupted", "steps": 1200})
"""

ps_app, stop_app = typer.Typer(), typer.Typer()
ps_app.command()(ps)
stop_app.command()(stop)


def call(app: typer.Typer, *arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return make_run(tmp_path / "elsewhere" / "mine")


def make_run(root: Path, state: str = "running") -> RunLayout:
    layout = RunLayout(root)
    root.mkdir(parents=True)
    layout.ensure()
    layout.recipe.write_text("")
    status = {"state": state, "env": "CartPole-v1", "algorithm": "ppo", "steps": 1000, "total_steps": 200_000,
              "time": time.time()}  # fmt: skip
    write_json(layout.status, status)
    (layout.checkpoints / "000000000900").mkdir()
    (layout.checkpoints / "000000000900" / "manifest.json").write_text("{}")
    (layout.checkpoints / "000000001000").mkdir()  # without a manifest: not whole
    return layout


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts an owner of a run with a command line of choice; all are gone after the test."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    processes: list[subprocess.Popen[str]] = []

    def spawn(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, env=environment)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # As soon as a killed one is a zombie it is reaped, as init would.
        threading.Thread(target=process.wait, daemon=True).start()
        return process

    yield spawn
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (["python", "-m", "erlcli.engine.learner", "/runs/a", "1", "5", "7"], "/runs/a"),
        (["python", "-X", "dev", "-m", "erlcli.engine.supervisor", "runs/b", "3"], "runs/b"),
        (["python", "-m", "erlcli", "train", "/runs/a"], None),
        (["python", "-m", "erlcli.engine.forkserver", "5", " "], None),
        (["python", "-m", "erlcli.tournament.backends.reaper", "4554", "9"], None),
        (["python", "-m", "erlcli.engine.learner"], None),
        (["bash", "-c", "python -m erlcli.engine.learner /runs/a"], None),
        (["python", "-m", "pytest", "-m", "erlcli.engine.learner", "x"], None),
        ([], None),
    ],
)
def test_run_directories_are_read_from_command_lines(command: list[str], run: str | None) -> None:
    assert run_argument(command) == run


def test_runs_are_found_wherever_they_are(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    worker = start("-m", "erlcli.engine.worker", layout.root)
    other = make_run(tmp_path / "there" / "other")
    supervisor = start("-m", "erlcli.engine.supervisor", "other", cwd=tmp_path / "there")  # where it was started
    found = {root: [process.pid for process in processes] for root, processes in engine_processes().items()}
    assert found[layout.root] == [worker.pid]
    assert found[other.root] == [supervisor.pid]


def test_a_live_run_is_listed_with_its_numbers(layout: RunLayout, start: Callable[..., subprocess.Popen[str]]) -> None:
    row = {"attempt": 1, "steps": 1100, "version": 3, "time/steps_per_second": 2345.6}
    layout.metrics.write_text(json.dumps(row) + "\n")
    layout.evals.write_text(json.dumps({"attempt": 1, "steps": 900, "kind": "full", "return_mean": 123.456}) + "\n")
    process = start("-m", "erlcli.engine.supervisor", layout.root)
    rows = json.loads(call(ps_app, "--json").stdout)
    mine = next(row for row in rows if row["path"] == str(layout.root))
    assert mine.pop("age_seconds") == pytest.approx(time.time() - psutil.Process(process.pid).create_time(), abs=5)
    assert mine == {
        "name": "mine", "state": "running", "env": "CartPole-v1", "algorithm": "ppo", "steps": 1100,
        "total_steps": 200_000, "steps_per_second": 2345.6, "best_return": 123.456, "target_return": None,
        "pid": process.pid, "pids": [process.pid], "path": str(layout.root),
    }  # fmt: skip
    text = call(ps_app).stdout
    line = next(line for line in text.splitlines() if line.startswith("mine"))
    assert line.split()[:5] == ["mine", "running", "1.1k/200.0k", "2,346", "123.5"]
    assert line.split()[-1] == str(process.pid)
    assert "  CartPole-v1 ppo, elsewhere/mine" in text


def test_runs_that_are_over_are_listed_when_asked_for(layout: RunLayout, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "old", state="finished")
    make_run(tmp_path / "runs" / "lost")
    rows = {row["name"]: row for row in json.loads(call(ps_app, "--all", "--json").stdout)}
    assert (rows["old"]["state"], rows["old"]["pid"]) == ("finished", None)
    assert rows["lost"]["state"] == "dead"  # says that it runs, and nobody holds its lock
    text = call(ps_app, "--all").stdout
    assert " ago" in text
    assert "runs/old" in text
    assert "old" not in {row["name"] for row in json.loads(call(ps_app, "--json").stdout)}


def test_no_run_at_all_is_answered_with_what_to_do(
    layout: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erlcli.cli.ps.engine_processes", dict)
    assert call(ps_app, "--json").stdout == "[]\n"
    text = call(ps_app).stdout
    assert "no run is alive on this machine" in text
    assert "erl train" in text
    assert "--all" not in text
    make_run(tmp_path / "runs" / "old", state="finished")
    assert "erl ps --all       shows the 1 under ./runs" in call(ps_app).stdout


def test_the_table_fits_and_keeps_columns_together() -> None:
    base = {
        "env": "/home/me/envs.py:Maze", "algorithm": "ppo", "steps": 1_234_567, "total_steps": 5_000_000,
        "steps_per_second": 12345.6, "best_return": -123.4, "age_seconds": 36_000.0, "pid": 4194304, "path": "/r/a",
    }  # fmt: skip
    lines = table([{**base, "name": "n" * 60, "state": "interrupted"}, {**base, "name": "b", "state": "running"}])
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("n" * 13 + "…  interrupted")
    assert lines[1].index("12,346") == lines[3].index("12,346")
    assert lines[2] == "  envs.py:Maze ppo, /r/a"


def test_a_directory_that_is_gone_is_still_a_row(tmp_path: Path) -> None:
    row = row_of(tmp_path / "gone", [psutil.Process()])
    assert (row["state"], row["pid"]) == ("deleted", os.getpid())
    assert "starting, " in table([row])[2]


def test_stop_asks_waits_and_says_where_the_checkpoint_is(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("-m", "erlcli.engine.supervisor", layout.root)
    result = call(stop_app, layout.root)
    assert result.exit_code == 0
    assert json.loads(layout.stop_request.read_text()) == {"reason": "user", "seconds": 30.0}
    assert not is_owned(layout.lock)
    assert process.wait(10) == 0
    assert result.stdout.splitlines() == [
        f"{layout.root}: interrupted at 1.2k steps",
        f"  saved   {layout.checkpoints / '000000000900'}",
        f"  go on   erl resume {quoted(layout.root)}",
    ]


def test_a_request_that_a_starting_run_clears_is_made_again(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]]
) -> None:
    start("forgetful", "-m", "erlcli.engine.supervisor", layout.root)
    assert "interrupted at 1.2k steps" in call(stop_app, layout.root).stdout


def test_several_runs_are_stopped_together(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    second, over = make_run(tmp_path / "second"), make_run(tmp_path / "over", state="finished")
    for one in (layout, second):
        start("-m", "erlcli.engine.supervisor", one.root)
    result = call(stop_app, layout.root, over.root, second.root)
    assert result.exit_code == 0
    assert result.stdout.count("interrupted at 1.2k steps") == 2
    assert f"{over.root}: not running (finished)" in result.stdout
    assert not over.stop_request.exists()


def test_a_run_that_does_not_stop_in_time_is_an_error_with_a_remedy(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]]
) -> None:
    write_json(layout.process("learner"), {"phase": "env step"})
    process = start("stubborn", "-m", "erlcli.engine.supervisor", layout.root)
    error = call(stop_app, layout.root, "--timeout", "0.2").exception
    assert isinstance(error, ErlError)
    assert error.exit_code == 1
    assert "still running after 0.2 s" in error.message
    assert error.found == "the learner is at: env step"
    assert error.remedy is not None
    assert f"erl stop --now {quoted(layout.root)}" in error.remedy
    assert process.poll() is None


def test_stop_now_kills_everything_of_the_run_and_nothing_else(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    other = make_run(tmp_path / "other")
    bystander = start("stubborn", "-m", "erlcli.engine.supervisor", other.root)
    owner = start("stubborn", "-m", "erlcli.engine.supervisor", layout.root)
    sleeper = "import time; print('ready', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", sleeper, "-m", "erlcli.engine.worker", str(layout.root), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        threading.Thread(target=worker.wait, daemon=True).start()
        result = call(stop_app, "--now", layout.root)
        assert worker.wait(10) == -signal.SIGKILL
    assert result.exit_code == 0, result.exception
    assert owner.wait(10) == -signal.SIGKILL
    assert f"{layout.root}: killed (2 processes)" in result.stdout
    assert f"erl resume {quoted(layout.root)}" in result.stdout
    assert not is_owned(layout.lock)
    assert bystander.poll() is None
    assert is_owned(other.lock)


def test_stop_now_finds_the_train_command_that_supervises_by_itself(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]]
) -> None:
    owner = start("stubborn", "train", "cartpole_ppo", layout.root)  # names no engine module
    assert engine_processes().get(layout.root) is None
    assert "killed (1 process)" in call(stop_app, "--now", layout.root).stdout
    assert owner.wait(10) == -signal.SIGKILL


def test_stop_now_spares_a_younger_process_with_the_number_of_the_owner(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    bystander = start("stubborn", "train", make_run(tmp_path / "other").root)
    start("stubborn", "-m", "erlcli.engine.supervisor", layout.root)
    write_json(layout.root / "row", {"pid": bystander.pid, "host": socket.gethostname(), "time": 1.0})
    layout.lock.write_bytes((layout.root / "row").read_bytes())
    assert "killed (1 process)" in call(stop_app, "--now", layout.root).stdout
    assert bystander.poll() is None


def test_stop_now_spares_an_owner_that_does_more_than_training(layout: RunLayout) -> None:
    lock = RunLock.acquire(layout.lock)  # this very test process
    error = call(stop_app, "--now", layout.root).exception
    lock.release()
    assert isinstance(error, ErlError)
    assert "supervised by a process that does more" in error.message
    assert error.found is not None
    assert str(os.getpid()) in error.found


def test_stop_now_refuses_a_run_of_another_machine(
    layout: RunLayout, start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("stubborn", "-m", "erlcli.engine.supervisor", layout.root)
    monkeypatch.setattr(stop_module.socket, "gethostname", lambda: "elsewhere")
    error = call(stop_app, "--now", layout.root).exception
    assert isinstance(error, ErlError)
    assert "runs on another machine" in error.message
    assert process.poll() is None


def test_runs_that_are_not_alive_or_not_there(layout: RunLayout, tmp_path: Path) -> None:
    result = call(stop_app, layout.root)
    assert (result.exit_code, result.stdout) == (0, f"{layout.root}: not running (dead)\n")
    assert call(stop_app, "--now", layout.root).exit_code == 0
    error = call(stop_app, tmp_path / "nothing").exception
    assert isinstance(error, RecipeError)


def test_a_real_run_is_seen_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = RunLayout(tmp_path / "far" / "real")
    command = [sys.executable, "-m", "erlcli", "train", "cartpole_ppo", "--detach", "--run-dir", str(layout.root)]
    for assignment in ("train.total_steps=50_000_000", "engine.threads=1", "engine.compile=off"):
        command += ["--set", assignment]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    try:
        deadline = time.monotonic() + 120
        while not (layout.metrics.exists() and layout.metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)  # a row: a rollout is learned from, so that there is something to save
        mine = next(r for r in json.loads(call(ps_app, "--json").stdout) if r["path"] == str(layout.root))
        assert mine["state"] == "running"
        assert mine["total_steps"] == 50_000_000
        assert len(mine["pids"]) == 3  # supervisor, learner, evaluator
        assert mine["pid"] in mine["pids"]
        result = call(stop_app, layout.root)
        assert result.exit_code == 0, result.exception
        assert f"{layout.root}: interrupted at" in result.stdout
        newest = max(layout.checkpoints.glob("[0-9]*"), key=lambda path: int(path.name))
        assert int(newest.name) > 0
        assert f"saved   {newest}" in result.stdout
        assert layout.root not in engine_processes()
    finally:
        for process in engine_processes().get(layout.root, []):
            process.kill()
