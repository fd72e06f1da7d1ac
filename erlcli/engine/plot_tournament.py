"""A tournament as pictures: scores, lineage and hyper-parameters.

Colours are those of Okabe and Ito, and cividis for scores: both can be told apart with any colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erlcli.algorithms import registry
from erlcli.engine.plot import COLORS, UNITS, canvas, draw_targets, dress, save_figure
from erlcli.recipe.load import read_toml
from erlcli.runs.jsonl import Row, read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.members import Member
from erlcli.runs.progress import Moment, Progress, of
from erlcli.runs.text import plural, score

MAP = "cividis"
BEST, CROWD, CHAMPION = COLORS[1], COLORS[0], COLORS[1]
ROW_INCHES, MOST_INCHES = 0.17, 14.0  # height of a member in the lineage picture, and of the whole
NAMED = 60  # members up to which the lineage picture names all of them
MOST_PARAMETERS = 12


@dataclass(frozen=True)
class Story:
    """All that is drawn of a tournament.

    Attributes:
        name: of its directory.
        env: id, without the file of one from a file.
        mode: such as `tournament`.
        target: mean return to be reached, if there is one.
        search: the recipe's distributions by key.
        progress: the fold of its journal.
    """

    name: str
    env: str
    mode: str
    target: float | None
    search: Mapping[str, Any]
    progress: Progress

    @property
    def notice(self) -> str | None:
        """What the journal lacks; None where it is whole."""
        skipped = self.progress.board.skipped
        return f"{self.name}: {plural(skipped, 'row')} of the journal can't be read, left out" if skipped else None

    @staticmethod
    def read(path: Path) -> Story:
        """The story of the tournament in a directory, as far as it got.

        Raises:
            RecipeError: its recipe can't be read.
        """
        layout = RunLayout(path)
        recipe, status = read_toml(layout.recipe), read_json(layout.status) or {}
        section: dict[str, Any] = recipe.get("tournament", {})
        target = recipe.get("train", {}).get("target_return")
        env = str(recipe.get("env", {}).get("id", status.get("env", ""))).rpartition("/")[2]
        mode = str(section.get("mode", "tournament"))
        return Story(path.resolve().name, env, mode, target, _flat(section.get("search", {})), of(path))


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Row]:
    """Dotted keys and their distributions; those of an algorithm's subtree without its name."""
    flat: dict[str, Row] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and "kind" in value:
            flat[prefix + key] = value
        elif isinstance(value, dict):
            flat |= _flat(value, "" if not prefix and key in registry.configs() else f"{prefix}{key}.")
    return flat


def plot_all(story: Story, name: Callable[[str], Path], across: str = "steps") -> list[Path]:
    """Draw all pictures.

    Args:
        story: with at least one score.
        name: the file of a picture, from `scores`, `lineage` and `parameters`.
        across: `steps` or `time`, for the scores.

    Returns:
        The files; without `parameters` where nothing is searched.

    Raises:
        OSError: a file can't be written.
    """
    scores(story, name("scores"), across)
    lineage(story, name("lineage"))
    written = [name("scores"), name("lineage")]
    if story.progress.board.changes:
        parameters(story, name("parameters"))
        written.append(name("parameters"))
    return written


# Scores


def scores(story: Story, path: Path, across: str = "steps") -> None:
    """Every evaluation, the middle half of the population, and the best champion so far.

    Args:
        story: see `plot_all`.
        path: its suffix names the format.
        across: `steps` or `time`.

    Raises:
        OSError: the file can't be written.
    """
    progress = story.progress
    with canvas() as figure:
        axes = figure.add_subplot()
        unit, label = scale_of([progress], across)
        place = placer(across, unit)
        dress(axes, f"{story.env}  {story.mode}", f"{story.name}: {len(progress.board.members)} members", label, across)
        axes.set_ylabel("mean return")
        x = [place(moment) for moment in progress.scores]
        axes.plot(x, [m.mean for m in progress.scores], "o", color=CROWD, markersize=3, alpha=0.3, markeredgewidth=0,
                  label="evaluation of a member", zorder=2)  # fmt: skip
        crowd = progress.crowds
        at = [place(moment) for moment in crowd]
        axes.fill_between(at, [c.low for c in crowd], [c.high for c in crowd], step="post", color=CROWD, alpha=0.15,
                          linewidth=0, label="population: middle half", zorder=1)  # fmt: skip
        axes.plot(at, [c.median for c in crowd], drawstyle="steps-post", color=CROWD, linewidth=1.2,
                  label="population: median", zorder=3)  # fmt: skip
        draw_best(axes, progress, place, BEST, "-", "best champion so far", name_last=True)
        draw_targets(axes, [story.target])
        bounded_below(axes, [m.mean for m in progress.scores])
        headroom(axes, [story.target])
        axes.set_xlim(left=0)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        save_figure(figure, path)


