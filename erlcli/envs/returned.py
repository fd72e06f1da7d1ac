"""What a gymnasium environment returned, checked and copied: the same rules in training and in evaluation.

All of it runs once a step of every single environment, so that the usual case comes first and costs about a
microsecond.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 64  # numbers, up to which a sum in Python is faster than a look by numpy


def copy_obs(obs: Any, row: NDArray[Any]) -> str | None:  # noqa: ANN401 - whatever an env returns
    """Copy an observation into its row, at once, since envs may reuse theirs.

    Args:
        obs: what `reset` or `step` returned.
        row: (*obs) contiguous, of the dtype that algorithms see: uint8 for images, else float32.

    Returns:
        What is wrong with it, as what follows "returned"; None if it is an observation.
    """
    try:
        array = np.asarray(obs)
    except ValueError:  # ragged lists
        return f"no observation: {obs!r:.100}"
    if array.shape != row.shape:
        return f"an observation of shape {array.shape}, not {row.shape}"
    if array.dtype == row.dtype:
        row[...] = array
        return None if row.dtype == np.uint8 or _finite(row) else _not_finite(obs)
    images = row.dtype == np.uint8
    if array.dtype.kind not in ("biu" if images else "biuf"):
        return f"an observation of {array.dtype}, where {row.dtype} is due"
    if images and not ((array >= 0) & (array <= 255)).all():
        return f"{array.dtype} pixels outside of 0 ... 255"
    with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite, and is refused as such
        row[...] = array
    return None if images or _finite(row) else _not_finite(obs)


def scalar(value: Any) -> float | None:  # noqa: ANN401 - whatever an env returns
    """A reward or a flag as a float: Python and numpy numbers, booleans and arrays of one element; None for others."""
    if isinstance(value, (bool, int, float)):  # np.float64 is a float
        return float(value)
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        return None
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "biuf" else None


def _finite(row: NDArray[Any]) -> bool:
    """Whether every float32 is finite. Of few, Python's sum tells sooner: as doubles they can't overflow it."""
    if row.size > FEW:
        return bool(np.isfinite(row).all())
    return math.isfinite(sum(row.ravel().tolist()))


def _not_finite(obs: Any) -> str:  # noqa: ANN401 - whatever an env returns
    return f"a NaN or infinite observation: {obs!r:.200}"
