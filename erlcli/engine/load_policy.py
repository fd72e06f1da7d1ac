"""A run's policy, ready to act: what evaluation and export start from.

Only the policy is read, never the learner's state; everything is verified before it is used.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from erlcli.core.policy import Policy
from erlcli.core.types import EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.errors import DamagedError, RecipeError
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import quoted

BEST, LAST = "best", "last"
_TRIES = 5  # of reading `best` while a live evaluator moves it on


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy and where it came from.

    Attributes:
        policy: on the CPU, in evaluation mode.
        spec: the environment's spaces; `num_envs` is 1.
        recipe: of the run.
        source: the checkpoint folder or snapshot file that the weights were read from.
        facts: JSON values: `checkpoint` (what was asked for), `steps` (int, or None where the file doesn't say), and
            whatever else was saved beside the weights (`version`, `return_mean`, `seconds` ...).
    """

    policy: Policy
    spec: EnvSpec
    recipe: AnyRecipe
    source: Path
    facts: dict[str, Any]


def load_policy(layout: RunLayout, which: str = BEST) -> LoadedPolicy:
    """Read a policy of a run.

    Args:
        layout: the run.
        which: `best`, `last` (the newest restart point), a number of steps, or the path of a checkpoint folder or of a
            snapshot (`.safetensors`).

    Raises:
        RecipeError: there is no such checkpoint; the message says what there is.
        DamagedError: it is not what its manifest says, can't be read, or does not fit the recipe's policy.
    """
    source, weights, facts = _read(layout, which)
    recipe = load(layout.recipe)
    spec = _spec(layout)
    policy = build.policy(recipe, spec)
    _check(source, policy.state_dict(), weights)
    policy.load_state_dict(weights)
    return LoadedPolicy(policy.eval(), spec, recipe, source, {"checkpoint": which, **facts})


def _read(layout: RunLayout, which: str) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
    """Source, weights and facts of a checkpoint."""
    for attempt in range(_TRIES):
        source = _find(layout, which)
        try:
            return source, *(_read_folder(source) if source.suffix != ".safetensors" else _read_snapshot(source))
        except DamagedError as error:
            # Of a live run, `best` may be replaced, and an old restart point pruned, between the look and the reading.
            if which in (BEST, LAST) and _find(layout, which) != source and attempt + 1 < _TRIES:
                continue
            raise DamagedError(
                error.message, expected=error.expected, found=error.found, remedy=_remedy(layout, source)
            ) from None
    raise AssertionError("unreachable: the last try returns or raises")


def _find(layout: RunLayout, which: str) -> Path:
    """The folder or file that `which` means."""
    if which == BEST:
        link = layout.checkpoints / BEST
        if os.path.lexists(link):
            return link.resolve()
        raise _missing(layout, which, f"{layout.root}: no best policy yet", "one that a full evaluation has crowned")
    if which == LAST:
        folders = checkpoint.numbered(layout)
        if folders:
            return folders[-1]
        raise _missing(layout, which, f"{layout.root}: no checkpoint yet", f"a folder in {layout.checkpoints}")
    if re.fullmatch(r"[0-9][0-9_]*", which):
        name = checkpoint.name_of(int(which))
        for path in (layout.checkpoints / name, layout.checkpoints / f"best-{name}"):
            if path.is_dir():
                return path
        snapshot = layout.snapshots / f"{name}.safetensors"
        if snapshot.is_file():
            return snapshot
        raise _missing(layout, which, f"{layout.root}: no checkpoint at {int(which):,} steps", "steps of a checkpoint")
    return _at_path(layout, which)


def _at_path(layout: RunLayout, which: str) -> Path:
    path = Path(which)
    if path.is_dir():
        if (path / checkpoint.MANIFEST).exists() or (path / checkpoint.POLICY).exists():
            return path.resolve()
        raise _missing(layout, which, f"{path}: not a checkpoint", f"a folder with {checkpoint.MANIFEST}")
    if path.is_file() and path.suffix == ".safetensors":
        # A checkpoint's own policy file is verified like the checkpoint that it is part of.
        inside = path.name == checkpoint.POLICY and (path.parent / checkpoint.MANIFEST).exists()
        return path.parent.resolve() if inside else path.resolve()
    expected = "best, last, a number of steps, or the path of a checkpoint folder or .safetensors snapshot"
    raise _missing(layout, which, f"--checkpoint {which}: no such checkpoint", expected)


