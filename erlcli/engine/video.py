"""Pictures of an environment: taken, and filmed as MP4."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from erlcli.engine.failures import Interrupted
from erlcli.envs.config import EnvConfig
from erlcli.envs.single import make_env
from erlcli.errors import EnvError, ErlError, RecipeError, unwritable

Frame = NDArray[np.uint8]  # (height, width, 3)


def rendering_env(config: EnvConfig, mode: str) -> gymnasium.Env[Any, Any]:
    """An env with a render mode.

    Raises:
        EnvError: it knows none such.
    """
    probe = make_env(config)
    modes = probe.metadata.get("render_modes") or []
    probe.close()
    # gymnasium.make opens a window by itself for registered envs that give pictures only.
    able = mode in modes or (mode == "human" and ":" not in config.id and "rgb_array" in modes)
    found = f'metadata["render_modes"] = {list(modes)}'
    if able:
        try:
            return make_env(config, mode)
        except RecipeError as error:
            if "render_mode" not in error.message:
                raise
            found = error.message
    raise EnvError(
        f"env.id {config.id}: can't render as {mode}",
        expected=f'"{mode}" in metadata["render_modes"], and a keyword argument render_mode',
        found=found,
        remedy="evaluate without pictures" if mode == "rgb_array" else "--video FILE.mp4 or --terminal",
    )


def picture(env: gymnasium.Env[Any, Any], env_id: str) -> Frame:
    """What `env` shows, (height, width, 3) uint8.

    Raises:
        EnvError: it can't draw, or gives something else.
    """
    trace: str | None = None
    try:
        array = np.asarray(env.render())
    except Exception as error:
        what = f"raised {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
    else:
        if array.ndim == 3 and array.shape[2] == 3 and array.size and array.dtype == np.uint8:
            return array
        what = f"gave an array of shape {array.shape} and dtype {array.dtype}"
    raise EnvError(
        f"env.id {env_id}: render {what}",
        expected="a picture, (height, width, 3) uint8",
        remedy="evaluate without pictures; without a display MuJoCo needs EGL or OSMesa (see MUJOCO_GL)",
        details={"traceback": trace},
    )


def check_video_path(path: Path) -> None:
    """Make sure that a film can be written to `path` before anything is played.

    Raises:
        RecipeError: another suffix, a folder, or a place that can't be written.
    """
    if path.suffix.lower() != ".mp4":
        raise RecipeError(
            f"--video {path}: not an MP4 file",
            expected="a name that ends in .mp4",
            found=path.suffix or "no suffix",
            remedy=f"--video {path.with_suffix('.mp4')}",
        )
    if path.is_dir():
        raise RecipeError(f"--video {path}: is a folder", expected="the name of a file", remedy=f"{path}/video.mp4")
    probe = _temporary(path)
    try:
        path.parent.mkdir(exist_ok=True)  # one level, such as a run's videos/; more would be a mistyped path
        probe.touch()
    except OSError as error:
        raise unwritable(f"--video {path}", error, expected="a writable place", remedy="another path") from None
    finally:
        if path.parent.is_dir():
            probe.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{os.getpid()}.{path.name}")


class VideoWriter:
    """Films frames as H.264 in an MP4 file, which appears under its name once it is whole.

    As a context manager it keeps what was filmed until an interruption or a failure of the env, and nothing that could
    not be written.

    Args:
        path: of the file.
        fps: frames a second.

    Attributes:
        frames: written so far.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.frames = 0
        self._rate = Fraction(fps).limit_denominator(1000)
        self._temporary = _temporary(path)
        self._shape: tuple[int, ...] = ()
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, (Interrupted, EnvError)):
                self.close()
        finally:
            self._discard()

    def write(self, frame: Frame) -> None:
        """Append a frame.

        Raises:
            EnvError: it is of another size than the first.
            ErlError: it can't be written.
        """
        import av  # its libraries take a moment to load

        if self._container is None:
            self._guarded(lambda: self._open(frame.shape))
        if frame.shape != self._shape:
            raise EnvError(
                "the env's pictures change their size within a film",
                expected=f"{self._shape[1]} x {self._shape[0]} pixels",
                found=f"{frame.shape[1]} x {frame.shape[0]} pixels",
                remedy="evaluate without --video; --video-episodes 1 helps where each episode has a size of its own",
            )
        even = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")
        video = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        self._guarded(lambda: self._container.mux(self._stream.encode(video)))
        self.frames += 1

    def close(self) -> None:
        """Complete the file; without a single frame there is none.

        Raises:
            ErlError: it can't be written.
        """
        if self._container is None:
            return

        def finish() -> None:
            self._container.mux(self._stream.encode())  # what the encoder still holds back
            self._container.close()
            self._container = None
            os.replace(self._temporary, self.path)

        self._guarded(finish)

    def _open(self, shape: tuple[int, ...]) -> None:
        import av

        self._shape = shape
        self._container = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "faststart"})
        # yuv420p, which every player knows, halves both axes of colour: hence even sizes.
        self._stream = self._container.add_stream("libx264", rate=self._rate, options={"crf": "20", "preset": "fast"})
        self._stream.height, self._stream.width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
        self._stream.pix_fmt = "yuv420p"

    def _guarded(self, action: Callable[[], None]) -> None:
        import av

        try:
            action()
        except (av.FFmpegError, OSError) as error:
            raise ErlError(
                f"{self.path}: the film can't be written",
                expected="a writable place with free space, and an av package with libx264",
                found=f"{type(error).__name__}: {error}",
                remedy="free space, or another path for --video",
            ) from None

    def _discard(self) -> None:
        if self._container is not None:
            try:
                self._container.close()
            except Exception as error:  # the cause is on its way to the user already
                print(f"{self._temporary}: {error}", file=sys.stderr)
            self._container = None
        self._temporary.unlink(missing_ok=True)
