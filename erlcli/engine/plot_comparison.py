"""Runs or tournaments side by side as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erlcli.engine.groups import Group, env_name
from erlcli.engine.plot import (
    COLORS,
    DASHES,
    EVALUATION,
    TRAINING,
    Options,
    Series,
    canvas,
    draw_series,
    draw_targets,
    dress,
    lines_of,
    mean_of,
    save_figure,
    shared,
)
from erlcli.engine.plot_tournament import Story, bounded_below, draw_best, headroom, placer, scale_of

RUNS, EPISODES = "means, 95% CI over runs", "95% CI over episodes"  # of groups, and of runs drawn one by one


def tournaments(stories: Sequence[Story], path: Path) -> None:
    """The best champions of several tournaments over env steps and over time.

    Args:
        stories: at least one, with a score each.
        path: its suffix names the format.

    Raises:
        OSError: the file can't be written.
    """
    with canvas((9.5, 4.2)) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, across in zip(panels, ("steps", "time"), strict=True):
            unit, label = scale_of([story.progress for story in stories], across)
            place = placer(across, unit)
            first = across == "steps"
            title = "  ".join(dict.fromkeys(story.env for story in stories))
            dress(axes, title if first else "", "" if first else "confirmed on fresh episodes", label, across)
            for index, story in enumerate(stories):
                color, dash = COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]
                crowd = story.progress.crowds
                axes.plot([place(c) for c in crowd], [c.median for c in crowd], drawstyle="steps-post", color=color,
                          linewidth=0.8, alpha=0.6, zorder=2)  # fmt: skip
                draw_best(axes, story.progress, place, color, dash, f"{story.name} ({story.mode})" if first else "")
            draw_targets(axes, sorted({story.target for story in stories if story.target is not None}))
            axes.set_xlim(left=0)
        panels[0].set_ylabel("mean return of the best champion")
        bounded_below(panels[0], [c.median for story in stories for c in story.progress.crowds])
        headroom(panels[0], [story.target for story in stories])
        panels[0].plot([], [], color="0.4", linewidth=0.8, label="thin: median of the population")
        figure.legend(loc="outside lower center", ncols=min(len(stories) + 1, 3), frameon=False)
        save_figure(figure, path)


def runs(groups: Sequence[Group], path: Path) -> None:
    """Learning curves of groups of runs over env steps, a panel an environment.

    A group is its mean and 95 % confidence band over runs, from where to where all of them have values; where there is
    no such place it is its runs.

    Args:
        groups: at least one.
        path: its suffix names the format.

    Raises:
        OSError: the file can't be written.
    """
    environments = list(dict.fromkeys(view.env for group in groups for view in group.views))
    columns = min(len(environments), 3)
    rows = -(-len(environments) // columns)
    with canvas((max(8.0, 4.5 * columns), 1.0 + 3.5 * rows)) as figure:
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in panels[len(environments) :]:
            axes.set_visible(False)
        shown: dict[str, Any] = {}
        for axes, env in zip(panels, environments, strict=False):
            parts = [Group(group.name, [view for view in group.views if view.env == env]) for group in groups]
            drawn = [_series(part) for part in parts]
            told = {
                RUNS if len(part.views) > len(lines) else EPISODES
                for part, lines in zip(parts, drawn, strict=True)
                if lines
            }
            words = "; ".join([*sorted(told, reverse=True), "thin: training"])
            dress(axes, env_name(env), words, "env steps", "steps")
            for index, lines in enumerate(drawn):
                color, dash = COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]
                for series in lines:
                    draw_series(axes, series, color, dash, 1.0, alone=False)
            draw_targets(axes, [view.target for group in groups for view in group.views if view.env == env])
            axes.set_xlim(left=0)
            axes.set_ylabel("return")
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                shown.setdefault(label, handle)
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(len(shown), 4), frameon=False)
        save_figure(figure, path)


def _series(group: Group) -> list[Series]:
    """The mean of a group, or its runs one by one."""
    curves = {metric: lines_of(group, metric, Options()) for metric in (TRAINING, EVALUATION)}
    curves = {metric: lines for metric, lines in curves.items() if lines}
    if all(len(lines) > 1 and shared(lines)[0] <= shared(lines)[1] for lines in curves.values()):
        return [Series(group.name, {metric: mean_of(lines, group.name) for metric, lines in curves.items()})]
    return [
        Series(group.name, {metric: lines[place] for metric, lines in curves.items() if place < len(lines)})
        for place in range(max(map(len, curves.values()), default=0))
    ]
