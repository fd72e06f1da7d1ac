"""A recipe file and overrides to a checked `Recipe`, and back to TOML."""

from __future__ import annotations

import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from erlcli.algorithms import registry
from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.algorithms.config.on_policy import OnPolicyConfig
from erlcli.errors import RecipeError
from erlcli.recipe.explain import check_numbers, explain, unknown_key
from erlcli.recipe.json_schema import schema_of
from erlcli.recipe.schema import Recipe
from erlcli.recipe.shipped import find
from erlcli.recipe.tables import MAX_BYTES, MAX_DEPTH, merge, read_toml
from erlcli.recipe.words import NEXT_LINE, found, inline, nearest, shorten, wrap

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "AnyRecipe",
    "anchored",
    "check_change",
    "dump",
    "load",
    "merge",
    "read_toml",
    "validate",
]

AnyRecipe = Recipe[AlgorithmConfig]


def load(reference: str | Path, overrides: list[str] | None = None) -> AnyRecipe:
    """The recipe of a path or a shipped name.

    A relative `file.py:Class` in the file is meant from the recipe's folder, one in an override from the current
    folder; both become absolute, so that the recipe works from anywhere.

    Args:
        reference: path of a TOML file, or a name that `erl recipes` lists.
        overrides: `dotted.key=TOML value`, applied in order before the checks.

    Raises:
        RecipeError: anything is wrong with it.
    """
    path = find(reference)
    data = anchored(read_toml(path), path.parent)
    if "tournament" in data:
        raise RecipeError(
            f"{reference}: [tournament]: a recipe of a whole population",
            expected="a recipe of one run",
            found="a section [tournament]",
            remedy=f"erl tournament {shlex.quote(str(reference))};{NEXT_LINE}"
            "of one that was run, champion/ and members/ID/ are runs",
        )
    if overrides:
        data = anchored(merge(data, overrides), Path.cwd())
    if "tournament" in data:
        raise RecipeError(
            f"--set tournament...: {reference} is a recipe of one run",
            expected=wrap("keys of " + ", ".join(f"[{name}]" for name in schema_of(AnyRecipe)["properties"])),
            found="a key of [tournament]",
            remedy="leave it out, or take a recipe with a section [tournament]",
        )
    return validate(data, str(reference))


