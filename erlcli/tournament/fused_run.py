"""Checkpoints of runs fused into a run directory of its own, which every command takes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erlcli.engine import checkpoint
from erlcli.engine.fusion import difference, fuse
from erlcli.engine.status import status_row
from erlcli.errors import DamagedError, RecipeError
from erlcli.recipe.load import AnyRecipe, dump, load
from erlcli.runs.jsonl import sync_path, write_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.text import quoted
from erlcli.tournament.members import link_folder, name_of

SAME = ("env", "network", "normalize")  # sections that say what the networks are and what they see
NOT_OF_NETWORKS = ("backend", "num_envs")  # keys of [env] that may differ


@dataclass(frozen=True)
class Source:
    """A restart point of a run.

    Attributes:
        layout: the run.
        path: folder of the checkpoint.
    """

    layout: RunLayout
    path: Path


def newest(layout: RunLayout, count: int) -> list[Source]:
    """The newest restart points of a run, the oldest of them first.

    Raises:
        RecipeError: it has fewer.
    """
    folders = checkpoint.numbered(layout)
    if len(folders) < count:
        keep = load(layout.recipe).checkpoint.keep
        raise RecipeError(
            f"{layout.root}: fewer than {count} restart points",
            expected=f"{count} folders in {layout.checkpoints}",
            found=str(len(folders)),
            remedy=f"checkpoint.keep = {keep} says how many a run keeps: train with more, or lower --last"
            if folders
            else f"train it first: erl resume {quoted(layout.root)}",
        )
    return [Source(layout, folder) for folder in folders[-count:]]


def at_path(layout: RunLayout, path: Path) -> Source:
    """The restart point at a path inside a run.

    Raises:
        RecipeError: it holds a policy alone.
    """
    folder = path.resolve()
    if folder.is_file():
        folder = folder.parent
    if not folder.name.isdigit():
        raise RecipeError(
            f"{path}: no restart point",
            expected=f"a folder named by its steps, in {layout.checkpoints}",
            found="a policy without its learner, which nothing can train on",
            remedy="name the run, whose newest restart point is taken, or one of those folders",
        )
    return Source(layout, folder)


def fuse_runs(sources: Sequence[Source], out: Path, weights: Sequence[float] | None = None) -> dict[str, Any]:
    """Write a run directory whose one checkpoint is the mean of several.

    Its recipe is that of the source that got furthest. What the normalisers have seen adds up over different runs.

    Args:
        sources: at least two.
        out: where; nothing may be there.
        weights: one a source, in any unit; None for equal ones.

    Returns:
        `run`, `steps`, `algorithm`, `env`, and `sources`: `checkpoint_path`, `steps` and `weight` (a share) of each.

    Raises:
        RecipeError: something is at `out`, or the sources are not alike.
        DamagedError: a checkpoint is damaged.
        OSError: the disk is full or read-only; nothing is left behind.
    """
    _check_alike(sources)
    if out.exists():
        raise RecipeError(
            f"--out {out}: is there already",
            expected="a new directory",
            found="a folder" if out.is_dir() else "a file",
            remedy=f"another --out, e.g. {out.with_name(out.name + '-2')}",
        )
    first = max(sources, key=lambda source: _steps(source.path))
    steps, recipe = _steps(first.path), load(first.layout.recipe)
    runs = {source.layout.root.resolve() for source in sources}
    layout = RunLayout(out.absolute().with_name(f".{out.name}.{os.getpid()}"))
    shares = list(weights) if weights is not None else [1.0] * len(sources)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        layout.create()
        names = ", ".join(f"{source.layout.root.resolve().name} at {_steps(source.path):,}" for source in sources)
        layout.recipe.write_text(f"# Fused from {names} steps.\n{dump(recipe)}")
        shutil.copyfile(first.layout.spec, layout.spec)
        folder, best = layout.checkpoints / name_of(steps), layout.checkpoints / f"best-{name_of(steps)}"
        fuse([source.path for source in sources], folder, weights=shares, disjoint=len(runs) == len(sources))
        link_folder(folder, best)
        (layout.checkpoints / "best").symlink_to(best.name)
        seconds = float(json.loads((folder / checkpoint.STATE).read_text())["seconds"])
        status = status_row(out.name, recipe, "interrupted", attempt=0, steps=steps, seconds=seconds)
        write_json(layout.status, status | {"pid": None})
        os.rename(layout.root, out)
        sync_path(out.absolute().parent)
    finally:
        shutil.rmtree(layout.root, ignore_errors=True)
    total = sum(shares)
    return {
        "run": str(out),
        "steps": steps,
        "algorithm": recipe.algorithm.name,
        "env": recipe.env.id,
        "sources": [
            {"checkpoint_path": str(source.path), "steps": _steps(source.path), "weight": share / total}
            for source, share in zip(sources, shares, strict=True)
        ],
    }


def _steps(path: Path) -> int:
    return int(path.name)


def _check_alike(sources: Sequence[Source]) -> None:
    """Refuse what has no mean, and name the first difference.

    Raises:
        RecipeError: algorithms, networks or what they see are not the same.
    """
    first = load(sources[0].layout.recipe)
    wanted = checkpoint.load(sources[0].path)
    for source in sources[1:]:
        for (key, one), (_, another) in zip(_facts(first), _facts(load(source.layout.recipe)), strict=True):
            if one != another:
                raise _unlike(sources[0], source, key, str(one), str(another))
        other = checkpoint.load(source.path)
        for what, here, there in (
            ("policy", wanted.policy, other.policy),
            ("learner", checkpoint.flatten(wanted.learner)[0], checkpoint.flatten(other.learner)[0]),
        ):
            if (problem := difference(here, there)) is not None:
                raise _unlike(sources[0], source, f"{what} tensor {problem[0]}", problem[1], problem[2])
    for source in sources:
        if not source.layout.spec.exists():
            raise DamagedError(f"{source.layout.spec}: missing", expected="the env's spaces, which training writes")


def _facts(recipe: AnyRecipe) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [("algorithm.name", recipe.algorithm.name)]
    for section in SAME:
        values = getattr(recipe, section).model_dump()
        facts += [(f"{section}.{key}", value) for key, value in values.items() if key not in NOT_OF_NETWORKS]
    return facts


def _unlike(first: Source, other: Source, key: str, one: str, another: str) -> RecipeError:
    return RecipeError(
        f"{other.path}: can't be fused with {first.path}",
        expected=f"{key} = {one:.200}",
        found=f"{key} = {another:.200}",
        remedy="fuse runs of one architecture and algorithm; erl eval --ensemble takes different ones",
    )
