"""The models and their JSON Schema: described, bounded, closed, and of one opinion on what is a recipe."""

import json
import re
import types
import typing

import pytest
import tomli
from pydantic import ValidationError

from erlcli.algorithms import registry
from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.errors import RecipeError
from erlcli.recipe import shipped
from erlcli.recipe.json_schema import DIALECT, bounds, choices, describe, kinds, recipe_schema, schema_of
from erlcli.recipe.load import validate
from erlcli.recipe.schema import Recipe, Section

SECTIONS = {
    name: field.annotation for name, field in Recipe[AlgorithmConfig].model_fields.items() if name != "algorithm"
}
MODELS = {**SECTIONS, **{f"algorithm {name}": config for name, config in registry.configs().items()}}
FIELDS = [(name, key) for name, model in MODELS.items() for key in model.model_fields]
MINIMAL = {"train": {"total_steps": 10**6}, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}}


def nodes(node, path=""):
    """Every schema within a schema, with its path."""
    yield path, node
    for key in ("properties",):
        for name, field in node.get(key, {}).items():
            yield from nodes(field, f"{path}.{name}")
    for key in ("anyOf", "oneOf"):
        for index, branch in enumerate(node.get(key, [])):
            yield from nodes(branch, f"{path}|{index}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


# ---- the models


@pytest.mark.parametrize("name", MODELS)
def test_models_are_frozen_closed_and_described(name):
    model = MODELS[name]
    assert model.model_config["extra"] == "forbid"
    assert model.model_config["frozen"] is True
    assert model.__doc__
    values = {"total_steps": 1} if name == "train" else {"id": "a"} if name == "env" else {}
    made = model(**values)
    with pytest.raises(ValidationError):
        setattr(made, next(iter(model.model_fields)), None)


@pytest.mark.parametrize(("name", "key"), FIELDS, ids=[f"{name}.{key}" for name, key in FIELDS])
def test_fields_are_described_and_bounded(name, key):
    field = MODELS[name].model_fields[key]
    node = schema_of(MODELS[name])["properties"][key]
    description = field.description
    assert description
    assert description.endswith((".", "`"))
    assert kinds(node) <= {"string", "integer", "number", "boolean", "array", "object"}
    if key in ("target_return",):  # the one number that may be any
        return
    if kinds(node) & {"integer", "number"}:
        assert any(bounds(branch) for branch in node.get("anyOf", [node])), "a number without a range"
    if kinds(node) == {"string"}:
        assert choices(node) or "pattern" in node, "a text without choices or a pattern"


@pytest.mark.parametrize(("name", "key"), FIELDS, ids=[f"{name}.{key}" for name, key in FIELDS])
def test_none_is_a_default_or_nothing(name, key):
    """TOML has no null: a None that is not the default could neither be written nor survive dump and load."""
    field = MODELS[name].model_fields[key]
    union = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
    if union and types.NoneType in typing.get_args(field.annotation):
        assert field.default is None


@pytest.mark.parametrize("name", registry.configs())
def test_the_defaults_of_every_algorithm_make_a_recipe(name):
    """Strictly, so a default of another type than its field (a tuple, an int in quotes) would show."""
    recipe = validate({**MINIMAL, "algorithm": {"name": name}}, "minimal")
    assert recipe.algorithm.name == name
    assert validate(recipe.to_toml(), "dumped") == recipe


def test_sections_refuse_nan_outside_of_files_too():
    with pytest.raises(ValidationError):
        SECTIONS["engine"](hang_seconds=float("nan"))


def test_mutable_defaults_are_not_shared():
    first, second = SECTIONS["network"](), SECTIONS["network"]()
    first.hidden.append(1)
    assert second.hidden == [64, 64]
    assert SECTIONS["env"](id="a").kwargs is not SECTIONS["env"](id="a").kwargs


def test_steps_per_rollout():
    recipe = validate(
        {**MINIMAL, "env": {"id": "a", "num_envs": 4}, "algorithm": {"name": "ppo", "rollout_length": 100}}, "x"
    )
    assert recipe.steps_per_rollout == 400


# ---- the JSON Schema

KEYWORDS = {
    "$schema",
    "title",
    "description",
    "default",
    "examples",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "anyOf",
    "oneOf",
    "const",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
}
PYTHON = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def accepts(node, value):
    """JSON Schema for the keywords above, after the specification's own wording."""
    if "anyOf" in node and not any(accepts(branch, value) for branch in node["anyOf"]):
        return False
    if "oneOf" in node and sum(accepts(branch, value) for branch in node["oneOf"]) != 1:
        return False
    if "const" in node and value != node["const"]:
        return False
    if "enum" in node and value not in node["enum"]:
        return False
    named = node.get("type", list(PYTHON))
    named = [named] if isinstance(named, str) else named
    if isinstance(value, bool):
        return "boolean" in named
    if not any(isinstance(value, PYTHON[name]) for name in named if name != "boolean"):
        return False
    if isinstance(value, str):
        return re.search(node.get("pattern", ""), value) is not None
    if isinstance(value, (int, float)):
        return (
            value >= node.get("minimum", value)
            and value <= node.get("maximum", value)
            and ("exclusiveMinimum" not in node or value > node["exclusiveMinimum"])
            and ("exclusiveMaximum" not in node or value < node["exclusiveMaximum"])
        )
    if isinstance(value, list):
        size = node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value))
        return size and all(accepts(node.get("items", {}), item) for item in value)
    properties = node.get("properties", {})
    closed = node.get("additionalProperties", True) is False
    return (
        all(name in value for name in node.get("required", []))
        and all(accepts(properties[name], item) for name, item in value.items() if name in properties)
        and not (closed and any(name not in properties for name in value))
    )


