"""Recipes as JSON Schema (2020-12): for editors, for error messages, and for the comments of a starter recipe.

References are inlined: sections are small, every field keeps its own description, and readers need no resolver.
TOML has no null, so what is optional is left out of a recipe instead: `null` appears nowhere.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from erlcli.algorithms import registry
from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.core.schedule import Schedule
from erlcli.recipe.schema import Recipe

Node = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401 - a pydantic-core schema
        """A title that repeats the key is noise in an editor."""
        return False


@cache
def schema_of(model: type[BaseModel]) -> Node:
    """The JSON Schema of a section or of a whole recipe, without references. Not to be changed by callers."""
    raw = model.model_json_schema(schema_generator=_Generator)
    definitions = raw.pop("$defs", {})
    plain: Node = _plain(raw, definitions)
    return plain


def recipe_schema() -> Node:
    """The JSON Schema of a recipe with any of the registered algorithms, of one run or of a whole tournament."""
    from erlcli.recipe.tournament import SECTION, TournamentSection  # which explains its errors by schemas

    recipe = schema_of(Recipe[AlgorithmConfig])
    by_config: dict[type[AlgorithmConfig], None] = dict.fromkeys(registry.configs().values())
    sections = [{**schema_of(config), "required": _required(config)} for config in by_config]
    algorithm = {
        "description": recipe["properties"]["algorithm"]["description"],
        "type": "object",
        "properties": {"name": {"type": "string", "enum": list(registry.configs()), "description": "Which one."}},
        "required": ["name"],
        "oneOf": sections,
    }
    return {
        "$schema": DIALECT,
        "title": "erl recipe",
        "description": "What `erl train` trains, or with [tournament] `erl tournament`, as TOML.",
        **{key: value for key, value in recipe.items() if key != "description"},
        "properties": {**recipe["properties"], "algorithm": algorithm, SECTION: schema_of(TournamentSection)},
    }


def _required(config: type[AlgorithmConfig]) -> list[str]:
    """The keys that a recipe has to give; the name picks the algorithm, so it always does."""
    required: list[str] = schema_of(config).get("required", [])
    return ["name", *(key for key in required if key != "name")]


def _plain(node: Any, definitions: dict[str, Node]) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return {**_definition(name, definitions), **_plain(siblings, definitions)}
    plain: Node = {}
    for key, value in node.items():
        if key == "title" or (key == "default" and value is None):
            continue
        if key == "properties":  # names of fields, which may be called like a keyword of JSON Schema
            plain[key] = {name: _plain(field, definitions) for name, field in value.items()}
        elif key in ("default", "examples", "const", "enum"):
            plain[key] = value
        elif key == "description":
            plain[key] = " ".join(value.split())
        else:
            plain[key] = _plain(value, definitions)
    return _without_null(plain)


def _definition(name: str, definitions: dict[str, Node]) -> Node:
    """A model. One that takes a plain value too, as a schedule takes a number, becomes one node with both types.

    So `anyOf` is left to the unions of fields. Keywords of one type leave values of another type alone.
    """
    node: Node = _plain(definitions[name], definitions)
    branches = node.get("anyOf", [node])
    if name == Schedule.__name__ and branches == [node]:
        branches = [{"type": "number", "minimum": 0}, node]
    merged: Node = {}
    for branch in branches:
        merged |= branch
    return {**merged, "type": [branch["type"] for branch in branches]} if len(branches) > 1 else merged


def _without_null(node: Node) -> Node:
    branches = node.get("anyOf")
    if branches is None:
        return node
    left = [branch for branch in branches if branch != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**left[0], **rest} if len(left) == 1 else {**rest, "anyOf": left}


def kinds(node: Node) -> set[str]:
    """The JSON types that a node takes; all of them where it says nothing."""
    if "anyOf" in node:
        return set().union(*(kinds(branch) for branch in node["anyOf"]))
    named = node.get("type", ["string", "integer", "number", "boolean", "array", "object"])
    return {named} if isinstance(named, str) else set(named)


def choices(node: Node) -> list[str]:
    """The texts that a node takes, where it takes only certain ones."""
    if "anyOf" in node:
        return [text for branch in node["anyOf"] for text in choices(branch)]
    values = [node["const"]] if "const" in node else node.get("enum", [])
    return [value for value in values if isinstance(value, str)]


def describe(node: Node) -> str:
    """What a node takes, in the words of an error message: `a whole number >= 1, or "auto"`."""
    if "anyOf" in node:
        return ", or ".join(describe(branch) for branch in node["anyOf"])
    texts = choices(node)
    if texts:
        quoted = [f'"{text}"' for text in texts]
        return quoted[0] if len(quoted) == 1 else "one of " + ", ".join(quoted)
    named = node.get("type", "a value")
    return ", or ".join(_describe_type(node, name) for name in ([named] if isinstance(named, str) else named))


def _describe_type(node: Node, name: str) -> str:
    if name in ("integer", "number"):
        noun = "a whole number" if name == "integer" else "a number"
        limits = bounds(node)
        return f"{noun} {limits}" if limits else noun
    if name == "string":
        if "examples" in node:
            return "text like " + ", ".join(f'"{example}"' for example in node["examples"])
        return "text that is not empty" if node.get("minLength") else "text"
    if name == "array":
        least, most = node.get("minItems", 0), node.get("maxItems")
        size = f" of {least} to {most}" if most is not None else f" of at least {least}" if least else ""
        return f"a list{size}, each {describe(node['items'])}" if node.get("items") else f"a list{size}"
    if name == "object":
        keys = ", ".join(node.get("properties", {}))
        return f"a table with {keys}" if keys else "a table"
    return {"boolean": "true or false"}.get(name, name)


def bounds(node: Node) -> str:
    """The range of a number, as in `from 0 to 1` or `> 0`; empty where there is none."""
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"from {_number(low)} to {_number(high)}"
    parts = [("> ", above), (">= ", low), ("< ", below), ("<= ", high)]
    return " and ".join(f"{sign}{_number(limit)}" for sign, limit in parts if limit is not None)


def _number(value: float) -> str:
    if value == 2**63:
        return "2^63"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
