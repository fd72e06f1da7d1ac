"""What crosses the borders between environments, engine and algorithms.

Dimension letters: T time steps of a rollout, N environments, K ended episodes, A action dimensions, C choices,
S numbers of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

MANY_BOUNDS = 64  # from more equal bounds on, JSON holds one of them


@dataclass(frozen=True)
class Box:
    """A continuous (or image) space.

    Attributes:
        shape: of one element.
        dtype: numpy name, e.g. `float32` or `uint8`.
        low: lower bounds, flattened; `-inf` where there is none.
        high: upper bounds, flattened.
        parts: of an observation with several parts that is packed into one row of bytes, see `core.packing`; else
            empty.
        stack: observations along the first axis, which is none of the env's own where there are several.
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    parts: tuple[Part, ...] = ()
    stack: int = 1

    @property
    def size(self) -> int:
        """Number of scalars in one element."""
        return int(np.prod(self.shape))

    @property
    def bounded(self) -> bool:
        """Whether every bound is finite."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


@dataclass(frozen=True)
class Part:
    """One part of a packed observation.

    Attributes:
        name: its key, or its keys joined by dots.
        space: uint8 for an image, float32 for a vector.
        offset: bytes from the start of the row.
    """

    name: str
    space: Box
    offset: int


@dataclass(frozen=True)
class Discrete:
    """Integers `start ... start + n - 1`; policies speak of `0 ... n - 1`."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class MultiDiscrete:
    """Several discrete choices at once; `nvec` is flattened, `shape` is what the environment wants.

    Attributes:
        nvec: number of choices of each dimension, flattened.
        shape: shape of one action in the environment.
        dtype: numpy name that the environment expects.
        start: smallest value of each dimension, flattened; empty for zeros.
    """

    nvec: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "int64"
    start: tuple[int, ...] = ()


ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class EnvSpec:
    """All that an algorithm may know of an environment.

    Attributes:
        obs: observation space; Dict and Tuple spaces arrive packed where they hold an image, else flattened.
        action: action space, in the environment's units.
        num_envs: environments stepped together, N.
        max_episode_steps: time limit in steps, or None.
        device: where the tensors of `Step` live.
        mask: C, choices over which the environment gives masks of legal actions; 0 where it gives none.
        games: whether steps tell the rewards and ends of the game apart from those that are trained on, `Game`.
        gives_next_obs: whether steps tell the true next observations of all environments, `Step.next_obs`.
        capturable: whether a step is tensor operations alone, of fixed shapes, at fixed addresses and without a look
            at any value, so that it can be recorded in a CUDA graph.
        flattened: whether `obs` is gymnasium's flattening of what the environment gives.
    """

    obs: Box
    action: ActionSpace
    num_envs: int
    max_episode_steps: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mask: int = 0
    games: bool = False
    gives_next_obs: bool = False
    capturable: bool = False
    flattened: bool = False

    def to_json(self) -> dict[str, Any]:
        """The spaces and the time limit, for `spec.json` in a run directory."""
        return {
            "obs": _space_to_json(self.obs),
            "action": _space_to_json(self.action),
            "max_episode_steps": self.max_episode_steps,
            "mask": self.mask,
            "flattened": self.flattened,
        }

    @staticmethod
    def from_json(row: dict[str, Any], num_envs: int = 1) -> EnvSpec:
        """The inverse of `to_json`."""
        obs = _space_from_json(row["obs"])
        if not isinstance(obs, Box):
            raise ValueError(f"obs: expected a box, found {row['obs']}")
        return EnvSpec(
            obs=obs,
            action=_space_from_json(row["action"]),
            num_envs=num_envs,
            max_episode_steps=row["max_episode_steps"],
            mask=row.get("mask", 0),  # runs of before there were masks don't say, nor all whether they are flattened
            flattened=row.get("flattened", False),
        )


def _space_to_json(space: ActionSpace) -> dict[str, Any]:
    if isinstance(space, Box):
        row: dict[str, Any] = {
            "kind": "box",
            "shape": list(space.shape),
            "dtype": space.dtype,
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
        }
        if space.stack > 1:
            row["stack"] = space.stack
        if space.parts:
            row["parts"] = [{"name": p.name, "offset": p.offset, "space": _space_to_json(p.space)} for p in space.parts]
        return row
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n, "start": space.start}
    return {
        "kind": "multi_discrete",
        "nvec": list(space.nvec),
        "shape": list(space.shape),
        "dtype": space.dtype,
        "start": list(space.start),
    }


def _bounds_to_json(bounds: tuple[float, ...]) -> list[str]:
    """Text, since JSON has no infinity: repr() of a float is read back by float(). One bound for an image's pixels."""
    uniform = len(bounds) > MANY_BOUNDS and len(set(bounds)) == 1
    return [repr(float(x)) for x in (bounds[:1] if uniform else bounds)]


def _bounds_from_json(row: list[str], shape: tuple[int, ...]) -> tuple[float, ...]:
    bounds = tuple(map(float, row))
    count = int(np.prod(shape))
    return bounds * count if len(bounds) == 1 and count > MANY_BOUNDS else bounds


