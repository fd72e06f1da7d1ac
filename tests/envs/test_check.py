import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from erlcli.envs import check, probes
from erlcli.envs.check import CheckOptions, Report, check_env
from erlcli.envs.config import EnvConfig
from erlcli.envs.finding import Finding
from erlcli.errors import ErlError

HANDMADE = Path(__file__).parent / "handmade.py"
FAST = ("make", "spaces", "reset", "play", "seeding", "autoreset", "episodes", "render")  # all but a second of speed


def look(name, only=FAST, config=None, **kwargs):
    """Findings about a handmade env, in this process: name to finding."""
    env_config = EnvConfig(f"{HANDMADE}:{name}", kwargs=kwargs, **(config or {}))
    found = probes.run(CheckOptions(env_config, episodes=6, steps=200, only=only))
    return {finding.name: finding for finding in found}


def bad(findings):
    """What isn't ok."""
    return {name: finding.status for name, finding in findings.items() if finding.status != "ok"}


def test_a_good_env_has_nothing_but_ok():
    findings = look("Counter")
    assert bad(findings) == {}
    assert list(findings) == [
        "make", "observations", "actions", "reset", "step", "reward", "flags", "values", "buffer", "seeding",
        "determinism", "autoreset", "episodes", "time limit", "render",
    ]  # fmt: skip
    assert "Box float32 (2,), unbounded" in findings["observations"].message
    assert "chooses 1 of 2" in findings["actions"].message
    assert findings["episodes"].details["lengths"] == [5] * 6
    assert findings["autoreset"].details["episodes"] == 3 * 200 / 5
    assert "equal to the env alone" in findings["autoreset"].message
    assert "48 x 32" in findings["render"].message


@pytest.mark.parametrize(
    ("name", "kwargs", "finding", "status", "words"),
    [
        ("Reuses", {}, "buffer", "ok", "erl copies"),
        ("Rewards", {"kind": "int"}, "reward", "ok", "int, 3 a step; erl makes floats"),
        ("Rewards", {"kind": "float64"}, "reward", "ok", "float64"),
        ("Rewards", {"kind": "array"}, "reward", "ok", "array of shape (1,)"),
        ("Rewards", {"kind": "bool"}, "reward", "ok", "bool"),
        ("Rewards", {"kind": "nan"}, "reward", "fail", "nan (episode 0, step 1, seed 0)"),
        ("Rewards", {"kind": "inf"}, "reward", "fail", "inf"),
        ("Rewards", {"kind": "text"}, "reward", "fail", "no number"),
        ("Rewards", {"kind": "pair"}, "reward", "fail", "no number"),
        ("Flags", {"kind": "int"}, "flags", "warn", "int"),
        ("Flags", {"kind": "none"}, "flags", "fail", "None"),
        ("Flags", {"kind": "both"}, "episodes", "ok", "both at once"),
        ("Spaces", {"kind": "dict"}, "observations", "ok", "sees float32 (7,)"),
        ("Spaces", {"kind": "image"}, "observations", "ok", "sees uint8 (4, 5, 3)"),
        ("Spaces", {"kind": "sequence"}, "spaces", "fail", "not supported"),
        ("Faulty", {"way": "raise"}, "step", "fail", "ZeroDivisionError"),
        ("Faulty", {"way": "short"}, "step", "fail", "tuple of 4"),
        ("Faulty", {"way": "nan"}, "values", "fail", "nan at [0] (episode 0, step 3, seed 0)"),
        ("Faulty", {"way": "shape"}, "values", "fail", "(3,), its space is float32 (2,)"),
        ("Faulty", {"way": "ragged"}, "values", "fail", "ragged list"),
        ("Faulty", {"way": "list"}, "values", "warn", "a list"),
        ("Faulty", {"call": "reset", "way": "alone", "at": 0}, "reset", "fail", "one ndarray"),
        ("Faulty", {"call": "reset", "way": "raise", "at": 2}, "reset", "fail", "reset(seed=None)"),
        ("Faulty", {"call": "reset", "way": "nan", "at": 2}, "values", "fail", "after reset 1"),
        ("Unseeded", {}, "seeding", "warn", "different first observations"),
        ("NoSeed", {}, "reset", "fail", "unexpected keyword argument 'seed'"),
        ("Drifts", {}, "determinism", "warn", "depart at step 1"),
        ("Fixed", {}, "seeding", "warn", "no randomness"),
        ("Shares", {}, "autoreset", "fail", "departs from the env alone"),
        ("Outside", {}, "values", "warn", "obs[1] = 3, outside of its bounds 0 ... 2"),
        ("Endless", {}, "episodes", "warn", "no time limit"),
        ("Counter", {"length": 12}, "time limit", "warn", "after exactly 12 steps"),
        ("Pictureless", {}, "render", "warn", "no rgb_array"),
        ("Broken", {}, "make", "fail", "no simulator here"),
        ("NoEnv", {}, "make", "fail", "not an environment"),
    ],
)
def test_oddities_and_faults(name, kwargs, finding, status, words):
    findings = look(name, **kwargs)
    assert findings[finding].status == status
    assert words in findings[finding].message
    if status != "ok":
        assert findings[finding].remedy or name == "NoEnv"
    if status == "fail":
        assert [f for f in findings.values() if f.status == "fail"] == [findings[finding]]


