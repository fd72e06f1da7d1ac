"""Histories that grow for ever in bounded memory: the newest items whole, older ones evenly spaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def thin(items: list[T], limit: int, whole: int, position: Callable[[T], int]) -> None:
    """Take items out in place once there are more than `limit`.

    Half of the room for old items is freed at a time, so that adding one costs O(1) on average. What stays is the
    first item of each interval of a power of two: the same ones however often it was done before.

    Args:
        items: in order of their positions.
        limit: how many may be there; more than `whole`.
        whole: how many of the newest stay, all of them.
        position: of an item, such as its steps; not negative.
    """
    if len(items) <= limit:
        return
    split = len(items) - whole
    old = items[:split]
    items[:split] = [old[i] for i in evenly([position(item) for item in old], (limit - whole) // 2)]


def evenly(positions: Sequence[int], target: int) -> list[int]:
    """Indices of at most about `target` of the sorted `positions`, evenly spaced, the first one among them."""
    if not positions:
        return []
    shift = ((positions[-1] - positions[0]) // max(target, 1)).bit_length()
    chosen = _firsts(positions, shift)
    while shift > 0 and len(finer := _firsts(positions, shift - 1)) <= target:
        shift, chosen = shift - 1, finer
    return chosen


def _firsts(positions: Sequence[int], shift: int) -> list[int]:
    """Index of the first position in each interval of 2 ** shift."""
    chosen: list[int] = []
    last: int | None = None
    for index, position in enumerate(positions):
        if position >> shift != last:
            last = position >> shift
            chosen.append(index)
    return chosen