def _read_folder(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    checkpoint.verify(path, replay=False)
    weights, _ = _tensors(path / checkpoint.POLICY)
    try:
        state = json.loads((path / checkpoint.STATE).read_text())
        if state["format"] != checkpoint.FORMAT:
            raise DamagedError(
                f"{path}: of another format", expected=f"format {checkpoint.FORMAT}", found=str(state["format"])
            )
        facts = {key: value for key, value in state.items() if key != "format" and not isinstance(value, dict)}
        return weights, {"steps": int(state["steps"]), **facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{path / checkpoint.STATE}: can't be read", found=f"{type(error).__name__}: {error}"
        ) from None


def _read_snapshot(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    weights, metadata = _tensors(path)
    steps = metadata.pop("steps", path.stem)
    return weights, {"steps": int(steps) if re.fullmatch(r"[0-9]+", steps) else None, **metadata}


def _tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedError(
            f"{path}: can't be read", expected="a safetensors file", found=f"{type(error).__name__}: {error}"
        ) from None


def _spec(layout: RunLayout) -> EnvSpec:
    try:
        return EnvSpec.from_json(json.loads(layout.spec.read_text()))
    except FileNotFoundError:
        raise RecipeError(
            f"{layout.spec}: missing",
            expected="the env's spaces, which training writes when it starts",
            found="no such file",
            remedy=f"erl resume {quoted(layout.root)} writes it anew",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{layout.spec}: can't be read",
            expected="the env's spaces as JSON",
            found=f"{type(error).__name__}: {error}",
            remedy=f"erl resume {quoted(layout.root)} writes it anew",
        ) from None


def _check(source: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Whether the weights are those of this very policy, and numbers."""
    problems = [f"no {name}" for name in wanted if name not in found]
    problems += [f"an unexpected {name}" for name in found if name not in wanted]
    problems += [
        f"{name} is {_kind(found[name])} instead of {_kind(tensor)}"
        for name, tensor in wanted.items()
        if name in found and _kind(found[name]) != _kind(tensor)
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DamagedError(
            f"{source}: does not fit the policy of recipe.toml",
            expected=f"its {len(wanted)} tensors",
            found="; ".join(problems[:3]) + more,
            remedy="a checkpoint of this very run: recipe.toml must be as it was in training",
        )
    spoilt = [name for name, tensor in found.items() if torch.isnan(tensor).any()]
    if spoilt:
        raise DamagedError(
            f"{source}: the policy holds NaN",
            expected="numbers",
            found=", ".join(spoilt[:3]),
            remedy="an earlier --checkpoint",
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _missing(layout: RunLayout, which: str, message: str, expected: str) -> RecipeError:
    there = available(layout)
    if which == BEST and checkpoint.numbered(layout):
        remedy = "--checkpoint last takes the newest restart point"
    elif there:
        remedy = "--checkpoint with one of those"
    else:
        remedy = f"train it first: erl resume {quoted(layout.root)}"
    return RecipeError(message, expected=expected, found=_listing(there), remedy=remedy)


def _remedy(layout: RunLayout, damaged: Path) -> str:
    """Which other checkpoint could serve."""
    whole: list[str] = []
    best = layout.checkpoints / BEST
    paths = [(BEST, best)] if os.path.lexists(best) else []
    for name, path in [*paths, *((str(int(p.name)), p) for p in reversed(checkpoint.numbered(layout)))]:
        if path.resolve() == damaged:
            continue
        try:
            checkpoint.verify(path, replay=False)
        except DamagedError:
            continue
        whole.append(name)
    if whole:
        return f"--checkpoint {whole[0]}" + (f" ({', '.join(whole)} are whole)" if len(whole) > 1 else " is whole")
    return f"erl resume {quoted(layout.root)}, or restore it from a backup"


def available(layout: RunLayout) -> list[str]:
    """What `load_policy` can be asked for, `best` first, then steps in ascending order."""
    steps = {int(path.name) for path in checkpoint.numbered(layout)}
    steps |= {int(path.stem) for path in layout.snapshots.glob("[0-9]*.safetensors") if path.stem.isdigit()}
    best = [BEST] if os.path.lexists(layout.checkpoints / BEST) else []
    return best + [str(number) for number in sorted(steps)]


def _listing(names: list[str]) -> str:
    if not names:
        return "no checkpoint at all"
    shown = names if len(names) <= 6 else [*names[:3], "...", *names[-2:]]
    return ", ".join(shown)