def test_the_schema_is_self_contained_json_of_the_2020_dialect():
    schema = recipe_schema()
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    assert schema["$schema"] == DIALECT == "https://json-schema.org/draft/2020-12/schema"
    assert "$ref" not in json.dumps(schema)
    assert "$defs" not in schema
    assert set(schema["properties"]) == {*Recipe.model_fields, "tournament"}
    assert schema["required"] == ["train", "env", "algorithm"]


def test_every_keyword_is_used_as_the_dialect_defines_it():
    types_of = {
        "type": (str, list),
        "properties": dict,
        "required": list,
        "additionalProperties": bool,
        "items": dict,
        "anyOf": list,
        "oneOf": list,
        "enum": list,
        "examples": list,
        "description": str,
        "pattern": str,
    }
    for path, node in nodes(recipe_schema()):
        assert set(node) <= KEYWORDS, path
        for keyword, kind in types_of.items():
            if keyword in node:
                assert isinstance(node[keyword], kind), (path, keyword)
        if "enum" in node:
            assert node["enum"], path
        for name in node.get("required", []):
            assert name in node["properties"], path
        if "pattern" in node:
            re.compile(node["pattern"])
        assert "null" not in json.dumps(node.get("type", "")), path


def test_every_table_is_closed_but_for_the_arguments_of_envs():
    opened = set()
    for path, node in nodes(recipe_schema()):
        if "object" in kinds(node) and "anyOf" not in node and node.get("additionalProperties") is not False:
            opened.add(path.rsplit(".", 1)[-1])
    # [algorithm] is closed by each of its alternatives, and the keys of a search space are those of recipes.
    assert opened == {"kwargs", "algorithm", "search"}
    for branch in recipe_schema()["properties"]["algorithm"]["oneOf"]:
        assert branch["additionalProperties"] is False


def test_every_field_has_a_description_and_its_default():
    for section, node in recipe_schema()["properties"].items():
        for branch in node.get("oneOf", [node]):
            for key, field in branch["properties"].items():
                assert field["description"], (section, key)
                if "default" in field:
                    assert accepts(field, field["default"]), (section, key)


