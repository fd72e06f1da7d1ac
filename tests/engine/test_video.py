from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
import pytest

from erlcli.engine.failures import Interrupted
from erlcli.engine.video import (
    VideoWriter,
    check_video_path,
    picture,
    rendering_env,
)
from erlcli.envs.config import EnvConfig
from erlcli.errors import EnvError, ErlError, RecipeError

ENVS = """
import gymnasium
import numpy as np


class Picture(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, frame="good", render_mode=None):
        self.frame, self.render_mode = frame, render_mode

    def render(self):
        if self.frame == "raise":
            raise OSError("no EGL device")
        return {"good": np.zeros((5, 7, 3), np.uint8), "none": None, "gray": np.zeros((5, 7), np.uint8),
                "float": np.zeros((5, 7, 3)), "empty": np.zeros((0, 7, 3), np.uint8)}[self.frame]


class Blind(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)


class Boastful(Blind):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self):
        pass
"""


@pytest.fixture
def envs(tmp_path: Path) -> Path:
    path = tmp_path / "pictures.py"
    path.write_text(ENVS)
    return path


def striped(number: int, height: int = 40, width: int = 60) -> np.ndarray:
    """Gray that tells the frames apart."""
    return np.full((height, width, 3), 40 + 20 * number, dtype=np.uint8)


def decode(path: Path) -> tuple[av.VideoStream, list[np.ndarray]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream, [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def test_a_film_has_every_frame_in_order_at_the_envs_rate(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    with VideoWriter(path, 12.5) as film:
        for number in range(8):
            film.write(striped(number))
        assert not path.exists()  # it appears when it is whole
    stream, frames = decode(path)
    assert film.frames == len(frames) == 8
    assert stream.codec_context.name == "h264"
    assert stream.codec_context.pix_fmt == "yuv420p"
    assert float(stream.average_rate) == 12.5
    levels = [float(frame.mean()) for frame in frames]
    assert levels == pytest.approx([40 + 20 * number for number in range(8)], abs=4)
    assert os.listdir(tmp_path) == ["film.mp4"]


def test_odd_sizes_are_padded_with_their_edges(tmp_path: Path) -> None:
    path = tmp_path / "odd.mp4"
    frame = striped(1, 33, 47)
    frame[:, -1], frame[-1, :] = 200, 200
    with VideoWriter(path, 30) as film:
        film.write(frame)
    stream, frames = decode(path)
    assert (stream.height, stream.width) == (34, 48)
    assert frames[0][10, 47].mean() == pytest.approx(200, abs=25)
    assert frames[0][33, 10].mean() == pytest.approx(200, abs=25)


@pytest.mark.parametrize("error", [Interrupted(), EnvError("the env broke")])
def test_what_was_filmed_before_an_interruption_is_kept(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "film.mp4"
    with pytest.raises(type(error)), VideoWriter(path, 30) as film:
        film.write(striped(0))
        film.write(striped(1))
        raise error
    assert len(decode(path)[1]) == 2


def test_nothing_is_left_where_the_tool_itself_fails_or_nothing_was_filmed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "film.mp4", 30) as film:
        film.write(striped(0))
        raise KeyboardInterrupt
    with VideoWriter(tmp_path / "empty.mp4", 30):
        pass
    assert os.listdir(tmp_path) == []


def test_an_older_film_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("older")
    with pytest.raises(KeyboardInterrupt), VideoWriter(path, 30) as film:
        film.write(striped(0))
        raise KeyboardInterrupt
    assert path.read_text() == "older"


def test_pictures_that_change_their_size_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvError, match="change their size") as caught,
        VideoWriter(tmp_path / "film.mp4", 30) as film,
    ):
        film.write(striped(0))
        film.write(striped(0, 20, 30))
    assert (caught.value.expected, caught.value.found) == ("60 x 40 pixels", "30 x 20 pixels")


def test_a_place_that_goes_away_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "film.mp4"
    with pytest.raises(ErlError, match="can't be written") as caught, VideoWriter(path, 30) as film:
        film.write(striped(0))
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "message"), [("film.avi", "not an MP4"), ("film", "not an MP4"), ("folder.mp4", "is a folder")]
)
def test_names_of_no_film_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(RecipeError, match=message):
        check_video_path(tmp_path / name)


def test_places_that_can_not_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "film.mp4", tmp_path / "no" / "such" / "film.mp4"):
        with pytest.raises(RecipeError, match="can't be written"):
            check_video_path(path)
    check_video_path(tmp_path / "videos" / "film.mp4")
    assert os.listdir(tmp_path / "videos") == []


def test_envs_without_the_render_mode_say_so(envs: Path) -> None:
    assert rendering_env(EnvConfig(f"{envs}:Picture"), "rgb_array").render_mode == "rgb_array"
    for name, mode in (("Picture", "human"), ("Blind", "rgb_array"), ("Boastful", "rgb_array")):
        with pytest.raises(EnvError, match=f"can't render as {mode}") as caught:
            rendering_env(EnvConfig(f"{envs}:{name}"), mode)
        assert caught.value.remedy
    with pytest.raises(RecipeError, match="no such file"):
        rendering_env(EnvConfig(f"{envs.parent}/other.py:Picture"), "rgb_array")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("raise", "raised OSError: no EGL device"),
        ("none", r"shape \(\)"),
        ("gray", r"shape \(5, 7\)"),
        ("float", "dtype float64"),
        ("empty", r"shape \(0, 7, 3\)"),
    ],
)
def test_what_is_no_picture_is_refused(envs: Path, frame: str, message: str) -> None:
    config = EnvConfig(f"{envs}:Picture", kwargs={"frame": frame})
    with pytest.raises(EnvError, match=message) as caught:
        picture(rendering_env(config, "rgb_array"), config.id)
    if frame == "raise":
        assert 'raise OSError("no EGL device")' in caught.value.details["traceback"]


def test_a_picture_is_given_as_it_is(envs: Path) -> None:
    config = EnvConfig(f"{envs}:Picture")
    assert picture(rendering_env(config, "rgb_array"), config.id).shape == (5, 7, 3)
