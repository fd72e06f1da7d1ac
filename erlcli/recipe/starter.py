"""A commented recipe to start from: every key that there is, with what it means, its range and its default."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erlcli.algorithms import registry
from erlcli.errors import RecipeError
from erlcli.recipe.json_schema import Node, describe, schema_of
from erlcli.recipe.load import anchored, read_toml, validate
from erlcli.recipe.schema import Recipe
from erlcli.recipe.shipped import find
from erlcli.recipe.tournament import SECTION, TournamentSection, check_tournament
from erlcli.recipe.words import inline, key_of, nearest, wrap

SCHEMA_NAME = "recipe.schema.json"
DEFAULTS: dict[str, Any] = {
    "train": {"total_steps": 1_000_000},
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "ppo"},
}
_WIDTH = 80


@dataclass(frozen=True)
class Wish:
    """What a starter recipe is to be about.

    Attributes:
        env: id of the task; None for that of the source.
        algorithm: its name; None for that of the source.
        source: a recipe, of a run or a tournament, whose values are taken over; None for the defaults.
    """

    env: str | None = None
    algorithm: str | None = None
    source: str | None = None


def starter(wish: Wish, folder: Path) -> str:
    """The text of a starter recipe, checked.

    Args:
        wish: what it is about.
        folder: where the file will be, which relative `file.py:Class` references count from.

    Raises:
        RecipeError: no such algorithm or source, or the result would be no recipe.
    """
    values = _values(wish, folder)
    known = registry.configs()
    name = values["algorithm"]["name"]
    if name not in known:
        close = nearest(str(name), known)
        raise RecipeError(
            f"--algorithm {name}: no such algorithm",
            expected=wrap(", ".join(known)),
            found=str(name),
            remedy=f"did you mean {close}?" if close else "take one of those",
        )
    config = known[name]
    _check(anchored(values, folder), "the starter recipe")
    sections = dict(schema_of(Recipe[config])["properties"])  # type: ignore[valid-type]
    if SECTION in values:
        sections[SECTION] = schema_of(TournamentSection)
        tables = [key for key, field in sections[SECTION]["properties"].items() if "properties" in field]
        values[SECTION] = {**{key: {} for key in tables}, **values[SECTION]}  # all of them are always there
    lines = _head(values, (folder / SCHEMA_NAME).is_file())
    for section, node in sections.items():
        purpose = schema_of(config) if section == "algorithm" else node
        lines += ["", *_section(section, node, values.get(section, {}), purpose["description"])]
    return "\n".join(lines) + "\n"


def _check(values: dict[str, Any], source: str) -> None:
    check = check_tournament if SECTION in values else validate
    check(values, source)


def _values(wish: Wish, folder: Path) -> dict[str, Any]:
    """The keys that are set, as raw tables."""
    values = DEFAULTS
    if wish.source is not None:
        path = find(wish.source)
        values = anchored(read_toml(path), path.parent)
        _check(values, wish.source)
    values = {section: dict(table) for section, table in values.items()}
    if wish.env is not None:
        env = anchored({"env": {"id": wish.env}}, Path.cwd())["env"]["id"]
        if env != values["env"]["id"]:  # what was tuned for another task says nothing about this one
            values["env"] = {k: v for k, v in values["env"].items() if k in ("num_envs", "backend")} | {"id": env}
            values["train"].pop("target_return", None)
    if wish.algorithm is not None and wish.algorithm != values["algorithm"].get("name"):
        if SECTION in values:
            raise RecipeError(
                f"--algorithm {wish.algorithm}: {wish.source} searches the keys of another one",
                expected=f"no --algorithm, or that of {wish.source}",
                found=wish.algorithm,
                remedy=f"leave it out, and change [algorithm] and [{SECTION}.search] in the file",
            )
        values["algorithm"] = {"name": wish.algorithm}
    values["env"]["id"] = _relative(values["env"]["id"], folder)
    return values


def _relative(reference: str, folder: Path) -> str:
    """`/path/to/file.py:Class` as seen from `folder`, where it lies in or below it."""
    file, _, attribute = reference.rpartition(":")
    if not file.endswith(".py"):
        return reference
    path = os.path.relpath(file, folder.resolve())
    return reference if path.startswith("..") else f"./{path}:{attribute}"


def _head(values: dict[str, Any], has_schema: bool) -> list[str]:
    lines = [f"#:schema ./{SCHEMA_NAME}"] if has_schema else []
    lines += [f"# {values['env']['id']} with {values['algorithm']['name'].upper()}.", "#"]
    lines += _comment("Every key there is; those with # in front are at their default. Check: erl recipes check FILE")
    if not has_schema:
        lines += _comment(
            f"Editors complete and check the keys after `erl recipes schema --out {SCHEMA_NAME}` in this folder, "
            f"with `#:schema ./{SCHEMA_NAME}` as the first line of this file."
        )
    return lines


def _section(name: str, node: Node, values: dict[str, Any], purpose: str) -> list[str]:
    lines = [*_comment(purpose), f"[{name}]"]
    inner: list[str] = []  # TOML wants tables after the plain keys
    if "properties" not in node:  # any key goes
        lines += [f"{key_of(key)} = {inline(value)}" for key, value in values.items()]
    for key, field in node.get("properties", {}).items():
        description, limits = field.get("description", ""), _range(field)
        if _wants_section(key, field, values):
            inner += ["", *_section(f"{name}.{key}", field, values.get(key, {}), description)]
            continue
        if key in values:
            line = f"{key} = {inline(values[key])}"
        else:
            line = f"# {key} = " + (inline(field["default"]) if "default" in field else "(unset)")
        if limits and len(line) + len(limits) + 4 <= _WIDTH:
            line += f"  # {limits}"
        elif limits:
            description += f" ({limits})"
        lines += [*_comment(description.strip()), line]
    return lines + inner


def _wants_section(key: str, field: Node, values: dict[str, Any]) -> bool:
    """Whether a table gets lines of its own: one that says something by being there, or is too long for one line."""
    if "default" not in field and "properties" in field:
        return key in values
    longest = max(field.get("default", {}), values.get(key, {}), key=lambda value: len(inline(value)))
    return isinstance(longest, dict) and len(inline(longest)) > _WIDTH


def _range(field: Node) -> str:
    words = describe(field)
    return "" if words in ("text", "true or false", "a table") or "examples" in field or "const" in field else words


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
