"""How values, keys and choices read in messages: quoted, short, printable, wrapped at 80 columns."""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import tomli_w

WIDTH = 80
LABEL_WIDTH = 12  # "  expected: ", which every continuation line is indented by
LONGEST_VALUE = 60
NEXT_LINE = "\n" + " " * LABEL_WIDTH
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

# What other tools call a key, where the spelling is too far from ours to be found by likeness.
ALIASES = {"lr": "learning_rate", "n_steps": "rollout_length", "horizon": "rollout_length", "layers": "hidden"}


def wrap(text: str) -> str:
    """`text` broken so that it fits behind a label of an error message."""
    return NEXT_LINE.join(textwrap.wrap(text, WIDTH - LABEL_WIDTH, break_long_words=False, break_on_hyphens=False))


def printable(text: str) -> str:
    """`text` without characters that would act on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, length: int = LONGEST_VALUE) -> str:
    """The start of `text`, with three dots where it goes on."""
    return text if len(text) <= length else text[: length - 3] + "..."


def quote(text: str) -> str:
    """`text` in double quotes, safe for a terminal."""
    return printable(json.dumps(text, ensure_ascii=False))


def dotted(path: Sequence[int | str]) -> str:
    """A place in a recipe, as in `env.wrappers[1].kwargs`."""
    words = ""
    for part in path:
        if isinstance(part, int):
            words += f"[{part}]"
        else:
            words += ("." if words else "") + (part if _BARE_KEY.fullmatch(part) else shorten(quote(part)))
    return words


def found(value: Any) -> str:  # noqa: ANN401 - any TOML value
    """A value with its kind, as in `"3" (text)`."""
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    if isinstance(value, int):
        return f"{value} (a whole number)" if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return f"{value} (a number with a fraction)" if value == value and abs(value) != float("inf") else f"{value}"
    if isinstance(value, str):
        return f"{shorten(quote(value))} (text)" if value else '"" (empty text)'
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        keys = shorten(", ".join(dotted([key]) for key in value), LONGEST_VALUE - 10)
        return f"a table with {keys}" if value else "an empty table"
    return f"{value} (a {type(value).__name__})"


def inline(value: Any) -> str:  # noqa: ANN401 - any TOML value
    """A value as TOML on one line, tables as `{ key = value }`."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{key_of(key)} = {inline(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(inline(item) for item in value)}]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def key_of(key: str) -> str:
    """A key as TOML, in quotes where it needs them."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was most likely meant to be."""
    names = list(choices)
    plain = name.strip().lower().replace("-", "_")
    if ALIASES.get(plain) in names:
        return ALIASES[plain]
    folded = {choice.lower().replace("-", "_"): choice for choice in names}
    close = difflib.get_close_matches(plain[:100], folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None
