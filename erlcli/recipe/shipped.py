"""The recipes that come with the tool. Free of pydantic and torch, so that listing them is instant."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from erlcli.errors import RecipeError
from erlcli.recipe.tables import parse, read_text
from erlcli.recipe.words import printable, shorten, wrap

_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """Where they are: inside an installed package, or beside it in a source checkout."""
    installed = _PACKAGE / "recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


TOURNAMENTS = ("tournament_", "generational_")  # how names of tournaments' recipes begin


def paths() -> dict[str, Path]:
    """Name to path, sorted by name; those of single runs."""
    return {path.stem: path for path in sorted(folder().glob("*.toml")) if not path.name.startswith(TOURNAMENTS)}


def tournaments() -> dict[str, Path]:
    """Name to path, sorted by name; those of tournaments."""
    return {path.stem: path for path in sorted(folder().glob("*.toml")) if path.name.startswith(TOURNAMENTS)}


@dataclass(frozen=True)
class Summary:
    """A shipped recipe in one row.

    Attributes:
        name: what `erl train` takes, or `erl tournament`.
        title: the first comment of the file.
        env: id of the task.
        algorithm: name of the algorithm.
        target_return: mean return that ends the run; None for none.
        total_steps: budget in env transitions.
        path: of the file.
        mode: of a tournament; None for a single run.
    """

    name: str
    title: str
    env: str
    algorithm: str
    target_return: float | None
    total_steps: int
    path: str
    mode: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


def summaries() -> list[Summary]:
    """A row for each shipped recipe: those of single runs, then those of tournaments, each sorted by name.

    Raises:
        RecipeError: none came with this installation.
    """
    rows = []
    for name, path in (paths() | tournaments()).items():
        text = read_text(path)
        data = parse(text, str(path))
        train, env, algorithm = data["train"], data["env"], data["algorithm"]
        rows.append(
            Summary(
                name,
                title(text),
                env["id"],
                algorithm["name"],
                train.get("target_return"),
                train["total_steps"],
                str(path),
                data["tournament"]["mode"] if "tournament" in data else None,
            )
        )
    if not rows:
        raise RecipeError(
            f"{folder()}: no shipped recipes", expected="TOML files", found="none", remedy="install erlcli again"
        )
    return rows


def title(text: str) -> str:
    """The first line of a recipe's header comment; empty where it has none."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#:")), "")
    return first.lstrip("# ") if first.startswith("#") else ""


def find(reference: str | Path) -> Path:
    """The file that `reference` means: an existing path, else a shipped recipe of that name.

    Raises:
        RecipeError: there is neither.
    """
    path = Path(reference)
    try:
        if path.is_file():
            return path
        kind = "a folder" if path.is_dir() else "not a plain file" if path.exists() else "nothing there"
    except (OSError, ValueError) as error:  # a name too long, or a folder that may not be entered
        kind = getattr(error, "strerror", None) or str(error)
    known = paths() | tournaments()
    name = path.name.removesuffix(".toml")
    if name in known and path.parent in (Path("."), Path("recipes")):
        return known[name]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    remedy = f"did you mean {close[0]}?" if close else "erl recipes lists the shipped ones"
    if kind == "a folder" and (path / "recipe.toml").is_file():
        remedy = f"that is a run: erl resume {shlex.quote(str(path))}, or {path / 'recipe.toml'} for its recipe"
    shown = shorten(printable(str(reference)), 200) if str(reference) else "no name"
    raise RecipeError(
        f"{shown}: no such recipe",
        expected=wrap("the path of a TOML file, or a shipped recipe: " + ", ".join(known)),
        found=kind.lower(),
        remedy=remedy,
    )
