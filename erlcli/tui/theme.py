"""Colours: told apart by colour-blind eyes, in a dark and a light variant.

The series' hues are those of Okabe and Ito, "Color Universal Design" (2008), lightened or darkened to stand out from
the ground. Nothing is told by colour alone: states have words, curves have labels and shapes.
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="erl-dark",
    primary="#56b4e9",
    secondary="#cc79a7",
    accent="#e69f00",
    success="#2fbf8f",
    warning="#f0c040",
    error="#ff7043",
    foreground="#d5dae1",
    background="#101418",
    surface="#161b21",
    panel="#1f262e",
    boost="#28313b",
    dark=True,
    variables={"border-blurred": "#2c3640", "footer-background": "#161b21", "footer-key-foreground": "#e69f00"},
)
LIGHT = Theme(
    name="erl-light",
    primary="#0072b2",
    secondary="#a0447a",
    accent="#b26a00",
    success="#00795a",
    warning="#8a6d00",
    error="#c43c00",
    foreground="#1d2329",
    background="#fbfbf9",
    surface="#f3f3f0",
    panel="#e7e7e3",
    boost="#dcdcd6",
    dark=False,
    variables={"border-blurred": "#cfcfc8", "footer-background": "#f3f3f0", "footer-key-foreground": "#b26a00"},
)
SERIES = {  # of curves, in order of use
    True: ("#56b4e9", "#e69f00", "#2fbf8f", "#cc79a7", "#f0e442", "#d55e00", "#8fa3ff", "#9aa5b1"),
    False: ("#0072b2", "#b26a00", "#00795a", "#a0447a", "#8a7d00", "#c43c00", "#4050c0", "#5b6670"),
}


def series_color(index: int, *, dark: bool) -> str:
    """The colour of the curve number `index`."""
    colors = SERIES[dark]
    return colors[index % len(colors)]