def _space_from_json(row: dict[str, Any]) -> ActionSpace:
    kind: Literal["box", "discrete", "multi_discrete"] = row["kind"]
    if kind == "box":
        shape = tuple(row["shape"])
        parts = []
        for part in row.get("parts", []):
            space = _space_from_json(part["space"])
            if not isinstance(space, Box):
                raise ValueError(f"part {part['name']}: expected a box, found {part['space']}")
            parts.append(Part(part["name"], space, part["offset"]))
        low, high = (_bounds_from_json(row[bound], shape) for bound in ("low", "high"))
        return Box(shape, row["dtype"], low, high, tuple(parts), row.get("stack", 1))
    if kind == "discrete":
        return Discrete(row["n"], row["start"])
    if kind == "multi_discrete":
        return MultiDiscrete(tuple(row["nvec"]), tuple(row["shape"]), row["dtype"], tuple(row["start"]))
    raise ValueError(f"unknown space kind {kind!r}")


@dataclass(frozen=True)
class FinalObs:
    """True last observations of episodes whose environment was reset within the same step.

    Attributes:
        index: (K, 2) int64, the (t, n) of each.
        obs: (K, *obs).
    """

    index: Tensor
    obs: Tensor

    @staticmethod
    def none(obs: Tensor) -> FinalObs:
        """No last observations, for a rollout with `obs` (T + 1, N, *obs)."""
        return FinalObs(torch.zeros(0, 2, dtype=torch.int64, device=obs.device), obs.new_zeros(0, *obs.shape[2:]))


@dataclass(frozen=True)
class Game:
    """What a game says itself, where it is trained on other rewards or ends, as Atari games are.

    Attributes:
        reward: (..., N) float32.
        over: (..., N) bool.
    """

    reward: Tensor
    over: Tensor


@dataclass(frozen=True)
class Step:
    """What one step of N environments gives. Tensors may be reused by the next step: copy what you keep.

    Attributes:
        obs: (N, *obs) the next observations; already of the next episode where the env reset within the step.
        reward: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool.
        valid: (N,) bool; False where this step was only the reset of an env with next-step autoreset.
        final_obs: the true last observations by env index, for envs that reset within the step; else None.
        mask: (N, C) bool, the choices that are legal after `obs`; None for envs without masks.
        game: (N,) of each, for what training reports; None where rewards and ends are the game's own.
        next_obs: (N, *obs) the true next observations of all envs, in the place of `final_obs`: from envs on a device,
            which reset within the step, so that every row is valid, and where nothing may be looked up by index.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_obs: dict[int, Tensor] | None = None
    mask: Tensor | None = None
    game: Game | None = None
    next_obs: Tensor | None = None


@dataclass(frozen=True)
class Start:
    """What a policy with a memory knew when a rollout began.

    Attributes:
        state: (N, S) that the first step was made from; zeros where an episode begins there.
        fresh: (N,) bool, whether obs[0] begins an episode.
    """

    state: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments, collected by one version of a policy.

    Attributes:
        obs: (T + 1, N, *obs); obs[t + 1] may already belong to the next episode (see `final_obs`).
        action: (T, N) int64, (T, N, D) int64, or (T, N, A) float32 in the policy's own units.
        reward: (T, N) float32, as the environment gave it.
        terminated: (T, N) bool: the episode is over, never bootstrap.
        truncated: (T, N) bool: cut short, bootstrap from the true last observation, which is in `next_obs`, in
            `final_obs` or, where there is neither, obs[t + 1].
        valid: (T, N) bool: False for mere reset steps; such rows never train anything.
        final_obs: the true last observations that obs does not hold; empty where there is a `next_obs`.
        extras: (T, N, ...) whatever `Policy.act` returned beside the action.
        version: of the policy that acted.
        mask: (T, N, C) bool, the choices that were legal; None where all always are.
        start: of a policy with a memory; None without one.
        game: (T, N) of each, see `Step`; nothing is learnt from it, so it stays where it was collected.
        next_obs: (T, N, *obs) the true next observations, see `Step`; None where obs and `final_obs` tell them.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_obs: FinalObs
    extras: dict[str, Tensor]
    version: int
    mask: Tensor | None = None
    start: Start | None = None
    game: Game | None = None
    next_obs: Tensor | None = None

    @property
    def num_steps(self) -> int:
        """Env transitions taken: rows that are valid."""
        return self.reward.numel() if self.next_obs is not None else int(self.valid.sum())

    @property
    def unsure(self) -> Tensor | None:
        """`valid`, or None where every row is known to be, without a look at the device."""
        return self.valid if self.next_obs is None else None

    def finals(self) -> FinalObs:
        """`final_obs`, or what of `next_obs` stands in its place; that one asks the device where episodes ended."""
        if self.next_obs is None:
            return self.final_obs
        ended = self.terminated | self.truncated
        return FinalObs(ended.nonzero(), self.next_obs[ended])

    def to(self, device: torch.device) -> Rollout:
        """The same rollout on `device`; itself where it is there already."""
        if self.obs.device == device:
            return self
        soon = device.type != "cpu"  # a copy to the host must have arrived before the host reads it
        names = ("obs", "action", "reward", "terminated", "truncated", "valid")
        moved = {name: getattr(self, name).to(device, non_blocking=soon) for name in names}
        final = FinalObs(self.final_obs.index.to(device), self.final_obs.obs.to(device))
        extras = {name: value.to(device, non_blocking=soon) for name, value in self.extras.items()}
        mask = self.mask.to(device, non_blocking=soon) if self.mask is not None else None
        start = Start(self.start.state.to(device), self.start.fresh.to(device)) if self.start is not None else None
        following = self.next_obs.to(device, non_blocking=soon) if self.next_obs is not None else None
        return Rollout(
            **moved,
            final_obs=final,
            extras=extras,
            version=self.version,
            mask=mask,
            start=start,
            next_obs=following,
        )