def test_an_env_that_fails_to_close_is_warned_of_and_no_more():
    assert bad(look("Unclosable")) == {"close": "warn"}


def test_a_traceback_is_kept():
    findings = look("Faulty", way="raise")
    assert "handmade.py" in findings["step"].message
    assert "a fault of the env" in findings["step"].details["traceback"]


@pytest.mark.parametrize(("env_id", "words"), [("Pendulum-v1", "engine.workers"), ("torch/Pendulum-v1", "dynamics")])
def test_a_slow_env_gets_advice_that_its_backend_can_follow(env_id, words):
    options = CheckOptions(EnvConfig(env_id), steps=10**6, timeout_seconds=0.01, only=("play",))
    step = next(finding for finding in probes.run(options) if finding.name == "step")
    assert step.status == "warn" and words in step.remedy and ("engine.workers" in step.remedy) == (env_id[0] == "P")


def test_a_time_limit_is_tried():
    findings = look("Endless", config={"max_episode_steps": 20})
    assert not bad(findings)
    assert findings["time limit"].message == "20 steps; reaching it truncates"
    assert findings["episodes"].message.startswith("6 of random play: 6 truncated; 20 steps")


def test_every_registered_kind_of_action_can_be_played():
    for env_id, words in (("Pendulum-v1", "in [-2, 2]"), ("MountainCar-v0", "1 of 3")):
        found = {f.name: f for f in probes.run(CheckOptions(EnvConfig(env_id), steps=100, only=FAST[:-1]))}
        assert words in found["actions"].message and not bad(found)


def test_stacked_frames_are_what_an_algorithm_sees():
    findings = look("Counter", config={"frame_stack": 4})
    assert "sees float32 (4, 2)" in findings["observations"].message and not bad(findings)


def test_both_backends_are_looked_at():
    pytest.importorskip("envpool")
    options = CheckOptions(EnvConfig("CartPole-v1"), steps=100, only=("autoreset",))
    found = [f for f in probes.run(options) if f.name == "autoreset"]
    assert [f.details["backend"] for f in found] == ["gymnasium", "envpool"]
    assert all(f.status == "ok" and f.details["episodes"] > 0 for f in found)


def test_an_env_of_envpool_alone():
    pytest.importorskip("envpool")
    found = list(probes.run(CheckOptions(EnvConfig("Catch-v0", backend="envpool"), steps=50, only=FAST)))
    assert [(f.name, f.status) for f in found] == [("make", "fail")]
    assert "envpool alone has it" in found[0].message


