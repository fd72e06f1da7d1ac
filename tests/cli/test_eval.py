from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from erlcli.cli.eval import evaluate
from erlcli.core.types import EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.plan import resolve
from erlcli.envs.config import env_config
from erlcli.errors import EnvError, ErlError, RecipeError
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import read, write_json
from erlcli.runs.layout import RunLayout

ENV = '''
import os
import signal

import gymnasium
import numpy as np

STEPS = []  # over all episodes of this process


class Walk(gymnasium.Env):
    """Lasts 3 to 9 steps by its seed, and pays one a step; chatters as envs do."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(3)
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 500}

    def __init__(self, interrupt_at=None, fail_at=None, blind=False, actions=3, render_mode=None):
        self.interrupt_at, self.fail_at, self.blind, self.render_mode = interrupt_at, fail_at, blind, render_mode
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        print("env: a new episode")
        os.write(1, b"library: a new episode\\n")
        self.left = int(self.np_random.integers(3, 10))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        STEPS.append(1)
        if len(STEPS) == self.fail_at:
            raise ValueError("the rope broke")
        if len(STEPS) == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}

    def render(self):
        if self.blind:
            raise RuntimeError("no GPU to draw with")
        return np.full((15, 21, 3), 20 * self.left, dtype=np.uint8)
'''

RECIPE = """
[train]
total_steps = 1000
target_return = 8.0
[env]
id = "./walk.py:Walk"
num_envs = 2
[env.kwargs]
{kwargs}
[eval]
num_envs = 4
[algorithm]
name = "ppo"
rollout_length = 8
batch_size = 16
[network]
hidden = [4]
"""

app = typer.Typer()
app.command()(evaluate)


def call(layout: RunLayout, *arguments: object) -> Result:
    return CliRunner().invoke(app, [str(layout.root), *(str(argument) for argument in arguments)])


def error_of(result: Result) -> ErlError:
    assert isinstance(result.exception, ErlError), result.output
    return result.exception


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunLayout]:
    """Builds a run directory whose best policy is an untrained one."""

    def make(kwargs: str = "", steps: int = 640) -> RunLayout:
        (tmp_path / "walk.py").write_text(ENV)
        (tmp_path / "recipe.toml").write_text(RECIPE.format(kwargs=kwargs))
        recipe = resolve(load(tmp_path / "recipe.toml"), "gymnasium")
        layout = RunLayout(tmp_path / "run")
        layout.create()
        layout.recipe.write_text(dump(recipe))
        spec = Evaluation(env_config(recipe.env, 1), 1).spec
        write_json(layout.spec, spec.to_json())
        algorithm = build.algorithm(recipe, spec, torch.device("cpu"))
        state = {"steps": steps, "version": 40, "return_mean": 6.0, "return_std": 1.0, "episodes": 10}
        checkpoint.set_best(layout, algorithm.policy.state_dict(), state)
        return layout

    return make


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Hash and time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in sorted(files)
    }


def lengths(seed: int, episodes: int) -> list[int]:
    from gymnasium.utils import seeding

    from erlcli.core.seeding import derive

    return [int(seeding.np_random(derive(seed, "eval", i))[0].integers(3, 10)) for i in range(episodes)]


def test_json_is_one_value_whatever_envs_print(
    make_run: Callable[..., RunLayout], capfd: pytest.CaptureFixture[str]
) -> None:
    layout = make_run()
    before = contents(layout.root)
    result = call(layout, "--episodes", 11, "--seed", 3, "--json")
    assert result.exit_code == 0
    row = json.loads(result.stdout)
    expected = lengths(3, 11)
    assert row["episodes"] == 11
    assert row["return_mean"] == row["length_mean"] == pytest.approx(sum(expected) / 11)
    assert (row["return_min"], row["return_max"]) == (min(expected), max(expected))
    assert row["return_iqm"] == pytest.approx(sum(sorted(expected)[2:9]) / 7)
    assert row["return_ci"][0] <= row["return_mean"] <= row["return_ci"][1]
    assert row["return_iqm_ci"][0] <= row["return_iqm"] <= row["return_iqm_ci"][1]
    assert row["return_std"] > 0
    assert (row["checkpoint"], row["seed"], row["steps"]) == ("best", 3, 640)
    assert row["interrupted"] is False
    captured = capfd.readouterr()
    assert "library: a new episode" not in captured.out  # written by a library, below Python's sys.stdout
    assert "library: a new episode" in captured.err
    assert contents(layout.root) == before


def test_scores_do_not_depend_on_the_number_of_envs(make_run: Callable[..., RunLayout]) -> None:
    layout = make_run()
    rows = [json.loads(call(layout, "--episodes", 9, "--num-envs", n, "--json").stdout) for n in (1, 2, 9, 30)]
    assert rows == [rows[0]] * 4
    assert call(layout, "--episodes", 9, "--seed", 2, "--json").stdout != json.dumps(rows[0])


