"""TOML text and overrides to a checked `Recipe`; every problem as a `RecipeError` with file, key and remedy."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from pydantic import BaseModel, ValidationError

from erlcli.algorithms import registry
from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.errors import RecipeError
from erlcli.recipe.schema import Recipe
from erlcli.recipe.shipped import find

AnyRecipe = Recipe[AlgorithmConfig]
MAX_BYTES = 1 << 20  # a recipe is a page of text; anything larger is a mistake or an attack
MAX_DEPTH = 16  # brackets within brackets; tomli recurses


def load(reference: str | Path, overrides: list[str] | None = None) -> AnyRecipe:
    """The recipe of a path or a shipped name.

    Args:
        reference: path of a TOML file, or a name that `erl recipes` lists.
        overrides: `dotted.key=TOML value`, applied in order before the checks.

    Raises:
        RecipeError: anything is wrong with it.
    """
    path = find(reference)
    recipe = validate(merge(read_toml(path), overrides or []), str(path))
    return _anchor(recipe, path.parent)


def read_toml(path: Path) -> dict[str, Any]:
    """The raw tables of a TOML file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}", remedy="give the path of a recipe") from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(
            f"{path}: too large for a recipe", expected=f"at most {MAX_BYTES:,} bytes", found=f"{len(raw):,}"
        )
    try:
        return _parse(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        raise RecipeError(
            f"{path}: not a TOML file",
            expected="key = value lines under [section] headers",
            found=str(error),
            remedy="erl recipes show cartpole_ppo prints one to start from",
        ) from None


def _parse(text: str) -> dict[str, Any]:
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth = max(depth - 1, 0)
    longest_key = max((line.split("=")[0].count(".") for line in text.splitlines()), default=0)
    if max(deepest, longest_key) > MAX_DEPTH:
        raise tomli.TOMLDecodeError(f"tables nested more than {MAX_DEPTH} deep", text, 0)
    return tomli.loads(text)


def merge(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`data` with `dotted.key=TOML value` entries set; the originals stay as they are."""
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
            raise RecipeError(
                f"--set {override}: not an assignment",
                expected="dotted.key=value, e.g. algorithm.learning_rate=1e-4",
                found=override,
            )
        data = _assign(data, key.split("."), _override_value(key, value.strip()), override)
    return data


def _override_value(key: str, text: str) -> Any:  # noqa: ANN401 - any TOML value
    try:
        return _parse(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        pass
    if re.fullmatch(r"[A-Za-z_./:][\w./:-]*", text):  # a shell has eaten the quotes of a plain word
        return text
    raise RecipeError(
        f"--set {key}: not a TOML value",
        expected="a number, true, false, a quoted string, a [list] or a {table}",
        found=text,
        remedy=f"quote strings twice: --set '{key}=\"text\"'",
    )


def _assign(data: dict[str, Any], path: list[str], value: Any, override: str) -> dict[str, Any]:  # noqa: ANN401
    head, *rest = path
    if not rest:
        return {**data, head: value}
    inner = data.get(head, {})
    if not isinstance(inner, dict):
        raise RecipeError(f"--set {override}: {head} is not a table", found=repr(inner))
    return {**data, head: _assign(inner, rest, value, override)}


def validate(data: dict[str, Any], source: str) -> AnyRecipe:
    """Raw tables to a checked recipe; `source` names them in messages."""
    config = _algorithm_config(data, source)
    model = Recipe[config]  # type: ignore[valid-type]
    try:
        recipe: AnyRecipe = model.model_validate(data)
    except ValidationError as error:
        raise _explain(error, data, model, source) from None
    _check_together(recipe, source)
    return recipe


def _algorithm_config(data: dict[str, Any], source: str) -> type[AlgorithmConfig]:
    known = registry.configs()
    section = data.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if isinstance(name, str) and name in known:
        return known[name]
    raise RecipeError(
        f"{source}: algorithm.name: " + ("missing" if name is None else "no such algorithm"),
        expected=", ".join(known),
        found="nothing" if name is None else repr(name),
        remedy=_nearest(str(name), list(known)) if name is not None else 'add name = "ppo" under [algorithm]',
    )


def _explain(error: ValidationError, data: dict[str, Any], model: type[BaseModel], source: str) -> RecipeError:
    """The first problem in the words of a recipe."""
    problems = error.errors(include_url=False)
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location = [str(part) for part in first["loc"] if not _is_union_tag(part)]
    key = ".".join(location)
    more = f"\n  ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        names = _keys_at(model, location[:-1])
        return RecipeError(
            f"{source}: {key}: unknown key",
            expected=", ".join(names),
            found=location[-1],
            remedy=_nearest(location[-1], names) + more,
        )
    if first["type"] == "missing":
        return RecipeError(
            f"{source}: {key}: missing",
            expected=_describe(model, location) or "a value",
            found="nothing",
            remedy=f"add it to the recipe, or give --set {key}=VALUE" + more,
        )
    message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    choices = first.get("ctx", {}).get("expected")
    found = first["input"]
    remedy = None
    if isinstance(found, str) and isinstance(choices, str):
        remedy = _nearest(found, re.findall(r"'([^']+)'", choices))
    return RecipeError(
        f"{source}: {key}: {'wrong type' if first['type'].endswith(('_type', '_parsing')) else 'not allowed'}",
        expected=message,
        found=f"{found!r} ({type(found).__name__})",
        remedy=(remedy or _describe(model, location) or f"see `erl recipes schema` for {key}") + more,
    )


def _is_union_tag(part: int | str) -> bool:
    """Pydantic puts the names of union members into locations; recipe keys never look like these."""
    return isinstance(part, str) and (part in ("int", "str", "float", "WrapperSpec") or "[" in part)


def _field_at(model: type[BaseModel], path: list[str]) -> Any:  # noqa: ANN401 - pydantic's FieldInfo or None
    field = None
    current: Any = model
    for part in path:
        fields = getattr(current, "model_fields", {})
        field = fields.get(part)
        if field is None:
            return None
        current = field.annotation
    return field


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    if not path:
        return list(model.model_fields)
    field = _field_at(model, path)
    return list(getattr(getattr(field, "annotation", None), "model_fields", {}))


def _describe(model: type[BaseModel], path: list[str]) -> str | None:
    field = _field_at(model, path)
    return None if field is None else field.description


def _nearest(name: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "remove it, or take one of those"


def _check_together(recipe: AnyRecipe, source: str) -> None:
    """Conditions that span sections."""
    for field, (expected, remedy) in recipe.algorithm.problems(recipe.env.num_envs).items():
        raise RecipeError(
            f"{source}: algorithm.{field}: does not fit the rest of the recipe",
            expected=expected,
            found=str(getattr(recipe.algorithm, field)),
            remedy=remedy,
        )
    if recipe.train.total_steps < recipe.steps_per_rollout:
        raise RecipeError(
            f"{source}: train.total_steps: smaller than one rollout",
            expected=f"at least rollout_length * num_envs = {recipe.steps_per_rollout}",
            found=str(recipe.train.total_steps),
            remedy="raise train.total_steps, or lower algorithm.rollout_length or env.num_envs",
        )
    workers = recipe.engine.workers
    if workers and recipe.env.num_envs % workers:
        raise RecipeError(
            f"{source}: engine.workers: envs can't be shared equally",
            expected=f"a divisor of env.num_envs = {recipe.env.num_envs}",
            found=str(workers),
            remedy=f"set env.num_envs to a multiple of {workers}",
        )
    if recipe.engine.lag and not workers:
        raise RecipeError(
            f"{source}: engine.lag: nothing to overlap with",
            expected="engine.workers >= 1 where engine.lag = 1",
            found="engine.workers = 0",
            remedy="set engine.workers, or engine.lag = 0",
        )
    if recipe.eval.probe_episodes > recipe.eval.episodes:
        raise RecipeError(
            f"{source}: eval.probe_episodes: more than eval.episodes",
            expected=f"at most {recipe.eval.episodes}",
            found=str(recipe.eval.probe_episodes),
            remedy="lower eval.probe_episodes",
        )


def _anchor(recipe: AnyRecipe, folder: Path) -> AnyRecipe:
    """`./file.py:Class` made absolute, so that the recipe works from anywhere."""

    def absolute(reference: str) -> str:
        file, colon, attribute = reference.rpartition(":")
        if colon and file.endswith(".py"):
            return f"{(folder / file).resolve()}:{attribute}"
        return reference

    env = recipe.env
    wrappers = [
        absolute(w) if isinstance(w, str) else w.model_copy(update={"path": absolute(w.path)}) for w in env.wrappers
    ]
    return recipe.model_copy(update={"env": env.model_copy(update={"id": absolute(env.id), "wrappers": wrappers})})


def dump(recipe: AnyRecipe) -> str:
    """The recipe as TOML text that `load` reads back to an equal recipe."""
    return tomli_w.dumps(recipe.to_toml())
