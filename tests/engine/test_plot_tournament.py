"""Pictures and figures of tournaments, made by the real orchestrator on simulated slots."""

import numpy as np
import pytest

from erlcli.engine.comparison import area, compare
from erlcli.engine.plot_comparison import tournaments as draw
from erlcli.engine.plot_tournament import Story, _flat, bounded_below, lineage, parameters, plot_all, scores
from erlcli.recipe.tournament import load_tournament
from erlcli.runs.layout import RunLayout
from erlcli.runs.progress import Moment, Progress
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

PNG, SVG = b"\x89PNG", b"<?xml"


def made(root, mode, slices=24):
    """A tournament in `root` that has ended."""
    root.mkdir()
    recipe = load_tournament(
        "tournament_lunarlander",
        [f"tournament.mode={mode}", "tournament.members=4", "tournament.slice.steps=1000",
         f"tournament.budget.steps={slices * 1000}", "train.total_steps=100_000", "train.target_return=80"],
    )  # fmt: skip
    (root / "recipe.toml").write_text(recipe.dump())
    store = MemoryStore(slice_steps=1000, wobble=20.0)
    Orchestrator(RunLayout(root), recipe, SimulatedBackend(store, noise=50.0), store).run(["cpu:0", "cpu:1"])
    return root


@pytest.fixture(scope="module")
def cups(tmp_path_factory):
    root = tmp_path_factory.mktemp("cups")
    return made(root / "control", "independent"), made(root / "evolved", "tournament")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_all_pictures_of_a_tournament(cups, tmp_path, suffix):
    story = Story.read(cups[1])
    assert (story.env, story.mode, story.target) == ("LunarLanderContinuous-v3", "tournament", 80.0)
    written = plot_all(story, lambda name: tmp_path / "plots" / f"{name}.{suffix}")
    assert [path.stem for path in written] == ["scores", "lineage", "parameters"]
    for path in written:
        assert path.read_bytes().startswith(PNG if suffix == "png" else SVG)
    assert len(list((tmp_path / "plots").iterdir())) == 3  # no drafts are left
    if suffix == "svg":
        texts = {path.stem: path.read_text() for path in written}
        champion = story.progress.board.champion.id
        assert "best champion so far" in texts["scores"] and "target 80" in texts["scores"]
        assert f"line of the champion, {champion}" in texts["lineage"]
        assert all(member in texts["lineage"] for member in story.progress.board.members)
        assert "learning_rate" in texts["parameters"]


def test_a_tournament_that_has_just_begun_can_be_drawn(tmp_path):
    root = tmp_path / "young"
    root.mkdir()
    (root / "recipe.toml").write_text(load_tournament("tournament_cartpole").dump())
    rows = (
        '{"seq": 1, "time": 1.0, "event": "spawn", "member": "m000", "parent": null, "algorithm": "ppo", "steps": 0, '
        '"changes": {"algorithm.gamma": 0.9, "x.on": true, "x.kind": "a"}, "seed": 0}\n'
        '{"seq": 2, "time": 2.0, "event": "evaluate", "member": "m000", "steps": 10, "mean": 1.0, "std": 0.0, '
        '"episodes": 2, "ci": [1.0, 1.0]}\n'
    )
    (root / "journal.jsonl").write_text(rows)
    story = Story.read(root)
    assert len(plot_all(story, lambda name: tmp_path / f"{name}.png", "time")) == 3


def test_several_algorithms_share_a_picture(tmp_path):
    story = Story.read(made(tmp_path / "cup", "generational", slices=12))
    board = story.progress.board
    for number, member in enumerate(board.members.values()):
        if number % 2:
            member.parameters = {**member.parameters, "algorithm.name": "sac"}
            board.changes.setdefault("algorithm.name", []).append(None)
    for draw_one in (scores, lineage, parameters):
        draw_one(story, tmp_path / "x.svg")
        assert (tmp_path / "x.svg").read_bytes().startswith(SVG)


def test_a_key_that_nobody_in_the_champions_line_has_gets_no_line(tmp_path):
    story = Story.read(made(tmp_path / "cup", "independent", slices=8))
    champion = story.progress.board.champion
    for member in champion.lineage:
        member.parameters = {"algorithm.name": "dqn"}
    parameters(story, tmp_path / "x.svg")
    assert f"line of the champion, {champion.id}" in (tmp_path / "x.svg").read_text()


def test_a_few_disasters_do_not_press_a_picture_flat():
    class Axes:
        bottom, text = None, None

        def set_ylim(self, bottom):
            self.bottom = bottom

        def annotate(self, text, *args, **options):
            self.text = text

    axes = Axes()
    bounded_below(axes, [-5000.0, -4000.0, *np.linspace(0, 100, 40)])
    assert -200 < axes.bottom < 0
    assert axes.text == "2 below"
    axes = Axes()
    bounded_below(axes, list(np.linspace(0, 100, 40)))
    assert axes.bottom is None


def test_figures_against_the_control(cups, tmp_path):
    stories = [Story.read(cup) for cup in cups]
    found = compare(stories, None, 3)
    control, evolved = found["tournaments"]
    assert found["target"] == 80.0
    assert (control["mode"], evolved["mode"]) == ("independent", "tournament")
    assert control["against_first"] is None
    for row, story in zip((control, evolved), stories, strict=True):
        assert row["steps"] == story.progress.steps
        assert row["best"] == max(moment.mean for moment in story.progress.best)
        assert row["top_members"] == 3
        scored = sorted((m.score for m in story.progress.top(3)), reverse=True)
        assert row["top_iqm"] == pytest.approx(sum(scored) / 3)  # of three none is cut
    if None not in (control["target_steps"], evolved["target_steps"]):
        share = evolved["target_steps"] / control["target_steps"]
        assert evolved["against_first"]["target_steps"] == pytest.approx(share)
    assert compare(stories, 1e9, 3)["tournaments"][1]["target_steps"] is None
    draw(stories, tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(PNG)


def test_the_area_by_hand():
    progress = Progress()
    progress.best = [Moment(10, 1.0, "a", 5.0), Moment(20, 2.0, "b", 15.0), Moment(30, 3.0, "c", 12.0)]
    progress.steps = 40
    assert area(progress, 10, 40) == pytest.approx((10 * 5 + 20 * 15) / 30)
    assert area(progress, 15, 25) == pytest.approx((5 * 5 + 5 * 15) / 10)
    assert area(progress, 20, 40) == pytest.approx(15)


def test_searched_keys_are_dotted_as_in_the_recipe():
    draw = {"kind": "loguniform", "low": 1e-5, "high": 1.0}
    tables = {"algorithm": {"gamma": draw}, "env": {"kwargs": {"force": draw}}, "ppo": {"algorithm": {"epochs": draw}},
              "network.hidden": draw}  # fmt: skip
    assert set(_flat(tables)) == {"algorithm.gamma", "env.kwargs.force", "algorithm.epochs", "network.hidden"}