def scale_of(all_progress: Sequence[Progress], across: str) -> tuple[float, str]:
    """Unit of the horizontal axis, and its name."""
    if across == "steps":
        return 1.0, "env steps of all members"
    longest = max(progress.seconds for progress in all_progress)
    _, seconds, name = next(entry for entry in UNITS if longest >= entry[0])
    return seconds, f"time at work ({name})"


def placer(across: str, unit: float) -> Callable[[Any], float]:
    """Where a moment is on the horizontal axis."""
    if across == "steps":
        return lambda moment: float(moment.steps)
    return lambda moment: moment.seconds / unit


def draw_best(
    axes: Any,  # noqa: ANN401 - matplotlib's Axes
    progress: Progress,
    place: Callable[[Any], float],
    color: str,
    dash: str,
    label: str,
    *,
    name_last: bool = False,
) -> None:
    """The best champion so far as a step line up to now."""
    best = progress.best_so_far()
    if not best:
        return
    end = place(Moment(progress.steps, progress.seconds, "", best[-1].mean))
    x, y = [place(moment) for moment in best], [moment.mean for moment in best]
    axes.plot([*x, end], [*y, y[-1]], dash, drawstyle="steps-post", color=color, linewidth=2.2, label=label, zorder=4)
    axes.plot(x, y, "o", color=color, markersize=5, markeredgecolor="white", zorder=5)
    if name_last:
        left = x[-1] > 0.5 * max(end, 1e-9)
        axes.annotate(
            f"{best[-1].member}  {score(y[-1])}", (x[-1], y[-1]), xytext=(-6 if left else 6, 6),
            textcoords="offset points", ha="right" if left else "left", fontsize=8, color=color, zorder=6,
        )  # fmt: skip


def bounded_below(axes: Any, values: Sequence[float]) -> None:  # noqa: ANN401 - matplotlib's Axes
    """Don't let a few disasters press the rest of a picture flat: they are cut off, and counted."""
    if len(values) < 20:
        return
    low, quarter, high = np.percentile(values, [0, 10, 100])
    floor = quarter - 0.5 * (high - quarter)
    if low >= floor:
        return
    axes.set_ylim(bottom=floor)
    below = int(np.sum(np.asarray(values) < floor))
    axes.annotate(f"{below} below", (0.99, 0.01), xycoords="axes fraction", ha="right", fontsize=8, color="0.45")


def headroom(axes: Any, targets: Sequence[float | None]) -> None:  # noqa: ANN401 - matplotlib's Axes
    """Room for the words above the target."""
    highest = max((target for target in targets if target is not None), default=None)
    if highest is not None:
        bottom, top = axes.get_ylim()
        axes.set_ylim(top=max(top, highest + 0.09 * (max(top, highest) - bottom)))


# Lineage


def lineage(story: Story, path: Path) -> None:
    """The family tree: a line a member over its lineage's env steps, coloured by its score.

    Args:
        story: see `plot_all`.
        path: its suffix names the format.

    Raises:
        OSError: the file can't be written.
    """
    board = story.progress.board
    rows = {member.id: row for row, member in enumerate(_tree(list(board.members.values())))}
    champion = board.champion
    line = {member.id for member in champion.lineage} if champion is not None else set()
    known = [m.score for m in board.members.values() if m.score is not None]
    height = min(max(2.6, 1.4 + ROW_INCHES * len(rows)), MOST_INCHES)
    with canvas((8, height)) as figure:
        axes = figure.add_subplot()
        dress(axes, f"{story.env}  {story.mode}", f"{story.name}: lineage", "env steps of the lineage", "steps")
        colors = _score_colors(known)
        for member in board.members.values():
            row, thick = rows[member.id], member.id in line
            color = "0.8" if member.score is None else colors.to_rgba(member.score)
            if member.parent is not None:
                axes.plot([member.born_steps] * 2, [rows[member.parent.id], row], color=CHAMPION if thick else "0.75",
                          linewidth=1.6 if thick else 0.6, zorder=1)  # fmt: skip
            end = max(member.steps, member.born_steps)
            if thick:  # a rim
                axes.plot([member.born_steps, end], [row, row], color=CHAMPION, linewidth=6.5, zorder=2,
                          solid_capstyle="butt")  # fmt: skip
            axes.plot([member.born_steps, end], [row, row], color=color, linewidth=4, solid_capstyle="butt", zorder=3)
            if len(rows) <= NAMED or member is champion:
                _name(axes, member, end, row, champion=member is champion)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(rows) - 0.3, -0.7)
        axes.set_xlim(0, 1.12 * max((m.steps for m in board.members.values()), default=1) or 1)
        if known:
            figure.colorbar(colors, ax=axes, label="mean return", pad=0.01, fraction=0.05, aspect=min(8 * height, 40))
        if champion is not None:
            axes.plot([], [], color=CHAMPION, linewidth=3, label=f"line of the champion, {champion.id}")
            figure.legend(loc="outside lower center", frameon=False)
        save_figure(figure, path)


