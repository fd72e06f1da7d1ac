"""Learning curves as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erlcli.runs.view import RunView

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save(views: Sequence[RunView], path: Path) -> None:
    """Draw the runs' curves into a PNG or SVG file, replaced atomically.

    Training returns are thin lines, evaluations thick ones with the 95 % confidence band of their mean.

    Args:
        views: refreshed.
        path: its suffix names the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    targets: set[float] = set()
    for view, color in zip(views, COLORS * (len(views) // len(COLORS) + 1), strict=False):
        _draw(axes, view, color)
        if (target := view.status.get("target_return")) is not None:
            targets.add(float(target))
    for target in sorted(targets):
        axes.axhline(target, color="0.5", linestyle="--", linewidth=1, label=f"target {target:g}")
    axes.set_xlabel("env steps")
    axes.set_ylabel("return")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _draw(axes: Any, view: RunView, color: str) -> None:  # noqa: ANN401 - matplotlib's Axes
    name = view.layout.root.name
    steps, returns = view.metrics.column("episode/return")
    if steps:
        axes.plot(steps, returns, color=color, linewidth=0.8, alpha=0.6, label=f"{name}: training")
    rows = view.evals.rows
    if rows:
        steps = [row["steps"] for row in rows]
        bands = [row["return_ci"] for row in rows]
        axes.plot(steps, [row["return_mean"] for row in rows], color=color, linewidth=2, label=f"{name}: evaluation")
        axes.fill_between(steps, [b[0] for b in bands], [b[1] for b in bands], color=color, alpha=0.2, linewidth=0)
