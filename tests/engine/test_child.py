"""What children of the engine do with their priority."""

import subprocess
import sys
from pathlib import Path

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