def test_every_algorithm_is_an_alternative_under_its_own_name():
    algorithm = recipe_schema()["properties"]["algorithm"]
    names = [choices(branch["properties"]["name"]) for branch in algorithm["oneOf"]]
    assert sorted(name for group in names for name in group) == list(registry.configs())
    assert all("name" in branch["required"] for branch in algorithm["oneOf"])
    assert algorithm["properties"]["name"]["enum"] == list(registry.configs())


@pytest.mark.parametrize("name", shipped.tournaments())
def test_the_schema_takes_every_shipped_tournament(name):
    recipe = tomli.loads(shipped.tournaments()[name].read_text())
    assert accepts(recipe_schema(), recipe)
    assert not accepts(recipe_schema(), {**recipe, "tournament": {**recipe["tournament"], "nosuch": 1}})


@pytest.mark.parametrize("name", shipped.paths())
def test_the_schema_takes_every_shipped_recipe(name):
    assert accepts(recipe_schema(), tomli.loads(shipped.paths()[name].read_text()))


VARIANTS = [
    ("", True),
    ("train.seed = 3", True),
    ("train.seed = -1", False),
    ("train.seed = true", False),
    ("train.seed = '3'", False),
    ("train.total_steps = 0", False),
    ("train.nosuch = 1", False),
    ("train.device = 'cuda:1'", True),
    ("train.device = 'gpu'", False),
    ("env.id = ''", False),
    ("env.kwargs = {anything = [1, {x = 2}]}", True),
    ("env.wrappers = ['a:B', {path = 'a:B', kwargs = {x = 1}}]", True),
    ("env.wrappers = ['a']", False),
    ("env.wrappers = [{path = 'a:B', nosuch = 1}]", False),
    ("env.max_episode_steps = 0", False),
    ("algorithm.learning_rate = 1", True),
    ("algorithm.learning_rate = 1e-3", True),
    ("algorithm.learning_rate = -1e-3", False),
    ("algorithm.learning_rate = {kind = 'linear', start = 1.0, end = 0}", True),
    ("algorithm.learning_rate = {kind = 'linear'}", False),
    ("algorithm.learning_rate = {start = 1.0, strat = 1.0}", False),
    ("algorithm.learning_rate = 'fast'", False),
    ("algorithm.gamma = 2", False),
    ("algorithm.name = 'nosuch'", False),
    ("engine.threads = 2", True),
    ("engine.threads = 'auto'", True),
    ("engine.threads = 'all'", False),
    ("engine.threads = 0", False),
    ("network.hidden = []", True),
    ("network.hidden = [0]", False),
    ("network.activation = 'relu'", True),
    ("network.activation = 'rel'", False),
    ("nosuch.x = 1", False),
]


@pytest.mark.parametrize(("change", "right"), VARIANTS, ids=[change or "nothing" for change, _ in VARIANTS])
def test_schema_and_loader_agree(change, right):
    data = json.loads(json.dumps(MINIMAL))
    for section, values in tomli.loads(change).items():
        data.setdefault(section, {}).update(values)
    assert accepts(recipe_schema(), data) is right
    if right:
        validate(data, "x")
    else:
        with pytest.raises(RecipeError):
            validate(data, "x")


def test_describe_speaks_plainly():
    node = schema_of(Recipe[registry.configs()["ppo"]])["properties"]
    assert describe(node["engine"]["properties"]["threads"]) == 'a whole number >= 1, or "auto"'
    assert describe(node["algorithm"]["properties"]["gamma"]) == "a number from 0 to 1"
    assert describe(node["normalize"]["properties"]["obs"]) == "true or false"
    assert describe(node["algorithm"]["properties"]["clip_value"]) == "a number > 0"
    assert describe(node["algorithm"]["properties"]["clip_range"]) == "a number >= 0, or a table with kind, start, end"
    assert issubclass(SECTIONS["log"], Section)
