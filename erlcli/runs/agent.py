"""The film of the agent in a run directory, as its readers see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from erlcli.runs.jsonl import Row, read_json
from erlcli.runs.layout import RunLayout

LATEST = "latest.json"


@dataclass(frozen=True)
class AgentFilm:
    """An episode of the newest policy, or why there is none. Equal facts are the same film.

    Attributes:
        time: when it was made, in seconds since the epoch.
        unavailable: why this env can't be filmed; all else is empty then.
        path: an animated WebP, whose pictures have the durations that they are to be shown for.
        steps: that the policy was trained for.
        episode: number within the evaluation's fixed set.
        total: return so far.
        length: in env steps.
        complete: whether the episode came to its end within the time for filming.
        fps: pictures a second.
        quickness: how many times faster than in the env it is shown.
        width: of a picture, in pixels.
        height: of a picture, in pixels.
    """

    time: float
    unavailable: str | None = None
    path: Path = Path()
    steps: int = 0
    episode: int = 0
    total: float = 0.0
    length: int = 0
    complete: bool = True
    fps: float = 1.0
    quickness: float = 1.0
    width: int = 0
    height: int = 0


def read_agent(layout: RunLayout) -> AgentFilm | None:
    """The newest film of a run; None where nobody has tried yet, or the facts can't be understood."""
    row = read_json(layout.agent / LATEST)
    if row is None:
        return None
    try:
        return _film(row, layout.agent)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _film(row: Row, folder: Path) -> AgentFilm:
    time = float(row["time"])
    if "unavailable" in row:
        return AgentFilm(time, unavailable=str(row["unavailable"]))
    name, fps = str(row["file"]), float(row["fps"])
    if Path(name).name != name or not fps > 0:
        raise ValueError(name)
    return AgentFilm(
        time,
        path=folder / name,
        steps=int(row["steps"]),
        episode=int(row["episode"]),
        total=float(row["return"]),
        length=int(row["length"]),
        complete=bool(row["complete"]),
        fps=fps,
        quickness=fps * float(row["stride"]) / float(row["env_fps"]),
        width=int(row["width"]),
        height=int(row["height"]),
    )