def test_the_table_has_the_same_numbers_for_people(make_run: Callable[..., RunLayout]) -> None:
    result = call(make_run(steps=12_300), "--episodes", 10)
    expected = lengths(1, 10)
    assert result.exit_code == 0
    assert "best at 12.3k steps: 10 episodes, seed 1" in result.stdout
    assert f"return  mean   {sum(expected) / 10:10.2f}" in result.stdout
    assert "IQM" in result.stdout
    assert "95% CI [" in result.stdout
    assert "target               8.00  not reached" in result.stdout
    table = [line for line in result.stdout.splitlines() if line.startswith("  ")]
    assert all(len(line) <= 80 for line in table)
    assert "\x1b" not in result.stdout


def test_checkpoints_are_chosen(make_run: Callable[..., RunLayout]) -> None:
    layout = make_run()
    folder = layout.checkpoints / "best-000000000640"
    for which in ("640", str(folder)):
        assert json.loads(call(layout, "--checkpoint", which, "--episodes", 1, "--json").stdout)["steps"] == 640
    error = error_of(call(layout, "--checkpoint", "55", "--episodes", 1))
    assert error.exit_code == 2
    assert "55" in error.message


def test_options_without_effect_are_refused(make_run: Callable[..., RunLayout]) -> None:
    layout = make_run()
    for which in ("last", "best"):
        inside = RunLayout(layout.checkpoints / "best-000000000640")
        error = error_of(call(inside, "--checkpoint", which))
        assert error.exit_code == 2
        assert f"--checkpoint {which}: what is named leaves no choice" in error.message
    error = error_of(call(layout, "--video-episodes", 3))
    assert error.exit_code == 2
    assert "--video-episodes 3: there is no film" in error.message


def test_ctrl_c_ends_it_with_what_is_over(make_run: Callable[..., RunLayout]) -> None:
    played = lengths(1, 20)
    layout = make_run(kwargs=f"interrupt_at = {sum(played[:3]) + 1}")
    result = call(layout, "--episodes", 20, "--num-envs", 1, "--json")
    assert result.exit_code == 130
    row = json.loads(result.stdout)
    assert (row["episodes"], row["interrupted"]) == (3, True)
    assert row["return_mean"] == pytest.approx(sum(played[:3]) / 3)
    assert "interrupted: 3 of 20 episodes were over" in result.stderr


def test_ctrl_c_before_the_first_episode_is_over_says_so(make_run: Callable[..., RunLayout]) -> None:
    result = call(make_run(kwargs="interrupt_at = 1"), "--episodes", 5)
    assert result.exit_code == 130
    assert "return  mean" not in result.stdout
    assert "interrupted: 0 of 5 episodes were over" in result.stderr


def test_a_failing_env_is_shown_with_its_own_traceback(make_run: Callable[..., RunLayout]) -> None:
    result = call(make_run(kwargs="fail_at = 4"), "--episodes", 5, "--json")
    error = error_of(result)
    assert isinstance(error, EnvError)
    assert "raised ValueError: the rope broke" in error.message
    assert 'raise ValueError("the rope broke")' in result.stderr
    assert result.stdout == ""


def test_an_env_that_has_changed_since_training_is_refused(make_run: Callable[..., RunLayout]) -> None:
    layout = make_run()
    text = layout.recipe.read_text().replace("[env.kwargs]", "[env.kwargs]\nactions = 5")
    layout.recipe.write_text(text)
    error = error_of(call(layout, "--episodes", 1))
    assert isinstance(error, EnvError)
    assert "another action space than in training" in error.message
    assert error.expected is not None
    assert "n=3" in error.expected


def frames_of(path: Path) -> list[int]:
    """Gray levels of the frames of a film."""
    with av.open(str(path)) as container:
        return [int(frame.to_ndarray(format="rgb24").mean()) for frame in container.decode(video=0)]


def test_the_first_episode_is_filmed_and_the_others_count_too(make_run: Callable[..., RunLayout]) -> None:
    layout = make_run()
    before = contents(layout.root)
    plain = json.loads(call(layout, "--episodes", 6, "--json").stdout)
    path = layout.videos / "film.mp4"
    row = json.loads(call(layout, "--episodes", 6, "--video", path, "--json").stdout)
    assert row == plain | {"video": str(path)}
    levels = frames_of(path)
    first = lengths(1, 1)[0]
    assert levels == pytest.approx([20 * left for left in range(first, -1, -1)], abs=6)  # to the very last step
    assert {name for name in contents(layout.root) if name not in before} == {str(path)}


