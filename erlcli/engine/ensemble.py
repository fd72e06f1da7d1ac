"""Policies of several runs, or of several checkpoints, loaded as one policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from erlcli.core.policy_ensemble import Rule, ensemble_of
from erlcli.core.types import Box
from erlcli.engine.load_policy import LoadedPolicy
from erlcli.engine.spaces import difference
from erlcli.errors import RecipeError

CHECKPOINT = "ensemble"  # what `facts["checkpoint"]` says


def combine(loaded: Sequence[LoadedPolicy], rule: Rule) -> LoadedPolicy:
    """One policy of several.

    It has the env, the target and the source of the first; its facts have `ensemble`, the rule, and `members`, a list
    of `name`, `algorithm`, `checkpoint`, `checkpoint_path` and `steps` (None where unknown).

    Args:
        loaded: at least one.
        rule: how they decide; see `core.policy_ensemble`.

    Raises:
        RecipeError: their spaces differ, one has a memory or needs masks, or nobody can vote on continuous actions.
    """
    first = loaded[0]
    for one in loaded:
        check_spaces(first, one)
        if not one.policy.plain:
            raise RecipeError(
                f"--ensemble: {name_of(one)} acts on more than an observation",
                expected="policies without a memory and without masks of legal actions",
                found="a memory" if one.policy.state_size else "masks",
                remedy="leave it out of the ensemble",
            )
    if rule == "vote" and isinstance(first.spec.action, Box):
        raise RecipeError(
            "--ensemble vote: there is nothing to vote on",
            expected="discrete actions",
            found=f"continuous ones, of {first.spec.action.size} dimensions",
            remedy="--ensemble mean averages the actions",
        )
    policy = ensemble_of([one.policy for one in loaded], first.spec.action, rule, _same_unit(loaded))
    facts: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "steps": None,
        "ensemble": rule,
        "members": [describe(one) for one in loaded],
    }
    return LoadedPolicy(policy.eval(), first.spec, first.recipe, first.source, facts)


def describe(loaded: LoadedPolicy) -> dict[str, Any]:
    """A member as JSON."""
    return {
        "name": name_of(loaded),
        "algorithm": loaded.recipe.algorithm.name,
        "checkpoint": loaded.facts["checkpoint"],
        "checkpoint_path": str(loaded.source),
        "steps": loaded.facts["steps"],
    }


def name_of(loaded: LoadedPolicy) -> str:
    """Of the run: the folder above checkpoints, snapshots or held ones."""
    return loaded.source.parent.parent.resolve().name


def algorithms_of(loaded: LoadedPolicy) -> str:
    """Name of the algorithm, or those of the members, each once."""
    members = loaded.facts.get("members")
    if not members:
        return loaded.recipe.algorithm.name
    return "+".join(dict.fromkeys(str(member["algorithm"]) for member in members))


def check_spaces(first: LoadedPolicy, other: LoadedPolicy) -> None:
    """Refuse two policies that can't act in the same environment.

    Raises:
        RecipeError: their spaces differ.
    """
    if (found := difference(first.spec, other.spec)) is not None:
        raise RecipeError(
            f"{other.source}: another {found.what} space than {first.source}",
            expected=found.one,
            found=found.another,
            remedy="members of an ensemble act in one environment: name policies of the same one",
        )


def _same_unit(loaded: Sequence[LoadedPolicy]) -> bool:
    """Whether Q values of the members mean the same: discounted alike, of the same rewards in the same scale.

    Rewards that are normalised have a scale of their own in every run. What else of `[env]` may change rewards has to
    be the same in all of them: arguments, wrappers, and an Atari game's clipping, frame skip and lives.
    """
    units = set()
    for one in loaded:
        algorithm = one.recipe.algorithm.model_dump()
        env = one.recipe.env.model_dump(mode="json", include={"id", "kwargs", "wrappers", "atari"})
        units.add(json.dumps([env, algorithm.get("gamma"), algorithm.get("reward_scale", 1.0)], sort_keys=True))
    return len(units) == 1 and not any(one.recipe.normalize.reward for one in loaded)
