"""The facts of a film."""

import pytest

from erlcli.runs.agent import AgentFilm, read_agent
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

ROW = {
    "file": "100.webp", "frames": 26, "width": 320, "height": 213, "time": 5.0, "steps": 100, "attempt": 1,
    "episode": 2, "seed": 1, "return": -3.5, "length": 50, "complete": False, "stride": 8, "fps": 8.0, "env_fps": 32.0,
}  # fmt: skip


@pytest.fixture
def layout(tmp_path):
    return RunLayout(tmp_path)


def test_facts(layout):
    write_json(layout.agent / "latest.json", ROW)
    film = read_agent(layout)
    assert film == AgentFilm(
        5.0, path=layout.agent / "100.webp", steps=100, episode=2, total=-3.5, length=50, complete=False, fps=8.0,
        quickness=2.0, width=320, height=213,
    )  # fmt: skip
    assert read_agent(layout) == film
    write_json(layout.agent / "latest.json", {**ROW, "time": 6.0})
    assert read_agent(layout) != film


def test_nothing_yet_and_unavailable(layout):
    assert read_agent(layout) is None
    write_json(layout.agent / "latest.json", {"unavailable": "no pictures", "time": 1.0})
    assert read_agent(layout) == AgentFilm(1.0, unavailable="no pictures")


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../secret.webp"}, {"file": "/etc/passwd"}, {"fps": 0.0}, {"fps": "NaN"}, {"steps": "many"},
        {"env_fps": None}, {"width": [1]},
    ],
)  # fmt: skip
def test_facts_that_can_not_be_understood_are_none(layout, change):
    write_json(layout.agent / "latest.json", {**ROW, **change})
    assert read_agent(layout) is None


def test_a_fact_that_is_missing(layout):
    write_json(layout.agent / "latest.json", {k: v for k, v in ROW.items() if k != "return"})
    assert read_agent(layout) is None
