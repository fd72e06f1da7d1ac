"""Whether a written file acts like the policy that it was made from.

Continuous actions are compared in the env's units. Discrete ones are compared by their scores (logits, Q-values), since
two different policies may well choose alike on every observation that is tried; where choices differ, it must be a tie.

Dimension letters: B observations, A action dimensions flattened, C choices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from erlcli.core.normalize import ObsNormalizer
from erlcli.core.policy_ensemble import DiscreteEnsemble
from erlcli.core.types import ActionSpace, Box, Discrete, EnvSpec
from erlcli.errors import ErlError
from erlcli.export.greedy import GreedyPolicy, ports

Array = NDArray[Any]
Outputs = tuple[Array, Array | None]  # actions (B, *action), and scores (B, ..., C) where actions are discrete
Runtime = Callable[[Array], Outputs]

BATCHES = (1, 1, 1, 2, 3, 7, 17, 64, 128, 256, 520)  # of 1,000 observations together
TOLERANCE = 1e-5  # of an action dimension's half range, or of the largest score
SEED = 0
_BOUND = 1e6  # bounds beyond this are "no bound" written as a number
_PADDING = -1e8  # scores below this stand for choices that do not exist
_ROUNDINGS = 8.0  # how often more than its own rounding error a float32 network may be off


@dataclass(frozen=True)
class Parity:
    """How far a file is from its policy.

    Attributes:
        max_error: largest absolute error, of actions in env units, or of scores where actions are discrete.
        compared: `actions` or `scores`.
        differing_actions: discrete actions that differ, all of them ties; None for continuous ones.
        observations: how many were tried.
    """

    max_error: float
    compared: str
    differing_actions: int | None
    observations: int


def check(greedy: GreedyPolicy, spec: EnvSpec, runtime: Runtime, what: str) -> Parity:
    """Compare a file with its policy.

    Args:
        greedy: the policy.
        spec: its spaces.
        runtime: runs the file.
        what: names the file in messages.

    Raises:
        ErlError: they differ by more than rounding.
    """
    obs = _clear(greedy, observations(greedy, spec))
    wanted, found = run(torch_runtime(greedy), obs), run(runtime, obs)
    _check_form(spec, wanted[0], found[0], what)
    # What rounding alone may do depends on the network: every weight is moved by one unit in its last place.
    moved = run(torch_runtime(_perturbed(greedy)), obs)
    if isinstance(spec.action, Box):
        return _compare_actions(spec.action, wanted[0], found[0], moved[0], what)
    return _compare_choices(spec.action, wanted, found, moved, what)


def observations(greedy: nn.Module, spec: EnvSpec) -> Array:
    """Observations to compare on, (B, *obs), always the same for the same policy.

    Uniform within bounds where there are any, else normal; every second one is drawn around the normaliser's
    statistics, if there is one. A few lie at the very bounds, and far outside what the normaliser knows.
    """
    space, count = spec.obs, sum(BATCHES)
    rng = np.random.default_rng(SEED)
    low, high = (np.asarray(bound).reshape(space.shape) for bound in (space.low, space.high))
    bounded = (np.abs(low) < _BOUND) & (np.abs(high) < _BOUND)
    drawn = rng.standard_normal((count, *space.shape))
    uniform = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), drawn.shape)
    obs = np.where(bounded, uniform, drawn)
    obs[-1], obs[-2] = np.where(bounded, low, drawn[-1]), np.where(bounded, high, drawn[-2])
    found = [m for m in greedy.modules() if isinstance(m, ObsNormalizer) and tuple(m.shift.shape) == space.shape]
    if found:
        mean, std = found[0].shift.numpy(), 1.0 / found[0].scale.numpy()
        obs[::2] = mean + std * drawn[::2]
        obs[-4] = mean + 100.0 * std * np.sign(drawn[-4])  # meets the normaliser's clipping
    obs = np.clip(obs, low, high)
    return (np.rint(obs) if space.dtype == "uint8" else obs).astype(space.dtype)


def _clear(greedy: GreedyPolicy, obs: Array) -> Array:
    """The observations; for a vote, without those at which rounding may change a member's mind, and with it a count."""
    if not isinstance(greedy.policy, DiscreteEnsemble):
        return obs
    clear = greedy.policy.is_clear(torch.from_numpy(obs)).numpy()
    if not clear.any():
        return obs
    return np.where(clear.reshape(-1, *(1,) * (obs.ndim - 1)), obs, obs[np.flatnonzero(clear)[0]])


def run(runtime: Runtime, obs: Array) -> Outputs:
    """All observations in batches of several sizes."""
    outputs = [runtime(batch) for batch in np.split(obs, np.cumsum(BATCHES)[:-1])]
    scores = [score for _, score in outputs if score is not None]
    whole = np.concatenate(scores) if len(scores) == len(outputs) else None
    return np.concatenate([action for action, _ in outputs]), whole