def test_more_episodes_can_be_filmed(make_run: Callable[..., RunLayout], tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    result = call(make_run(), "--episodes", 3, "--video", path, "--video-episodes", 9)
    assert f"video   {path}" in result.stdout
    assert len(frames_of(path)) == sum(lengths(1, 3)) + 3


def test_an_interrupted_film_keeps_its_frames(make_run: Callable[..., RunLayout], tmp_path: Path) -> None:
    result = call(make_run(kwargs="interrupt_at = 2"), "--episodes", 3, "--video", tmp_path / "film.mp4")
    assert result.exit_code == 130
    assert len(frames_of(tmp_path / "film.mp4")) == 3


@pytest.mark.parametrize("name", ["film.avi", "film", "no/such/film.mp4"])
def test_films_that_can_not_be_written_are_refused_at_once(
    make_run: Callable[..., RunLayout], tmp_path: Path, name: str
) -> None:
    layout = make_run(kwargs="fail_at = 1")  # playing would fail
    error = error_of(call(layout, "--video", tmp_path / name))
    assert isinstance(error, RecipeError)
    assert str(tmp_path / name) in error.message


def test_an_env_that_can_not_draw_is_an_env_error_with_a_remedy(
    make_run: Callable[..., RunLayout], tmp_path: Path
) -> None:
    result = call(make_run(kwargs="blind = true"), "--video", tmp_path / "film.mp4")
    error = error_of(result)
    assert error.exit_code == 3
    assert "no GPU to draw with" in error.message
    assert error.remedy is not None
    assert "RuntimeError" in result.stderr
    assert os.listdir(tmp_path) != []
    assert not list(tmp_path.glob("*.mp4"))


def test_the_window_needs_a_display(make_run: Callable[..., RunLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_run()
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    error = error_of(call(layout, "--render", "--episodes", 1))
    assert error.exit_code == 2
    assert error.remedy is not None
    assert "--video" in error.remedy
    monkeypatch.setenv("DISPLAY", ":0")
    result = call(layout, "--render", "--episodes", 2, "--json")
    assert json.loads(result.stdout)["episodes"] == 2


@pytest.mark.parametrize("other", [["--terminal"], ["--video", "film.mp4"]])
def test_an_env_draws_in_one_way_at_a_time(make_run: Callable[..., RunLayout], other: list[str]) -> None:
    error = error_of(call(make_run(), "--render", *other))
    assert isinstance(error, RecipeError)
    assert other[0] in error.message


class Tty(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def in_terminal(layout: RunLayout, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[str, int]:
    """What a terminal would get, and the exit code."""
    stream = Tty()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    defaults = {
        "episodes": 2, "seed": 1, "checkpoint": "best", "num_envs": None, "render": False, "video": None,
        "video_episodes": 1, "terminal": True, "json_output": False,
    }  # fmt: skip
    try:
        evaluate([layout.root], **(defaults | options))
    except typer.Exit as leave:
        return stream.getvalue(), leave.exit_code
    return stream.getvalue(), 0


def test_the_terminal_shows_the_episodes_and_then_the_table(
    make_run: Callable[..., RunLayout], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text, code = in_terminal(make_run(), monkeypatch, video=tmp_path / "film.mp4")
    shown, _, table = text.partition("\x1b[?1049l")
    assert code == 0
    assert "▀" in shown
    assert "\x1b[38;2;" in shown
    assert "episode 1/2  step 0  return 0.00" in shown
    assert "episode 2/2  step 0  return 0.00" in shown
    assert "2 episodes, seed 1" in table
    assert len(frames_of(tmp_path / "film.mp4")) == lengths(1, 1)[0] + 1


def test_no_color_means_plain_characters(make_run: Callable[..., RunLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text, _ = in_terminal(make_run(), monkeypatch)
    assert "▀" not in text
    assert "\x1b[38" not in text


def test_ctrl_c_gives_the_terminal_back(make_run: Callable[..., RunLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    text, code = in_terminal(make_run(kwargs="interrupt_at = 2"), monkeypatch)
    assert code == 130
    assert text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")


def test_the_terminal_has_to_be_one(make_run: Callable[..., RunLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_run()
    error = error_of(call(layout, "--terminal"))
    assert error.exit_code == 2
    assert "no terminal" in error.message
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(RecipeError, match="no terminal"):
        evaluate([layout.root], terminal=True, video=None, video_episodes=1, render=False, json_output=False)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    error = error_of(call(RunLayout(tmp_path / "nothing"), "--json"))
    assert error.exit_code == 2


def test_a_trained_run_scores_what_its_evaluator_saw(tmp_path: Path) -> None:
    root = tmp_path / "cartpole"
    command = [sys.executable, "-m", "erlcli", "train", "cartpole_ppo", "--run-dir", str(root), "--no-tui"]
    for assignment in ("train.total_steps=4096", "eval.episodes=8", "eval.probe_episodes=4", "engine.threads=1"):
        command += ["--set", assignment]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    layout = RunLayout(root)
    best = max((row for row in read(layout.evals) if row["kind"] == "full"), key=lambda row: row["return_mean"])
    row = json.loads(call(layout, "--episodes", 8, "--json").stdout)
    for name in ("return_mean", "return_std", "return_iqm", "return_ci", "length_mean", "steps"):
        assert row[name] == best[name]
    assert EnvSpec.from_json(json.loads(layout.spec.read_text())).obs.shape == (4,)
    last = json.loads(call(layout, "--episodes", 3, "--checkpoint", "last", "--json").stdout)
    assert last["steps"] == max(int(path.name) for path in checkpoint.numbered(layout))