def anchored(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`data` with every relative `file.py:Class` below [env] made absolute; what is malformed stays for the checks.

    Args:
        data: raw tables of a recipe.
        folder: what such paths are relative to.
    """

    def absolute(reference: Any) -> Any:  # noqa: ANN401 - any TOML value
        if not isinstance(reference, str):
            return reference
        file, _, attribute = reference.rpartition(":")
        return f"{(folder / file).resolve()}:{attribute}" if file.endswith(".py") and "\0" not in file else reference

    env = data.get("env")
    if not isinstance(env, dict):
        return data
    env = dict(env)
    if "id" in env:
        env["id"] = absolute(env["id"])
    if isinstance(env.get("wrappers"), list):
        env["wrappers"] = [
            {**w, "path": absolute(w["path"])} if isinstance(w, dict) and "path" in w else absolute(w)
            for w in env["wrappers"]
        ]
    return {**data, "env": env}


def validate(data: dict[str, Any], source: str) -> AnyRecipe:
    """Raw tables to a checked recipe; `source` names them in messages.

    Types are taken strictly: no text for a number, no boolean for an integer, no fraction for an integer.

    Raises:
        RecipeError: an unknown or missing key, a wrong type or value, or values that don't fit each other.
    """
    config = _algorithm_config(data, source)
    model = Recipe[config]  # type: ignore[valid-type]
    check_numbers(data, source)
    try:
        recipe: AnyRecipe = model.model_validate(data, strict=True)
    except ValidationError as error:
        raise explain(error, data, model, source) from None
    _check_together(recipe, source)
    return recipe


def _algorithm_config(data: dict[str, Any], source: str) -> type[AlgorithmConfig]:
    section = data.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if isinstance(name, str) and (model := registry.config_of(name)) is not None:
        return model
    known = registry.configs()
    if section is None:
        recipe = schema_of(AnyRecipe)
        for key in data:
            if key not in recipe["properties"]:  # perhaps [algorithm] is there, misspelt
                raise unknown_key((key,), list(recipe["properties"]), recipe, source)
    example = 'add name = "ppo" under [algorithm]'
    if section is not None and not isinstance(section, dict):
        key, what, value, expected = "algorithm", "wrong type", found(section), "a section [algorithm]"
        remedy = example
    else:
        key = "algorithm" if section is None else "algorithm.name"
        expected = ("a section [algorithm] with name = " if section is None else "") + ", ".join(known)
        value = "nothing" if name is None else found(name)
        what = "missing" if name is None else "no such algorithm" if isinstance(name, str) else "wrong type"
        close = nearest(name, known) if isinstance(name, str) else None
        remedy = f"did you mean {close}?" if close else example if name is None else "take one of those"
    raise RecipeError(f"{source}: {key}: {what}", expected=wrap(expected), found=value, remedy=remedy)


def _check_together(recipe: AnyRecipe, source: str) -> None:
    """Conditions that span sections."""
    for field, (expected, remedy) in recipe.algorithm.problems(recipe.env.num_envs).items():
        value = found(attrgetter(field)(recipe.algorithm))
        raise _misfit(source, f"algorithm.{field}", "does not fit the rest of the recipe", expected, value, remedy)
    total, rollout = recipe.train.total_steps, recipe.steps_per_rollout
    if total < rollout:
        raise _misfit(
            source,
            "train.total_steps",
            "smaller than one rollout",
            f"at least rollout_length * num_envs = {rollout:,}",
            f"{total:,}",
            "raise train.total_steps, or lower algorithm.rollout_length or env.num_envs",
        )
    if recipe.network.recurrent is not None and not recipe.algorithm.remembers:
        able = [name for name, config in registry.configs().items() if config.remembers]
        raise _misfit(
            source,
            "network.recurrent",
            f"{recipe.algorithm.name} can't learn with a memory",
            f"nothing, or one of the algorithms {', '.join(able)}",
            f'"{recipe.network.recurrent}"',
            "leave network.recurrent out, or take another algorithm.name; env.frame_stack may do instead",
        )
    algorithm = recipe.algorithm
    if isinstance(algorithm, OnPolicyConfig) and algorithm.sequence_length and recipe.network.recurrent is None:
        raise _misfit(
            source,
            "algorithm.sequence_length",
            "there is no memory",
            "nothing where network.recurrent is unset",
            f"{algorithm.sequence_length}",
            'leave algorithm.sequence_length out, or set network.recurrent = "lstm"',
        )
    _check_learners(recipe, source)
    workers, lag = recipe.engine.workers, recipe.engine.lag
    if workers and recipe.envs_per_learner % workers:
        each = " / engine.learners" if recipe.engine.learners > 1 else ""
        raise _misfit(
            source,
            "engine.workers",
            "envs can't be shared equally",
            f"a divisor of env.num_envs{each} = {recipe.envs_per_learner}",
            f"{workers}",
            f"set env.num_envs to a multiple of {workers * recipe.engine.learners}",
        )
    if lag and not workers:
        raise _misfit(
            source,
            "engine.lag",
            "nothing to overlap with",
            "engine.workers >= 1 where engine.lag = 1",
            "engine.workers = 0",
            "set engine.workers, or engine.lag = 0",
        )
    episodes, probe = recipe.eval.episodes, recipe.eval.probe_episodes
    if probe > episodes:
        raise _misfit(
            source,
            "eval.probe_episodes",
            "more than eval.episodes",
            f"at most {episodes}",
            f"{probe}",
            "lower eval.probe_episodes, or raise eval.episodes",
        )


def _check_learners(recipe: AnyRecipe, source: str) -> None:
    """What several learners need."""
    learners, key = recipe.engine.learners, "engine.learners"
    if learners == 1:
        return
    if not recipe.algorithm.distributes:
        able = [name for name, config in registry.configs().items() if config.distributes]
        raise _misfit(
            source,
            key,
            f"{recipe.algorithm.name} has one learner",
            f"1, or one of the algorithms {', '.join(able)}",
            f"{learners}",
            "leave engine.learners out: what an algorithm keeps of earlier rollouts is not shared among learners",
        )
    h_term = getattr(recipe.algorithm, "h_term", None)
    for other, there in {
        "network.recurrent": recipe.network.recurrent is not None,
        "algorithm.h_term": h_term is not None and h_term.enabled,
    }.items():
        if there:
            raise _misfit(source, key, f"not with {other}", "1", f"{learners}", f"leave {key} or {other} out")
    if recipe.env.num_envs % learners:
        raise _misfit(
            source,
            key,
            "envs can't be shared equally",
            f"a divisor of env.num_envs = {recipe.env.num_envs}",
            f"{learners}",
            f"set env.num_envs to a multiple of {learners}",
        )


def _misfit(source: str, key: str, what: str, expected: str, value: str, remedy: str) -> RecipeError:
    return RecipeError(f"{source}: {key}: {what}", expected=wrap(expected), found=value, remedy=wrap(remedy))


def check_change(before: AnyRecipe, after: AnyRecipe, command: str) -> None:
    """Refuse a change of what checkpoints are made for.

    Args:
        before: as a run was trained so far.
        after: as it is to go on.
        command: that starts another run, for the remedy.

    Raises:
        RecipeError: with the first key.
    """
    for section in ("env", "algorithm", "network", "normalize"):
        one, another = getattr(before, section), getattr(after, section)
        for key in one.fixed:
            if getattr(one, key) != getattr(another, key, None):
                old, new = (side.model_dump(include={key}, exclude_none=True).get(key) for side in (one, another))
                raise RecipeError(
                    f"--set {section}.{key}: can't change any more",
                    expected=wrap(f"{_toml(old)}, which its checkpoints are made for"),
                    found=wrap(_toml(new)),
                    remedy=f"{command} --set {section}.{key}=... starts a new run",
                )


def _toml(value: Any) -> str:  # noqa: ANN401 - any TOML value
    return "unset" if value is None else shorten(inline(value))


def dump(recipe: AnyRecipe) -> str:
    """The recipe as TOML text that `load` reads back to an equal recipe."""
    return tomli_w.dumps(recipe.to_toml())
