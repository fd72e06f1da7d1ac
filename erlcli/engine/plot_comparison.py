"""Tournaments side by side as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erlcli.engine.plot import COLORS, DASHES, canvas, draw_targets, dress, save_figure
from erlcli.engine.plot_tournament import Story, bounded_below, draw_best, headroom, placer, scale_of


def compare(stories: Sequence[Story], path: Path) -> None:
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
