"""What each pane of the run screen draws, line by line, whatever room it has."""

import numpy as np
import pytest
from textual.app import App
from textual.color import Color

from erlcli.tui.palette import NAMES, Palette
from erlcli.tui.theme import DARK
from erlcli.tui.widgets.best import Best, BestFacts
from erlcli.tui.widgets.events import Entry, Events
from erlcli.tui.widgets.gpu import GpuRow, Gpus
from erlcli.tui.widgets.header import HeaderFacts, RunHeader
from erlcli.tui.widgets.metric_grid import MetricGrid, MetricLine, Mini, arrange, metric_label
from erlcli.tui.widgets.processes import Processes, ProcessRow, size
from erlcli.tui.widgets.throughput import Throughput, ThroughputFacts

COLORS = tuple((name, getattr(DARK, name)) for name in NAMES)
PALETTE = Palette(True, Color.parse("#101418"), COLORS)
X = np.arange(50.0)
MINIS = [
    Mini(name, X, X * i)
    for i, name in enumerate(["loss/policy", "loss/grad_norm", "policy/kl", "value/explained_variance"])
]
HEADER = HeaderFacts("demo", "running", "Walker-v3", "ppo", "8 envs, cpu", 500, 2000, 60.0, 180.0, 310.0, 300.0)


@pytest.fixture
async def app(utc):
    async with App().run_test() as pilot:
        yield pilot.app


@pytest.fixture
def utc(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def filled():
    panes = [RunHeader(), Throughput(), Processes(), Gpus(), Best(), Events(), MetricGrid(), MetricLine()]
    panes[0].update_from(HEADER)
    panes[1].update_from(ThroughputFacts(900.0, 800.0, (1.0, 2.0, 3.0), (0.5, 0.1, 0.3, 0.05), 1800.0))
    panes[2].update_from(
        [ProcessRow("learner", "update", 0.5, 1, 99.0, 4 * 10**8), ProcessRow("worker-0", "env", 61.0)]
    )
    panes[3].update_from([GpuRow("H100", 71.0, 9e9, 85e9, 90.0), GpuRow("odd", 140.0, 0, 0)])
    panes[4].update_from(
        BestFacts(303.0, (301.0, 304.0), 100, 1200.0, 10, 300.0, "runs/a/checkpoints/b", ("erl eval a",))
    )
    panes[5].update_from([Entry(0.0, "learner", "info", "hello"), Entry(1.0, "worker-0", "odd", "what")])
    panes[6].update_from(MINIS)
    panes[7].update_from(MINIS)
    return panes


def text(widget, width, height):
    return [line.text for line in widget.draw(width, height, PALETTE)]


async def test_everything_can_be_drawn_at_every_size(app):
    for widget in [*filled(), *(type(widget)() for widget in filled())]:
        for width in (*range(1, 60), 79, 120, 200):
            for height in (1, 2, 3, 4, 5, 8, 13, 60):
                text(widget, width, height)


async def test_header(app):
    lines = text(filled()[0], 80, 3)
    assert lines[0] == f"{'demo · Walker-v3 · ppo · 8 envs, cpu':<71}● running"
    assert lines[1].split() == ["elapsed", "1:00", "left", "3:00", "best", "310.0", "target", "300"]
    assert lines[2].endswith("  500 / 2.0k steps  25%") and lines[2].count("━") == round(len(lines[2][:-23]) / 4)
    assert [line.split()[0] for line in text(filled()[0], 80, 2)] == ["demo", lines[2].split()[0]]
    assert text(filled()[0], 12, 1) == ["d… ● running"]


async def test_throughput(app):
    lines = text(filled()[1], 60, 5)
    assert lines[0] == "900 steps/s   800 mean"
    assert lines[1] == "▁▅█"
    assert lines[2].split("  ")[:4] == ["█ env 50%", "▓ act 10%", "▒ update 30%", "░ wait 5%"]
    assert lines[3] == "█" * 30 + "▓" * 6 + "▒" * 18 + "░" * 3 + "·" * 3
    assert lines[4] == "50% of the env-only limit 1,800"


async def test_processes(app):
    lines = text(filled()[2], 60, 5)
    assert lines[1].split() == ["learner", "update", "<2", "s", "1", "99%", "400M"]
    assert lines[2].split() == ["worker-0", "env", "1:01", "-", "-", "-"]
    assert len({len(line) for line in lines}) == 1
    assert text(filled()[2], 60, 2)[1] == "and 2 more"
    assert (size(5e8), size(85.5e9)) == ("500M", "85.5G")


async def test_gpus_say_when_they_are_hot(app):
    drawn = filled()[3].draw(40, 4, PALETTE)
    assert drawn[0].text.split() == ["H100", "90", "°C"]
    assert drawn[0]._segments[-1].style == PALETTE.named("warning", bold=True)
    assert "71% busy" in drawn[1].text and "9.0G/85.0G" in drawn[1].text


async def test_best(app):
    assert text(filled()[4], 60, 9) == [
        "303.0 of 300 at 10 steps",
        "95% CI [301.0, 304.0], 100 episodes",
        "runs/a/checkpoints/b",
        "$ erl eval a",
    ]
    assert text(filled()[4], 12, 9)[2] == "…eckpoints/b", "the end of a path tells more"


async def test_events(app):
    assert text(filled()[5], 60, 5) == ["00:00:00 learner    hello", "00:00:01 worker-0   what"]


async def test_metrics(app):
    assert text(filled()[7], 45, 1) == ["policy loss 0  grad norm 49.00  kl 98.00  "]
    assert metric_label("loss/grad_norm") == "grad norm" and metric_label("plain") == "plain"
    lines = text(filled()[6], 50, 9)
    assert lines[0].split() == ["policy", "loss", "0", "grad", "norm", "49.00"]


@pytest.mark.parametrize(
    ("number", "width", "height", "expected"), [(4, 50, 8, (2, 2)), (9, 80, 16, (3, 3)), (1, 80, 16, (1, 1))]
)
def test_small_curves_are_arranged_without_holes(number, width, height, expected):
    assert arrange(number, width, height) == expected


async def test_the_same_facts_are_not_drawn_again(app):
    for widget, again in zip(filled(), filled(), strict=True):
        redrawn = []
        widget.redraw = lambda redrawn=redrawn: redrawn.append(1)
        if isinstance(widget, (MetricGrid, MetricLine)):
            widget.update_from(MINIS)
        elif isinstance(widget, Processes | Gpus):
            widget.update_from(again.rows)
        elif isinstance(widget, Events):
            widget.update_from(again._entries)
        else:
            widget.update_from(again.facts)
        assert not redrawn, type(widget)
