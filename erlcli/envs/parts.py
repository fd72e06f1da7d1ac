"""Dict and Tuple observations with images, packed into one row of bytes for `core.packing`.

Images stay images, numbers become vectors, and text is left out: networks here can't read it. Spaces without an image
are not packed but flattened, by gymnasium.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from erlcli.core.packing import packed
from erlcli.core.types import Box, Part

Space = spaces.Space[Any]
Path = tuple[str | int, ...]


class BadObservation(Exception):  # noqa: N818 - a verdict on the env, which the caller turns into an error of ours
    """An observation that is not of its space; the message goes on from `returned`."""


@dataclass(frozen=True)
class Leaf:
    """A part of an observation.

    Attributes:
        path: keys and indices that lead to it.
        space: its own.
    """

    path: Path
    space: Space

    @property
    def name(self) -> str:
        """The path joined by dots."""
        return ".".join(map(str, self.path))


def leaves(space: Space, path: Path = ()) -> Iterator[Leaf]:
    """The parts of a space, however deep; one for a space that is neither Dict nor Tuple."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, str(key)))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from leaves(part, (*path, i))
    else:
        yield Leaf(path, space)


def is_text(space: Space) -> bool:
    """Whether elements are strings, in gymnasium's Text or in a space of the env's own."""
    return isinstance(space, spaces.Text) or space.dtype == np.dtype(str)


def is_image(space: Space) -> bool:
    """Whether a part goes through convolutions: uint8, with height and width of at least 3."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 3:
        return False
    return sum(n >= 3 for n in space.shape) >= 2


def wants_packing(space: Space) -> bool:
    """Whether observations are to be packed: several parts, an image among them."""
    return isinstance(space, (spaces.Dict, spaces.Tuple)) and any(is_image(leaf.space) for leaf in leaves(space))


def left_out(space: Space) -> list[str]:
    """Names of the parts that packing leaves out."""
    return [leaf.name for leaf in leaves(space) if is_text(leaf.space)] if wants_packing(space) else []


class PackedSpace(spaces.Box):
    """What a packed observation looks like to gymnasium.

    Args:
        row: what it looks like to algorithms.

    Attributes:
        row: the same.
    """

    def __init__(self, row: Box) -> None:
        super().__init__(0, 255, row.shape, np.uint8)
        self.row = row


class PackObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Packs every observation, after it was checked, and stacks the last ones.

    Args:
        env: with a Dict or Tuple observation space of which `wants_packing` is true.
        stack: how many observations each part holds, along a new first axis where there are several; the first one
            of an episode fills them all.

    Raises:
        NotImplementedError: a part can't be made numbers.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], stack: int = 1) -> None:
        super().__init__(env)
        self.stack = stack
        numbers = [leaf for leaf in leaves(env.observation_space) if not is_text(leaf.space)]
        self._leaves = sorted(numbers, key=lambda leaf: is_image(leaf.space))  # the order of `packed`
        row = packed([(leaf.name, _box(leaf.space, stack)) for leaf in self._leaves])
        self.observation_space = PackedSpace(row)
        self._parts: tuple[Part, ...] = row.parts
        self._recent: deque[list[NDArray[Any]]] = deque(maxlen=stack)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        self._recent.clear()
        obs, info = self.env.reset(seed=seed, options=options)
        return self.observation(obs), info

    def observation(self, observation: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - Mapping or sequence
        """A new row.

        Raises:
            BadObservation: a part is missing, of another shape or kind, or holds NaN or infinity.
        """
        values = [_value(leaf, observation) for leaf in self._leaves]
        self._recent.append(values)
        while len(self._recent) < self.stack:
            self._recent.append(values)
        row = np.zeros(self.observation_space.shape or (), dtype=np.uint8)
        for i, part in enumerate(self._parts):
            place = row[part.offset :]
            for recent in self._recent:
                data = recent[i].reshape(-1).view(np.uint8)
                place[: len(data)] = data
                place = place[len(data) :]
        return row


def _box(space: Space, stack: int) -> Box:
    """A part's box: uint8 for images, float32 vectors for the rest."""
    flat = space if is_image(space) else spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        raise NotImplementedError(f"{space} has no fixed size")
    shape = (stack, *flat.shape) if stack > 1 else flat.shape
    low, high = (tuple(float(x) for x in np.tile(bound.reshape(-1), stack)) for bound in (flat.low, flat.high))
    return Box(shape, "uint8" if is_image(space) else "float32", low, high)


def _value(leaf: Leaf, observation: Any) -> NDArray[Any]:  # noqa: ANN401
    """A part's own copy, contiguous, uint8 or float32."""
    value = observation
    for i, key in enumerate(leaf.path):
        try:
            value = value[key]
        except (LookupError, TypeError):
            found = f"the keys {sorted(map(str, value))}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
            where = ".".join(map(str, leaf.path[:i]))
            what = f"an observation whose {where} is {found}" if where else f"an observation of {found}"
            raise BadObservation(f"{what}, without {key!r}") from None
    space = leaf.space
    if not isinstance(space, spaces.Box):
        try:
            flat: NDArray[Any] = np.asarray(spaces.flatten(space, value), dtype=np.float32)
        except (LookupError, TypeError, ValueError, AssertionError):
            raise BadObservation(f"an observation whose {leaf.name} is {value!r:.80}, not of {space!s:.80}") from None
        return flat
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise BadObservation(f"an observation whose {leaf.name} is no array: {value!r:.80}") from None
    images = is_image(space)
    if array.shape != space.shape or array.dtype.kind not in ("biu" if images else "biuf"):
        raise BadObservation(
            f"an observation whose {leaf.name} is {array.dtype} {array.shape}, not {space.dtype} {space.shape}"
        )
    if images:
        if array.dtype != np.uint8 and not ((array >= 0) & (array <= 255)).all():
            raise BadObservation(f"an observation whose {leaf.name} has {array.dtype} pixels outside of 0 ... 255")
        return np.array(array, dtype=np.uint8, order="C")
    with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite, and is refused as such
        copy = np.array(array, dtype=np.float32, order="C")
    if not np.isfinite(copy).all():
        raise BadObservation(f"an observation whose {leaf.name} is NaN or infinite: {copy!r:.120}")
    return copy
