"""The recipes that come with the tool."""

from __future__ import annotations

import difflib
from pathlib import Path

from erlcli.errors import RecipeError

_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """Where they are: inside an installed package, or beside it in a source checkout."""
    installed = _PACKAGE / "recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def paths() -> dict[str, Path]:
    """Name to path, sorted by name."""
    return {path.stem: path for path in sorted(folder().glob("*.toml"))}


def find(reference: str | Path) -> Path:
    """The file that `reference` means: an existing path, else a shipped recipe of that name.

    Raises:
        RecipeError: there is neither.
    """
    path = Path(reference)
    if path.is_file():
        return path
    shipped = paths()
    name = path.name.removesuffix(".toml")
    if name in shipped and path.parent.name in ("", "recipes"):
        return shipped[name]
    close = difflib.get_close_matches(name, shipped, n=1, cutoff=0.4)
    raise RecipeError(
        f"{reference}: no such recipe",
        expected="the path of a TOML file, or a shipped recipe: " + ", ".join(shipped),
        found="a folder" if path.is_dir() else "nothing there",
        remedy=f"did you mean {close[0]}?" if close else "erl recipes lists the shipped ones",
    )