def _name(axes: Any, member: Member, end: int, row: int, *, champion: bool) -> None:  # noqa: ANN401
    dead = member.activity == "retired" and not champion
    axes.annotate(
        member.id, (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6.5,
        color=CHAMPION if champion else "0.6" if dead else "0.15", fontweight="bold" if champion else "normal",
    )  # fmt: skip


def _tree(members: Sequence[Member]) -> list[Member]:
    """Members from top to bottom: each below its parent, before whoever its parent had later."""
    rows: list[Member] = []
    waiting = [member for member in reversed(members) if member.parent is None]
    while waiting:
        member = waiting.pop()
        rows.append(member)
        waiting += reversed(member.children)
    return rows


def _score_colors(known: Sequence[float]) -> Any:  # noqa: ANN401 - matplotlib's ScalarMappable
    """Scores to colours; the worst tenth share one, so that disasters don't leave all others alike."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low, high = (np.percentile(known, [10, 100])) if known else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high if high > low else low + 1.0), MAP)


# Hyper-parameters


def parameters(story: Story, path: Path) -> None:
    """Which values hyper-parameters got over the tournament, a panel each, and those of the champion's line.

    Args:
        story: see `plot_all`.
        path: its suffix names the format.

    Raises:
        OSError: the file can't be written.
    """
    progress = story.progress
    board = progress.board
    keys = list(board.changes)[:MOST_PARAMETERS]
    columns = 1 if len(keys) == 1 else 2 if len(keys) <= 4 else 3
    lines = math.ceil(len(keys) / columns)
    known = [m.best for m in board.members.values() if m.best is not None]
    colors = _score_colors(known)
    with canvas((2.9 * columns + 0.9, 2.1 * lines + 0.9)) as figure:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for axes, key in zip(grid, keys, strict=False):
            _panel(axes, story, key, colors)
        for axes in grid[len(keys) :]:
            axes.set_visible(False)
        figure.suptitle(f"{story.env}  {story.mode}", x=0.01, ha="left", fontsize=11, fontweight="bold")
        if known:
            figure.colorbar(colors, ax=list(grid), label="best mean return", pad=0.01, fraction=0.03, aspect=30)
        if board.champion is not None:
            grid[0].plot([], [], "-", color=CHAMPION, linewidth=1.8, label=f"line of the champion, {board.champion.id}")
            figure.legend(loc="outside lower center", frameon=False)
        save_figure(figure, path)


def _panel(axes: Any, story: Story, key: str, colors: Any) -> None:  # noqa: ANN401 - matplotlib's
    progress = story.progress
    members = [m for m in progress.board.members.values() if key in m.parameters]
    words = not all(isinstance(m.parameters[key], (int, float)) for m in members) or any(
        isinstance(m.parameters[key], bool) for m in members
    )
    dress(axes, "", key.removeprefix("algorithm."), "", "steps")
    names = sorted({str(m.parameters[key]) for m in members})

    def value(member: Member) -> float:
        return float(names.index(str(member.parameters[key]))) if words else float(member.parameters[key])

    x = [progress.births[m.id] for m in members]
    tones = ["0.8" if m.best is None else colors.to_rgba(m.best) for m in members]
    axes.scatter(x, [value(m) for m in members], c=tones, s=16, linewidths=0.3, edgecolors="0.4", zorder=3)
    champion = progress.board.champion
    line = [m for m in champion.lineage if key in m.parameters] if champion is not None else []
    if line:  # its algorithm may not have the key
        end = max(progress.steps, progress.births[line[-1].id])
        axes.plot([*(progress.births[m.id] for m in line), end], [*map(value, line), value(line[-1])],
                  drawstyle="steps-post", color=CHAMPION, linewidth=1.8, zorder=2)  # fmt: skip
    if words:
        axes.set_yticks(range(len(names)), names)
    elif _is_log(story.search.get(key, {}), [value(m) for m in members]):
        axes.set_yscale("log")
    axes.set_xlim(left=-0.03 * max(progress.steps, 1))


def _is_log(distribution: Row, values: Sequence[float]) -> bool:
    if distribution:
        return distribution.get("kind") == "loguniform" or bool(distribution.get("log"))
    return min(values, default=0.0) > 0 and max(values) > 30 * min(values)
