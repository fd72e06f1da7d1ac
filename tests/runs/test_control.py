import json
import os

import pytest

from erlcli.runs import control
from erlcli.runs.layout import RunLayout


def requests(path):
    return [json.loads(file.read_text()) for file in sorted((path / "control" / "requests").glob("*.json"))]


def test_a_request_to_a_tournament_is_a_file_that_carries_its_id(tmp_path):
    first = control.tournament_request(tmp_path, "kill", member="m003")
    second = control.tournament_request(tmp_path, "slots", slots=["cuda:0", "cuda:1"])
    assert requests(tmp_path) == [
        {"id": first, "do": "kill", "member": "m003"},
        {"id": second, "do": "slots", "slots": ["cuda:0", "cuda:1"]},
    ]
    assert first.endswith(f"-{os.getpid()}")


def test_requests_to_a_run_are_taken_once_and_in_order(tmp_path):
    layout = RunLayout(tmp_path)
    first = control.request(layout, "set", key="algorithm.learning_rate", value=1e-4)
    second = control.request(layout, "pause")
    rows = control.take(layout)
    assert rows == [
        {"id": first, "do": "set", "key": "algorithm.learning_rate", "value": 1e-4},
        {"id": second, "do": "pause"},
    ]
    assert control.take(layout) == []


def test_what_is_no_request_is_removed(tmp_path):
    layout = RunLayout(tmp_path)
    layout.requests.mkdir(parents=True)
    (layout.requests / "1.json").write_text('{"id": "1", "do": "explode"}')
    (layout.requests / "2.json").write_text("{torn")
    assert control.take(layout) == []
    assert list(layout.requests.iterdir()) == []


def test_a_directory_that_is_none_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        control.tournament_request(tmp_path / "file", "pause")
