"""Model fusion: one checkpoint from those of several runs that started from the same parent with different seeds.

Averaged are all floating-point tensors: weights, Adam's moments, running statistics. The mean of the runs' variances
is that within a run; how far the runs' means lie apart is left out, as the runs saw the same environment. Counters and
whatever else is no float come from the run that got furthest; so does experience (`replay/`), which has no mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.errors import DamagedError

WHOLE = ("replay/",)  # names of what belongs to one run as it is


def fuse(sources: Sequence[Path], target: Path, steps: int) -> None:
    """Average checkpoints.

    Args:
        sources: folders of restart points, at least one.
        target: folder to write.
        steps: that the result counts from.

    Raises:
        DamagedError: one is damaged, or their tensors are not of the same names and shapes.
        OSError: the disk is full or read-only.
    """
    pairs = sorted(((path, checkpoint.load(path)) for path in sources), key=lambda pair: -int(pair[1].state["steps"]))
    sources, loaded = [path for path, _ in pairs], [item for _, item in pairs]
    first = loaded[0]
    learners = [checkpoint.flatten(item.learner)[0] for item in loaded]
    policy = average([item.policy for item in loaded], sources)
    learner = _put(first.learner, average(learners, sources))
    state = {**first.state, "steps": steps, "planned": False}
    checkpoint.save(target, Checkpoint(policy, learner, state, first.replay))


def forget(source: Path, target: Path) -> None:
    """A checkpoint with all that another one has but for its replay, which begins anew.

    Args:
        source: folder of a restart point.
        target: folder to write.

    Raises:
        DamagedError: the source is damaged.
        OSError: the disk is full or read-only.
    """
    found = checkpoint.load(source)
    empty = {key: 0 for key in ("end", "size")}
    learner = {key: empty if key == "replay" else value for key, value in found.learner.items()}
    checkpoint.save(target, Checkpoint(found.policy, learner, found.state))


def average(states: Sequence[Mapping[str, Tensor]], sources: Sequence[Path] = ()) -> dict[str, Tensor]:
    """The mean of tensors of the same name, summed in double precision; what is no float is the first's.

    Raises:
        DamagedError: names or shapes differ; `sources` name the culprit.
    """
    first, *others = states
    for place, other in enumerate(others, start=1):
        differing = {name for name in {*first, *other} if _kind(first.get(name)) != _kind(other.get(name))}
        if differing:
            raise DamagedError(
                f"{sources[place] if sources else 'checkpoint ' + str(place)}: can't be fused with the first",
                expected="the same tensors",
                found=f"others: {', '.join(sorted(differing)[:5])}",
                remedy="fuse runs of one recipe",
            )
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point() and not name.startswith(WHOLE)
        else tensor.clone()
        for name, tensor in first.items()
    }


def _kind(tensor: Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape))


def _put(tree: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """`tree` with its tensors replaced by those of the flat names."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            result[key] = _put(value, tensors, f"{prefix}{key}/")
        else:
            result[key] = tensors.get(f"{prefix}{key}", value)
    return result
