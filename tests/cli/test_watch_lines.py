"""What `erl watch` says of a run when it is left."""

import pytest

from erlcli.cli.watch import parting_lines
from erlcli.runs.jsonl import Appender, write_json
from erlcli.runs.layout import RunLayout

ERROR = "learner: the env raised ValueError: boom\n  remedy:   mend it"
STATUS = {"state": "failed", "steps": 5888, "seconds": 4.9, "exit_code": 3, "error": ERROR}


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "run")
    made.create()
    made.recipe.touch()
    return made


def test_a_failed_run_says_why(layout):
    write_json(layout.status, STATUS)
    lines = parting_lines(layout)
    assert lines[:2] == ["error: learner: the env raised ValueError: boom", "  remedy:   mend it"]
    assert lines[2].startswith("failed: 5.9k steps in 4.9 s") and lines[3].startswith("  go on   erl resume ")


def test_steps_and_seconds_are_of_one_moment(layout):
    write_json(layout.status, STATUS)
    Appender(layout.metrics).append({"attempt": 1, "steps": 7168, "time/seconds": 5.713, "time/wall": 1.0})
    assert "failed: 7.2k steps in 5.7 s" in parting_lines(layout)
