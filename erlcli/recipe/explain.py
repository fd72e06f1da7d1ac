"""A failed validation in the words of a recipe: the key, what it takes, what was there, what to do.

Pydantic says where something is wrong and whether a key is unknown or missing; everything that is printed comes from
the JSON Schema of the recipe and from the raw tables, so that neither its jargon nor its names of union members show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from erlcli.errors import RecipeError
from erlcli.recipe.json_schema import Node, choices, describe, kinds, schema_of
from erlcli.recipe.words import dotted, found, nearest, quote, shorten, wrap

Path = tuple[int | str, ...]
_CONTAINERS = ("array", "object")
_ORDER = {"unknown": 0, "missing": 1, "value": 2}  # a misspelt key is often why another one is missing
_FREE = "kwargs"  # tables that belong to the env: any key, any number


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: where.
        kind: `unknown`, `missing` or `value`.
        node: the schema of what belongs there; for an unknown key, of the table around it.
        value: what is there.
        reason: what a check of the model itself has to say, if one failed.
    """

    path: Path
    kind: str
    node: Node
    value: Any
    reason: str | None = None


def explain(error: ValidationError, data: dict[str, Any], model: type[BaseModel], source: str) -> RecipeError:
    """The first problem of a failed validation in full, and the keys of the others.

    Args:
        error: what pydantic raised.
        data: the raw tables.
        model: what they were to become.
        source: names the recipe in the message.
    """
    recipe = schema_of(model)
    problems: dict[Path, Problem] = {}
    for row in error.errors(include_url=False):
        problem = _locate(recipe, data, row)
        if problem is not None:
            problems.setdefault(problem.path, problem)
    inner = [p for p in problems.values() if not any(p.path == q[: len(p.path)] for q in problems if q != p.path)]
    first, *others = sorted(inner, key=lambda problem: _ORDER[problem.kind])
    message = _MESSAGES[first.kind](first, recipe, source)
    if others:
        keys = ", ".join(dotted(problem.path) for problem in others[:10])
        message.remedy = f"{message.remedy}\n  {'also:':<10}{wrap(keys + (' ...' if len(others) > 10 else ''))}"
    return message


def _locate(node: Node, value: Any, row: Any) -> Problem | None:  # noqa: ANN401 - any TOML value; pydantic's ErrorDetails
    """Where an error of pydantic belongs; None where it speaks for a union member that was not meant."""
    parts, error_type = row["loc"], row["type"]
    path: Path = ()
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if "anyOf" in node:  # here `part` names a member of the union and no key
            meant = _branch_for(node, value)
            if meant is None:
                break
            if last:
                if error_type.endswith(("_type", "_error")):
                    return None
                break
            node = meant
            continue
        within = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
        if last and error_type == "missing":
            return Problem((*path, part), "missing", within, None)
        try:
            item = value[part]
        except (LookupError, TypeError):
            break  # not in the recipe: a model made a table of a plain value, as a schedule does with a number
        path = (*path, part)
        if last and error_type == "extra_forbidden":
            return Problem(path, "unknown", node, item)
        node, value = within, item
    reason = str(row["ctx"]["error"]) if error_type == "value_error" else None
    return Problem(path, "value", node, value, reason)


def _branch_for(node: Node, value: Any) -> Node | None:  # noqa: ANN401
    """The member of a union that a table or list is meant for; None for plain values, which are judged by all."""
    kind = _kind(value)
    if kind not in _CONTAINERS:
        return None
    return next((branch for branch in node["anyOf"] if kind in kinds(branch)), None)


def _kind(value: Any) -> str:  # noqa: ANN401
    """The JSON type of a TOML value."""
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for python, name in names if isinstance(value, python)), "date")


def _unknown(problem: Problem, recipe: Node, source: str) -> RecipeError:
    return unknown_key(problem.path, list(problem.node.get("properties", {})), recipe, source)


