"""What happens before there is a command."""

import os
import subprocess
import sys

import pytest

from erlcli import __main__ as entry
from erlcli.cli import app
from erlcli.engine import child


@pytest.mark.parametrize(
    ("line", "trains"),
    [
        ("train cartpole_ppo", True),
        ("resume runs/cartpole_ppo", True),
        ("tournament cartpole_tournament --detach", True),
        ("train", False),
        ("train --help", False),
        ("train cartpole_ppo -h", False),
        ("--help", False),
        ("ps", False),
        ("", False),
    ],
)
def test_pytorch_is_imported_ahead_for_commands_that_train(line, trains, monkeypatch):
    called = []
    monkeypatch.setattr(child, "prepare", lambda: called.append("prepare"))
    monkeypatch.setattr(app, "main", lambda: called.append("main"))
    monkeypatch.setattr(sys, "argv", ["erl", *line.split()])
    entry.main()
    assert called == ["prepare", "main"][not trains :]


def test_a_terminal_without_utf_8_gets_question_marks():
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "erlcli", "recipes"], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"LunarLanderContin?" in done.stdout
