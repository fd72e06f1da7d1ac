"""Films of the agent for those who watch a run: one episode of the newest policy, now and then.

They are extra: played in an environment of their own after an evaluation, with other people's random numbers put back
as they were, in at most a 50th of the evaluator's time, and only while somebody looks. What can't be filmed is said
once in `agent/latest.json`, and evaluation goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from erlcli.core.policy import Policy
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.failures import Interrupted
from erlcli.engine.video import Frame
from erlcli.envs.config import env_config
from erlcli.envs.offscreen import draw_offscreen
from erlcli.envs.position import PositionLog
from erlcli.errors import ErlError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.control import WATCH_SECONDS
from erlcli.runs.jsonl import Row, read_json, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import Heartbeat

if TYPE_CHECKING:
    from PIL.Image import Image

REST = 50.0  # times the length of a film's making, before the next one
MIN_REST_SECONDS = 10.0
MAX_FRAMES = 300
MAX_PIXELS = 320  # width and height
MAX_SECONDS = 20.0
LAST_FRAMES, LAST_SECONDS = 80, 1.9  # of the last film, which a finished run waits for
SAVE_SECONDS = 0.005  # that a picture takes to be compressed, about
SHOWN_FPS = 15.0  # more than a terminal shows is not worth drawing
SLOWEST_FPS = 8.0  # a film with fewer frames a second is shown in quick motion
MODE = "rgb_array"
MAX_DEATHS = 2


@dataclass(frozen=True)
class Subject:
    """What is filmed.

    Attributes:
        policy: with its weights.
        attempt: that it comes from.
        steps: that it was trained for.
        expected_length: of its episodes, in steps; 0 where it is not known.
    """

    policy: Policy
    attempt: int
    steps: int
    expected_length: float = 0.0


class Reel:
    """Pictures of an episode of unknown length, evenly spaced.

    Args:
        limit: pictures at most.
        stride: steps between two of them, to begin with; doubled whenever they are too many.
    """

    def __init__(self, limit: int, stride: int) -> None:
        self.limit, self.stride = limit, stride
        self.frames: list[Image] = []

    def wants(self, step: int) -> bool:
        """Whether there is to be a picture of this step, from 0."""
        if step % self.stride == 0 and len(self.frames) >= self.limit:
            self.frames = self.frames[::2]
            self.stride *= 2
        return step % self.stride == 0

    def add(self, frame: Image) -> None:
        """The picture of a step that was wanted."""
        self.frames.append(frame)

    def end(self, step: int, frame: Image) -> None:
        """The picture of the last step, wanted or not."""
        if step % self.stride:
            self.frames[self.limit - 1 :] = [frame]


class Filmer:
    """See the module's docstring.

    Args:
        layout: the run.
        recipe: its recipe.
        beat: of the evaluator, told before each step, so that an env that hangs while it draws is found out.
        position: of the evaluator.
        render_modes: that the env says it has.
        stop: whether to give up at once.
    """

    def __init__(
        self,
        layout: RunLayout,
        recipe: AnyRecipe,
        beat: Heartbeat,
        position: PositionLog,
        render_modes: list[str],
        stop: Callable[[], bool],
    ) -> None:
        self._layout, self._beat, self._position, self._stop = layout, beat, position, stop
        self._config = env_config(recipe.env, 1)
        self._seed, self._episodes = recipe.eval.seed, recipe.eval.episodes
        self._able = MODE in render_modes
        self._evaluation: Evaluation | None = None
        self._due = 0.0
        self._shown: tuple[int, int] | None = None  # attempt and steps of the newest film
        self._count = 0
        self._unavailable = False
        # Left behind by an evaluator that was killed, perhaps by what the env draws with.
        self._marker = layout.agent / "filming.json"
        self._deaths = int((read_json(self._marker) or {"deaths": -1}).get("deaths", 0)) + 1

    def offer(self, subject: Subject) -> None:
        """Film, if somebody wants to see it, it is new, and the last film is long enough ago.

        Raises:
            Interrupted: `stop` said so.
        """
        if self._unavailable or time.monotonic() < self._due or self._is_shown(subject) or not self._is_watched():
            return
        began = time.monotonic()
        self._film(subject, MAX_FRAMES, began + MAX_SECONDS)
        now = time.monotonic()
        self._due = now + max(MIN_REST_SECONDS, REST * (now - began))

    def last(self, subject: Subject) -> None:
        """A short film at the end of a run, so that a finished run shows its agent.

        Raises:
            Interrupted: `stop` said so.
        """
        if not self._unavailable and not self._is_shown(subject):
            self._film(subject, LAST_FRAMES, time.monotonic() + LAST_SECONDS)

    def close(self) -> None:
        """Release the environment."""
        if self._evaluation is not None:
            self._evaluation.close()
            self._evaluation = None

    def _is_shown(self, subject: Subject) -> bool:
        return self._shown == (subject.attempt, subject.steps)

    def _is_watched(self) -> bool:
        try:
            return time.time() - self._layout.agent_request.stat().st_mtime < WATCH_SECONDS
        except OSError:
            return False

    def _film(self, subject: Subject, max_frames: int, deadline: float) -> None:
        try:
            self._check()
            write_json(self._marker, {"deaths": self._deaths})
            with _untouched_randomness():
                row, frames = self._play(subject, max_frames, deadline)
                self._develop(row, frames)
            self._deaths = 0
            self._shown = (subject.attempt, subject.steps)
            self._count += 1
        except Interrupted:
            raise
        except OSError as error:
            print(f"film: {error}", file=sys.stderr)  # a full disk; whoever writes more has more to say
        except Exception as error:  # whatever an env draws with may fail in its own way
            self._say_unavailable(error.message if isinstance(error, ErlError) else f"{type(error).__name__}: {error}")
        finally:
            self._marker.unlink(missing_ok=True)
            self._beat.progress("waiting")

    def _check(self) -> None:
        """Raise what is known to keep this env from being filmed."""
        if not self._able:
            raise ErlError(f"{self._config.id} has no pictures: its render_modes lack {MODE}")
        if self._deaths >= MAX_DEATHS:
            raise ErlError(f"the evaluator died {self._deaths} times while {self._config.id} drew")

    def _say_unavailable(self, reason: str) -> None:
        self._unavailable = True
        self.close()
        with contextlib.suppress(OSError):
            write_json(
                self._layout.agent / "latest.json", {"unavailable": " ".join(reason.split()), "time": time.time()}
            )

    def _play(self, subject: Subject, max_frames: int, deadline: float) -> tuple[Row, list[Image]]:
        """One episode, or as much of it as there is time for: its facts and pictures."""
        self._beat.progress("env render")
        if self._evaluation is None:
            draw_offscreen()  # not before now: MuJoCo would load what it may not find, and evaluation needs it first
            self._evaluation = Evaluation(self._config, self._seed, MODE, self._position)
        evaluation, episode = self._evaluation, self._count % self._episodes
        stride = max(math.ceil(evaluation.fps / SHOWN_FPS), round(subject.expected_length / max_frames))
        reel = Reel(max_frames, max(1, stride))
        length, total = 0, 0.0

        def watch(_: int, steps: int, so_far: float) -> None:
            nonlocal length, total
            length, total = steps, so_far
            self._beat.progress("env render")
            if reel.wants(steps):
                reel.add(_shrunk(evaluation.render()))

        def enough() -> bool:
            return self._stop() or time.monotonic() + SAVE_SECONDS * len(reel.frames) > deadline

        complete = True
        try:
            evaluation.run(subject.policy, [episode], watch=watch, stop=enough)
        except Interrupted:
            if self._stop():
                raise
            complete = False
        reel.end(length, _shrunk(evaluation.render()))
        facts: Row = {
            "steps": subject.steps,
            "attempt": subject.attempt,
            "episode": episode,
            "seed": self._seed,
            "return": total,
            "length": length,
            "complete": complete,
            "stride": reel.stride,
            "fps": _shown_fps(evaluation.fps, reel.stride),
            "env_fps": evaluation.fps,
        }
        return facts, reel.frames

    def _develop(self, row: Row, frames: list[Image]) -> None:
        """Write the film, then `latest.json` that names it, and remove older ones."""
        folder = self._layout.agent
        path = folder / f"{row['steps']}.webp"
        _save(path, frames, row["fps"])
        width, height = frames[0].size
        size = {"file": path.name, "frames": len(frames), "width": width, "height": height, "time": time.time()}
        write_json(folder / "latest.json", {**size, **row})
        for older in folder.glob("*.webp"):
            if older != path:
                older.unlink(missing_ok=True)


def _shown_fps(fps: float, stride: int) -> float:
    """Pictures a second: as in the env's own time, unless that is too fast or too slow to look at."""
    own = fps / stride
    return round(min(own, SHOWN_FPS) if stride == 1 else min(max(own, SLOWEST_FPS), SHOWN_FPS), 2)


def _shrunk(frame: Frame) -> Image:
    """A picture of at most `MAX_PIXELS` each way."""
    from PIL import Image

    image = Image.fromarray(frame)
    scale = min(1.0, MAX_PIXELS / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR, reducing_gap=1.5)


def _save(path: Path, frames: list[Image], fps: float) -> None:
    """An animated WebP, which appears under its name once it is whole.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    first, *others = frames
    options: dict[str, Any] = {"quality": 60, "method": 0, "loop": 0, "duration": max(1, round(1000.0 / fps))}
    try:
        first.save(temporary, "WEBP", save_all=True, append_images=others, **options)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _untouched_randomness() -> Iterator[None]:
    """Put back what envs and policies may draw from: the evaluation's numbers don't depend on who looks on."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