def test_speed_is_measured():
    (_, speed) = look("Counter", only=("speed",)).values()
    assert speed.details["steps_per_second"]["gymnasium"] > 100


def in_child(name, timeout=30.0, only=(), **kwargs):
    events = []
    config = EnvConfig(f"{HANDMADE}:{name}", kwargs=kwargs)
    options = CheckOptions(config, episodes=3, steps=50, timeout_seconds=timeout, only=only)
    report = check_env(options, events.append, events.append)
    return report, events


def test_findings_come_one_by_one_with_what_is_looked_at():
    report, events = in_child("Counter", only=("make", "spaces", "reset"))
    assert [e if isinstance(e, str) else e.name for e in events] == [
        "make", "make", "spaces", "observations", "actions", "reset", "reset",
    ]  # fmt: skip
    assert report.findings == tuple(e for e in events if isinstance(e, Finding))
    assert report.exit_code == 0


def test_a_hang_is_found_with_its_place():
    report, _ = in_child("Faulty", timeout=1.5, way="hang")
    last = report.findings[-1]
    assert (last.name, last.status, report.exit_code) == ("play", "fail", 3)
    assert "no answer within 1.5 s" in last.message and "in spoil" in last.message and "handmade.py" in last.message


def test_a_process_that_is_not_there_in_time_is_no_fault_of_the_env(monkeypatch):
    monkeypatch.setattr(check, "START_SECONDS", 0.01)
    with pytest.raises(ErlError, match="has not started within") as caught:
        in_child("Counter")
    assert caught.value.exit_code == 1 and "busy" in caught.value.found


@pytest.mark.parametrize(
    ("way", "words"), [("exit", "left by itself with exit code 7"), ("crash", "was killed by SIGSEGV, in spoil")]
)
def test_a_death_is_found(way, words):
    report, _ = in_child("Faulty", way=way)
    last = report.findings[-1]
    assert (last.name, last.status, report.exit_code) == ("play", "fail", 3)
    assert words in last.message


def test_the_process_goes_when_its_parent_is_killed(tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import os, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}} ')\n"
        "def Stuck():\n    time.sleep(600)\n"
    )
    code = (
        "from erlcli.envs.check import *; from erlcli.envs.config import EnvConfig;"
        f"check_env(CheckOptions(EnvConfig({str(tmp_path / 'stuck.py:Stuck')!r})))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid = int(eventually(lambda: (tmp_path / "pid").read_text().endswith(" ") and (tmp_path / "pid").read_text()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually(lambda: not alive(pid))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def eventually(condition, seconds=30.0):
    """The first true value of `condition`; waits for a file or the end of a process, which send no event."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if value := condition():
                return value
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError("it never came")


def test_options_cross_to_the_process():
    config = EnvConfig("A-v0", "gymnasium", 3, {"a": [1, {"b": 2}]}, (("m:W", {"x": 1.5}), ("n:V", {})), 7, 2, None)
    options = CheckOptions(config, 4, 5, 6, 7.5, ("make",))
    assert CheckOptions.from_json(options.to_json()) == options


def test_exit_codes():
    ok, warn, fail = (Finding("a", status, "b") for status in ("ok", "warn", "fail"))
    absent = Finding("make", "fail", "b", details={"no_such_env": True})
    assert [Report("E", found).exit_code for found in ((), (ok, warn), (ok, fail, warn), (absent,))] == [0, 0, 3, 2]
    report = json.loads(json.dumps(Report("E", (ok, warn, warn)).to_json()))
    assert (report["ok"], report["warn"], report["fail"], report["exit_code"]) == (1, 2, 0, 0)


def test_frames_of_the_check_itself_are_not_to_blame():
    ours = str(Path(check.__file__).parent / "play.py")
    stack = f'noise (most recent call first):\n  File "{ours}", line 3 in step\n  File "/a/b.py", line 9 in f\n'
    assert check._innermost(stack) == "f (/a/b.py:9)"
    assert check._innermost("nothing") is None
