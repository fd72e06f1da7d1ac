"""`scaling.md` and `scaling.svg`, from what `scaling.py` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import report

# Each is about as far from white as from the pages of dark themes.
GREY = "#7d8590"  # of all that is no curve
COLORS = ("#2f86d6", "#dd6b20", "#1f9d7f", "#b86fb0")


def write(parts: Mapping[str, dict[str, Any]], folder: Path) -> None:
    """Both files, wholly anew."""
    (folder / "scaling.md").write_text(page(parts))
    drawn = [part for part in parts.values() if part["points"]]
    if drawn:
        draw(drawn, folder / "scaling.svg")


def page(parts: Mapping[str, dict[str, Any]]) -> str:
    """A section a part: table, what was not measured, and the note that somebody wrote about it."""
    how = "`python benchmarks/scaling.py`; one part again with `--only PART`. One measurement each."
    lines = ["# Scaling", "", how,
             "", "![small multiples of the tables below](scaling.svg)"]  # fmt: skip
    for name, part in parts.items():
        lines += ["", f"## {part['title']}", "", f"`--only {name}`; {part['machine']}; {part['date']}."]
        if part["points"]:
            figures = [key for key in part["points"][0] if key != "value"]
            rows = [[f"{point['value']:,}", *(figure(point[key]) for key in figures)] for point in part["points"]]
            lines += ["", report.table([part["across"], *figures], rows)]
        lines += [line for note in part["not_measured"] for line in ("", f"Not measured: {note}")]
        lines += ["", part["note"]] if part["note"] else []
    return "\n".join(lines) + "\n"


def figure(value: float) -> str:
    """Three digits, or all of a large number's."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw(parts: list[dict[str, Any]], path: Path) -> None:
    """Small multiples on no ground, for pages of any colour."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "scaling", "text.color": GREY,
             "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY}  # fmt: skip
    columns = min(len(parts), 3)
    rows = -(-len(parts) // columns)
    with mpl.rc_context(style):
        canvas = Figure(figsize=(4.0 * columns, 3.2 * rows), layout="constrained", facecolor="none")
        FigureCanvasAgg(canvas)
        panels = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axes in panels[len(parts) :]:
            axes.set_visible(False)
        for axes, part in zip(panels, parts, strict=False):
            panel(axes, part)
        canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def panel(axes: Any, part: dict[str, Any]) -> None:
    """One part: both axes logarithmic, but for a handful of workers."""
    from matplotlib.ticker import EngFormatter

    values = [point["value"] for point in part["points"]]
    axes.set_facecolor("none")
    for name, color in zip(part["shown"], COLORS, strict=False):
        axes.plot(values, [point[name] for point in part["points"]], "o-", color=color, markersize=3.5, linewidth=1.6,
                  label=name)  # fmt: skip
    if min(values) > 0:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(values, [f"{value:,}" if value < 10_000 else EngFormatter(sep="")(value) for value in values])
    axes.set_xticks([], minor=True)
    axes.set_title(part["title"], loc="left", fontsize=10)
    axes.set_xlabel(part["across"])
    axes.set_ylabel(part["unit"])
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7.5)
