"""What children of the engine do with their priority."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
REPORT = """
import os, pathlib
from erlcli.engine.child import give_way
give_way(7)
group = pathlib.Path("/proc/self/autogroup")
print(os.nice(0), *(group.read_text().split()[-1:] if group.exists() else []))
"""


# Linux shows nothing for a process in a control group of its own, as in a container: its autogroup has no say there.
GROUPED = AUTOGROUP.exists() and AUTOGROUP.read_text() != ""


def report(**options):
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, **options)
    return done.stdout.split()


def test_a_session_of_its_own_gives_way_as_a_whole():
    nice, *group = report(start_new_session=True)
    assert nice == "7"
    assert group == (["7"] if GROUPED else [])


@pytest.mark.skipif(not GROUPED, reason="autogroups have no say on this machine")
def test_the_session_of_others_is_left_alone():
    before = AUTOGROUP.read_text()
    nice, *_ = report()
    assert nice == "7"
    assert AUTOGROUP.read_text() == before