def torch_runtime(module: nn.Module) -> Runtime:
    """Runs a module, and looks at the scores that its last argmax chose from."""

    def act(obs: Array) -> Outputs:
        with torch.no_grad(), _ArgmaxInputs() as seen:  # type: ignore[no-untyped-call]
            action = module(torch.from_numpy(obs))
        return action.numpy(), seen.scores

    return act


class _ArgmaxInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what the last argmax inside the block was taken of."""

    scores: Array | None = None

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if func is torch.ops.aten.argmax.default:
            self.scores = args[0].numpy(force=True)
        return func(*args, **(kwargs or {}))


def _perturbed(greedy: GreedyPolicy) -> GreedyPolicy:
    moved = copy.deepcopy(greedy)
    generator = torch.Generator().manual_seed(SEED)
    for parameter in moved.parameters():
        signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
        parameter.mul_(1.0 + signs * torch.finfo(parameter.dtype).eps)
    return moved


def _check_form(spec: EnvSpec, wanted: Array, found: Array, what: str) -> None:
    port = ports(spec)[1]
    if not np.isfinite(wanted).all():
        raise ErlError(
            f"{what}: the policy itself gives NaN or infinite actions",
            expected="finite actions",
            remedy="another --checkpoint",
        )
    if found.dtype != port.dtype or found.shape != wanted.shape:
        raise ErlError(
            f"{what}: gives actions of another form",
            expected=str(port),
            found=f"{found.dtype} {list(found.shape)} for {len(wanted)} observations",
        )


def _compare_actions(space: Box, wanted: Array, found: Array, moved: Array, what: str) -> Parity:
    count = len(wanted)
    wanted, found, moved = (x.reshape(count, -1).astype(np.float64) for x in (wanted, found, moved))  # (B, A)
    low, high = np.asarray(space.low), np.asarray(space.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    magnitude = np.abs(wanted).max(axis=0)
    scale = np.where(
        bounded, (np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0)) / 2, np.maximum(magnitude, 1)
    )
    rounding = np.maximum(np.abs(moved - wanted).max(axis=0), np.finfo(np.float32).eps * magnitude)
    allowed = np.maximum(TOLERANCE * scale, _ROUNDINGS * rounding)  # (A,)
    error = np.abs(found - wanted).max(axis=0)
    _judge(error, allowed, "action dimension", what)
    return Parity(float(error.max()), "actions", None, count)


def _compare_choices(space: ActionSpace, wanted: Outputs, found: Outputs, moved: Outputs, what: str) -> Parity:
    count = len(wanted[0])
    differ = (wanted[0] != found[0]).reshape(count, -1)  # (B, A)
    scores = wanted[1]
    if scores is None or found[1] is None or moved[1] is None:
        if differ.any():
            raise _mismatch(what, f"{int(differ.sum())} actions differ, and their scores can't be seen")
        return Parity(0.0, "actions", 0, count)
    if scores.shape != found[1].shape:
        raise _mismatch(what, f"scores of shape {list(found[1].shape)}, not {list(scores.shape)}")
    real = scores > _PADDING
    scores, other, nearby = (np.where(real, x, 0.0).astype(np.float64) for x in (scores, found[1], moved[1]))
    allowed = max(TOLERANCE * max(1.0, float(np.abs(scores).max())), _ROUNDINGS * float(np.abs(nearby - scores).max()))
    error = float(np.abs(other - scores).max())
    _judge(np.asarray([error]), np.asarray([allowed]), "score", what)
    rows = np.where(real, scores, -np.inf).reshape(count, differ.shape[1], -1)  # (B, A, C)
    start = [space.start] if isinstance(space, Discrete) else getattr(space, "start", ()) or 0
    chosen = found[0].reshape(count, -1).astype(np.int64) - np.asarray(start)
    if (chosen < 0).any() or (chosen >= rows.shape[2]).any():
        raise _mismatch(what, "actions outside the action space")
    gap = rows.max(axis=2) - np.take_along_axis(rows, chosen[..., None], axis=2)[..., 0]
    if (gap > 2 * allowed).any():
        raise _mismatch(what, f"{int((gap > 2 * allowed).sum())} actions differ that are no ties")
    return Parity(error, "scores", int(differ.sum()), count)


def _judge(error: Array, allowed: Array, unit: str, what: str) -> None:
    bad = ~(error <= allowed)  # NaN is bad too
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise _mismatch(what, f"an error of {error[i]:.3g} in {unit} {i}", f"at most {allowed[i]:.3g}")


def _mismatch(what: str, found: str, expected: str = "the actions of the policy that it was made from") -> ErlError:
    return ErlError(
        f"{what}: does not act like the policy; nothing was kept",
        expected=expected,
        found=found,
        remedy="another --format, and please report this: it is a defect of the exporter",
    )
