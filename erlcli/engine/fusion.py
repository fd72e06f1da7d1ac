"""Model fusion: one checkpoint from those of several runs, or from several of one run.

The idea is that of model soups (arXiv 2203.05482) and of stochastic weight averaging (arXiv 1803.05407): weights that
come from one start, or from one stretch of training, lie in one basin, and their mean is a good network too. Those of
runs that started from different weights usually don't, whatever they score alone: evaluate what comes out.

Averaged are all floating-point tensors: weights, Adam's moments, running statistics. Means and variances of
observations and returns are pooled, weighted by how much each run has seen. Counters and whatever else is no float come
from the run that got furthest; so do experience (`replay/`, `h_term/`), which has no mean, and the returns of open
episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erlcli.core import batch_norm
from erlcli.core.normalize import EPSILON, pool
from erlcli.engine import checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.errors import DamagedError

WHOLE = ("replay/", "h_term/")  # how names begin of what belongs to one run as it is
States = Sequence[Mapping[str, Tensor]]


def fuse(
    sources: Sequence[Path],
    target: Path,
    steps: int | None = None,
    weights: Sequence[float] | None = None,
    *,
    disjoint: bool = False,
) -> None:
    """Average checkpoints.

    Args:
        sources: folders of restart points, at least one.
        target: folder to write.
        steps: that the result counts from; None for those of the source that got furthest.
        weights: one a source, in any unit; None for equal ones.
        disjoint: whether no experience went into more than one of the sources, so that what they have seen adds up;
            what siblings have from their parent, or a run from its own past, must not count again and again.

    Raises:
        DamagedError: one is damaged, or their tensors are not of the same names and shapes.
        OSError: the disk is full or read-only.
    """
    shares = weights if weights is not None else [1.0] * len(sources)
    read = [(path, checkpoint.load(path), share) for path, share in zip(sources, shares, strict=True)]
    read.sort(key=lambda item: -int(item[1].state["steps"]))
    sources, loaded, shares = [path for path, _, _ in read], [item for _, item, _ in read], [s for _, _, s in read]
    first = loaded[0]
    learners = [checkpoint.flatten(item.learner)[0] for item in loaded]
    policy = average([item.policy for item in loaded], sources, shares, disjoint=disjoint)
    learner = _put(first.learner, average(learners, sources, shares, disjoint=disjoint))
    state = {**first.state, "steps": int(first.state["steps"]) if steps is None else steps, "planned": False}
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


def average(
    states: States, sources: Sequence[Path] = (), weights: Sequence[float] | None = None, *, disjoint: bool = False
) -> dict[str, Tensor]:
    """The mean of tensors of the same name, summed in double precision; what is no float is the first's.

    Args:
        states: at least one.
        sources: name them in messages.
        weights: see `fuse`.
        disjoint: see `fuse`.

    Raises:
        DamagedError: names or shapes differ; `sources` name the culprit.
    """
    first, *others = states
    for place, other in enumerate(others, start=1):
        if (problem := difference(first, other)) is not None:
            name, here, there = problem
            raise DamagedError(
                f"{sources[place] if sources else 'checkpoint ' + str(place)}: can't be fused with the first",
                expected=f"{name}: {here}",
                found=there,
                remedy="fuse runs of one recipe",
            )
    shares = torch.tensor(weights if weights is not None else [1.0] * len(states), dtype=torch.float64)
    shares /= shares.sum()
    merged = {
        name: tensor.clone()
        if not tensor.is_floating_point() or _is_whole(name)
        else torch.tensordot(shares, torch.stack([state[name].double() for state in states]), 1).to(tensor.dtype)
        for name, tensor in first.items()
    }
    for name in first:
        if _leaf(name) == "count":
            _pool(merged, states, shares, name.removesuffix("count"), disjoint=disjoint)
        elif _leaf(name) == "updates":
            _pool_batch_norm(merged, states, shares, name.removesuffix("updates"))
    return merged


def difference(first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[str, str, str] | None:
    """The first tensor that two states don't have alike: its name, and what it is in either; None where there is none.

    What belongs to one run as it is may differ.
    """
    for name in sorted({*first, *other}):
        one, another = _kind(first.get(name)), _kind(other.get(name))
        if one != another and not _is_whole(name):
            return name, one, another
    return None


def _is_whole(name: str) -> bool:
    return name.startswith(WHOLE)


def _leaf(name: str) -> str:
    """A name without the dicts and modules that it is within."""
    return name.replace("/", ".").rpartition(".")[2]


def _kind(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _pool(merged: dict[str, Tensor], states: States, shares: Tensor, prefix: str, *, disjoint: bool) -> None:
    """Running moments, and the scale and shift of observations that follow from them."""
    names = [f"{prefix}{name}" for name in ("count", "mean", "var")]
    if not all(name in merged for name in names):
        return
    counts, means, variances = (torch.stack([state[name] for state in states]) for name in names)
    seen = counts * shares * len(states)
    count, mean, var = pool(seen, means, variances)
    merged |= dict(zip(names, (count if disjoint else (counts * shares).sum(), mean, var), strict=True))
    outer = prefix.removesuffix("moments.")
    if f"{outer}shift" in merged:
        merged[f"{outer}shift"] = mean.to(merged[f"{outer}shift"].dtype)
        merged[f"{outer}scale"] = (var + EPSILON).rsqrt().to(merged[f"{outer}scale"].dtype)


def _pool_batch_norm(merged: dict[str, Tensor], states: States, shares: Tensor, prefix: str) -> None:
    """Moments of a `BatchRenorm`, of which each has seen enough, and the scale that follows from them."""
    names = [f"{prefix}{name}" for name in ("mean", "var", "scale")]
    if not all(name in merged for name in names):
        return
    means, variances = (torch.stack([state[name].double() for state in states]) for name in names[:2])
    _, mean, var = pool(shares, means, variances)
    values = mean, var, (var + batch_norm.EPS).rsqrt()
    merged |= {name: value.to(merged[name].dtype) for name, value in zip(names, values, strict=True)}


def _put(tree: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """`tree` with its tensors replaced by those of the flat names."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            result[key] = _put(value, tensors, f"{prefix}{key}/")
        else:
            result[key] = tensors.get(f"{prefix}{key}", value)
    return result
