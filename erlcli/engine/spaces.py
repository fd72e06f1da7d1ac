"""Whether policies, or a run and its environment of today, speak of the same spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from erlcli.core.types import ActionSpace, Box, Discrete, EnvSpec
from erlcli.engine import checkpoint
from erlcli.errors import RecipeError
from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout


@dataclass(frozen=True)
class Difference:
    """The first space that differs.

    Attributes:
        what: `observation` or `action`.
        one: the space of the first, in words.
        another: of the second.
    """

    what: str
    one: str
    another: str


def difference(one: EnvSpec, another: EnvSpec) -> Difference | None:
    """What is not the same; None where a policy for one acts in the other.

    Bounds of observations may differ, as they do between backends of one environment. Those of actions may not: they
    are the unit in which policies speak.
    """
    if _form(one.obs) != _form(another.obs):
        return Difference("observation", _words(one.obs), _words(another.obs))
    a, b = one.action, another.action
    bounds = isinstance(a, Box) and isinstance(b, Box) and (a.low, a.high) != (b.low, b.high)
    if bounds or _form(a) != _form(b):
        return Difference("action", _words(a), _words(b))
    return None


def check_resumed(layout: RunLayout, env_id: str, spec: EnvSpec) -> None:
    """Refuse to go on with a run in other spaces than those that its checkpoints are made for.

    Args:
        layout: of the run; its `spec.json` is as it was when the newest checkpoint was saved.
        env_id: for the message.
        spec: of the environment as it is now.

    Raises:
        RecipeError: they differ.
    """
    if not checkpoint.numbered(layout) or (trained := _trained(layout)) is None:
        return
    if (found := difference(trained, spec)) is not None:
        raise RecipeError(
            f"env.id {env_id}: another {found.what} space than the run's checkpoints are made for",
            expected=found.one,
            found=found.another,
            remedy="env.kwargs and env.wrappers that leave the spaces as they were, or a new run",
        )


def _trained(layout: RunLayout) -> EnvSpec | None:
    """What `spec.json` says, if it can be read; it is written anew then."""
    try:
        return EnvSpec.from_json(read_json(layout.spec) or {})
    except (ValueError, KeyError, TypeError):
        return None


def _form(space: ActionSpace) -> tuple[Any, ...]:
    names = ("shape", "dtype") if isinstance(space, Box) else ("n", "start", "nvec", "shape")
    parts = [(part.name, _form(part.space)) for part in space.parts] if isinstance(space, Box) else []
    return type(space).__name__, *(getattr(space, name, None) for name in names), *parts


def _words(space: ActionSpace) -> str:
    if isinstance(space, Box) and space.parts:
        return ", ".join(f"{part.name} {list(part.space.shape)}" for part in space.parts)
    if isinstance(space, Box):
        low, high = min(space.low, default=0.0), max(space.high, default=0.0)
        return f"Box of shape {list(space.shape)}, {space.dtype}, within [{low:g}, {high:g}]"
    if isinstance(space, Discrete):
        return f"Discrete, {space.n} choices" + (f" from {space.start} on" if space.start else "")
    return f"MultiDiscrete, {list(space.nvec)[:20]} choices"
