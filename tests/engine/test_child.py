"""What children of the engine do with their priority, and what goes with them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from erlcli.engine import forks
from erlcli.engine.child import Child, end_rest

AUTOGROUP = Path("/proc/self/autogroup")
REPORT = """
import os, pathlib
from erlcli.engine.child import give_way
give_way(7)
group = pathlib.Path("/proc/self/autogroup")
print(os.nice(0), *(group.read_text().split()[-1:] if group.exists() else []))
"""


def report(**options):
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, **options)
    return done.stdout.split()


def autogroup(**options):
    """What Linux shows a process of its autogroup: nothing where it has none, as before the machine's first session."""
    if not AUTOGROUP.exists():
        return []
    read = [sys.executable, "-S", "-c", f"print(open('{AUTOGROUP}').read())"]
    return subprocess.run(read, capture_output=True, text=True, check=True, **options).stdout.split()


def test_a_session_of_its_own_gives_way_as_a_whole():
    nice, *group = report(start_new_session=True)
    assert nice == "7"
    # Not what this process is in: it may be older than autogroups, where its children get one with their session.
    assert group == (["7"] if autogroup(start_new_session=True) else [])


def test_the_session_of_others_is_left_alone():
    before = autogroup()
    nice, *_ = report()
    assert nice == "7"
    assert autogroup() == before


STARTER = """
import subprocess, sys, time
from erlcli.engine.child import leave_now, on_orphaned

def main(arguments):
    *_, open_end, lifeline = map(int, arguments)
    on_orphaned(lifeline, leave_now)
    subprocess.Popen(["sleep", "600"], pass_fds=[open_end])
    print("started", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    main(sys.argv[1:])
"""


@pytest.fixture
def starter(tmp_path, monkeypatch):
    """A child that has started a process which knows nothing of anybody; and a pipe that is open as long as one is."""
    (tmp_path / "starter.py").write_text(STARTER)
    monkeypatch.chdir(tmp_path)
    ends = []

    def start(light):
        reading, writing = os.pipe()
        log = tmp_path / "log"
        child = Child.spawn("starter", "starter", [str(writing)], log, inherit=[writing], light=light)
        os.close(writing)
        ends.append((child, reading))
        while "started" not in log.read_text():
            child.wait(0.01)
            assert child.poll() is None, log.read_text()
        return child, reading

    yield start
    for child, reading in ends:
        child.end()
        os.close(reading)


@pytest.mark.parametrize("light", [True, False])
def test_who_is_killed_takes_along_what_it_has_started(starter, light):
    child, reading = starter(light)
    child.end()
    assert select.select([reading], [], [], 60.0)[0], "somebody still holds the other end"
    assert child.poll() is not None


@pytest.mark.parametrize("light", [True, False])
def test_who_has_left_takes_along_what_it_has_started(starter, light):
    child, reading = starter(light)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60.0) == -signal.SIGKILL
    assert not select.select([reading], [], [], 0.2)[0]
    child.end()
    assert select.select([reading], [], [], 60.0)[0], "somebody still holds the other end"


@pytest.mark.skipif(not forks.possible(), reason="no forks here")
def test_who_loses_its_server_takes_along_what_it_has_started(starter):
    child, reading = starter(False)
    forks._server.end()
    child.wait(60.0)
    assert select.select([reading], [], [], 60.0)[0], "somebody still holds the other end"


def test_a_number_that_is_anothers_by_now_is_left_alone():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        end_rest(other.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
        other.kill()


@pytest.mark.parametrize("light", [True, False])
def test_who_loses_its_parent_takes_along_what_it_has_started(starter, light):
    child, reading = starter(light)
    os.close(child._lifeline)
    child._lifeline = -1
    assert select.select([reading], [], [], 60.0)[0], "somebody still holds the other end"
    child.wait(60.0)
    assert child.poll() is not None