def unknown_key(path: Path, names: list[str], recipe: Node, source: str) -> RecipeError:
    """A key that the table around it does not have."""
    name = str(path[-1])
    close = nearest(name, names)
    places = list(_places(recipe, name))
    if len(places) == 1 and (close is None or len(places[0]) == 1 or close != name):
        *section, _ = places[0]
        remedy = f"put it under [{section[0]}]" if section else f"it is a section of its own: [{name}]"
    elif close is not None:
        remedy = f"did you mean {close}?"
    else:
        remedy = "remove it, or take one of those"
    return RecipeError(
        f"{source}: {dotted(path)}: unknown key",
        expected=wrap(", ".join(names)),
        found=dotted(path[-1:]),
        remedy=remedy,
    )


def _places(recipe: Node, name: str) -> Iterator[Path]:
    """Where in a recipe a key of this name would be right."""
    for section, node in recipe["properties"].items():
        if section == name:
            yield (section,)
        if name in node.get("properties", {}):
            yield (section, name)


def _missing(problem: Problem, recipe: Node, source: str) -> RecipeError:
    path, node = problem.path, problem.node
    key = dotted(path)
    if len(path) == 1:
        needed = ", ".join(node.get("required", []))
        remedy = f"add [{key}]" + (f" with {needed}" if needed else "")
    elif len(path) == 2:
        remedy = f"add {path[1]} = ... under [{path[0]}], or --set {key}=..."
    else:
        remedy = f"add {path[-1]} = ... to the table at {dotted(path[:-1])}"
    return RecipeError(
        f"{source}: {key}: missing",
        expected=wrap(describe(node) if len(path) > 1 else f"a section [{key}]"),
        found="nothing",
        remedy=wrap(remedy),
    )


def _wrong(problem: Problem, recipe: Node, source: str) -> RecipeError:
    node, value, key = problem.node, problem.value, dotted(problem.path)
    kind, taken = _kind(value), kinds(node)
    if kind not in taken and not (kind == "integer" and "number" in taken):
        what = "wrong type"
    elif kind == "string" and choices(node):
        what = "no such choice"
    elif kind in ("integer", "number") and problem.reason is None:
        what = "out of range"
    else:
        what = "not allowed"
    return RecipeError(
        f"{source}: {key}: {what}",
        expected=wrap(problem.reason or (describe(node) if len(problem.path) > 1 else f"a section [{key}]")),
        found=found(value),
        remedy=wrap(_remedy(node, value) or _meaning(key, node)),
    )


def _meaning(key: str, node: Node) -> str:
    description = node.get("description")
    return f"change it; {key} is: {description}" if description else f"change {key}"


def _remedy(node: Node, value: Any) -> str | None:  # noqa: ANN401
    """What to write instead, where the value itself shows what was meant."""
    taken = kinds(node)
    if isinstance(value, str):
        plain = value.strip().lower()
        if plain in ("none", "null", "nil", "") and "string" not in taken:
            return "leave the key out: TOML has no null"
        if plain in ("true", "false") and "boolean" in taken:
            return f"write {plain}, in small letters and without quotes"
        if taken & {"integer", "number"} and _is_number(plain):
            return f"write {plain} without quotes"
        close = nearest(value, choices(node))
        if close:
            return f"did you mean {close}?"
    if isinstance(value, float) and value.is_integer() and "integer" in taken and "number" not in taken:
        return f"write {int(value)}" if abs(value) < 2**53 else None
    if "array" in taken and "object" not in taken and not isinstance(value, list):
        return f"put it in brackets: [{shorten(quote(value)) if isinstance(value, str) else '...'}]"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_numbers(data: dict[str, Any], source: str) -> None:
    """Refuse what is a number in TOML but in no field: NaN, infinities, and more than 64 bits.

    Raises:
        RecipeError: there is one.
    """
    for path, value in _numbers(data, ()):
        wide = isinstance(value, int) and not -(2**63) <= value < 2**63
        if wide or value != value or abs(value) == float("inf"):
            if _FREE in path and not wide:
                continue  # the env's own arguments may be infinite
            raise RecipeError(
                f"{source}: {dotted(path)}: {'out of range' if wide else 'not a number'}",
                expected="a number of 64 bits" if wide else "a finite number",
                found=found(value),
                remedy="leave the key out for its default" if not wide else "take a smaller number",
            )


def _numbers(value: Any, path: Path) -> Iterator[tuple[Path, int | float]]:  # noqa: ANN401
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, (*path, index))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


_MESSAGES = {"unknown": _unknown, "missing": _missing, "value": _wrong}
