"""Whether a written file acts like the policy that it was made from.

Continuous actions are compared in the env's units. Discrete ones are compared by their scores (logits, Q-values), since
two different policies may well choose alike on every observation that is tried; where choices differ, it must be a tie.

Dimension letters: B observations, A action dimensions flattened, C choices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from erlcli.core.normalize import ObsNormalizer
from erlcli.core.policy import Policy
from erlcli.core.policy_ensemble import DiscreteEnsemble
from erlcli.core.types import ActionSpace, Box, Discrete, EnvSpec
from erlcli.errors import ErlError
from erlcli.export.greedy import MASK, STATE, GreedyPolicy, Port, outputs, taken_apart

Array = NDArray[Any]


class Outputs(NamedTuple):
    """What a policy makes of a batch."""

    action: Array  # (B, *action)
    scores: Array | None  # (B, ..., C) where actions are discrete
    state: Array | None = None  # (B, S) the next one, of a policy with a memory


Runtime = Callable[..., Outputs]  # takes obs, and other inputs by keyword

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
    obs, others = _clear(greedy, observations(greedy, spec)), other_inputs(greedy.policy, spec)
    wanted, found = run(torch_runtime(greedy, spec), obs, others), run(runtime, obs, others)
    _check_form(outputs(greedy.policy, spec)[0], wanted[0], found[0], what)
    # What rounding alone may do depends on the network: every weight is moved by one unit in its last place.
    moved = run(torch_runtime(_perturbed(greedy), spec), obs, others)
    _compare_states(wanted.state, found.state, moved.state, what)
    if isinstance(spec.action, Box):
        return _compare_actions(spec.action, wanted[0], found[0], moved[0], what)
    return _compare_choices(spec.action, wanted, found, moved, what)


def observations(greedy: nn.Module, spec: EnvSpec) -> Array:
    """Observations to compare on, (B, *obs), always the same for the same policy.

    Uniform within bounds where there are any, else normal; every second one is drawn around the normaliser's
    statistics, if there is one. A few lie at the very bounds, and far outside what the normaliser knows.
    """
    rng = np.random.default_rng(SEED)
    if not spec.obs.parts:
        return _drawn(greedy, spec.obs, rng)
    rows = np.zeros((sum(BATCHES), *spec.obs.shape), dtype=np.uint8)
    for part in spec.obs.parts:
        data = _drawn(greedy, part.space, rng).reshape(len(rows), -1).view(np.uint8)
        rows[:, part.offset : part.offset + data.shape[1]] = data
    return rows


def _drawn(greedy: nn.Module, space: Box, rng: np.random.Generator) -> Array:
    count = sum(BATCHES)
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


def other_inputs(policy: Policy, spec: EnvSpec) -> dict[str, Array]:
    """Masks and states to compare on by name, as many as observations; every second state is that of a start."""
    rng, count = np.random.default_rng(SEED + 1), sum(BATCHES)
    found: dict[str, Array] = {}
    if policy.masked:
        nvec = (spec.mask,) if isinstance(spec.action, Discrete) else getattr(spec.action, "nvec", ())
        mask = rng.random((count, spec.mask)) < 0.5
        for start, choices in zip(np.cumsum([0, *nvec[:-1]]), nvec, strict=True):
            mask[np.arange(count), start + rng.integers(choices, size=count)] = True
        found[MASK] = mask
    if policy.state_size:
        state = rng.uniform(-1.0, 1.0, (count, policy.state_size)).astype(np.float32)
        state[::2] = 0.0
        found[STATE] = state
    return found


def _clear(greedy: GreedyPolicy, obs: Array) -> Array:
    """The observations; for a vote, without those at which rounding may change a member's mind, and with it a count."""
    if not isinstance(greedy.policy, DiscreteEnsemble):
        return obs
    clear = greedy.policy.is_clear(torch.from_numpy(obs)).numpy()
    if not clear.any():
        return obs
    return np.where(clear.reshape(-1, *(1,) * (obs.ndim - 1)), obs, obs[np.flatnonzero(clear)[0]])


def run(runtime: Runtime, obs: Array, others: dict[str, Array] | None = None) -> Outputs:
    """All observations, and what goes with them, in batches of several sizes."""
    stops = np.cumsum(BATCHES)
    rows = [slice(stop - size, stop) for stop, size in zip(stops, BATCHES, strict=True)]
    parts = [Outputs(*runtime(obs[r], **{k: v[r] for k, v in (others or {}).items()})) for r in rows]
    whole = [
        np.concatenate([x for x in column if x is not None]) if all(x is not None for x in column) else None
        for column in zip(*parts, strict=True)
    ]
    if whole[0] is None:
        raise ErlError("a runtime gives no actions")
    return Outputs(whole[0], whole[1], whole[2])


def torch_runtime(module: nn.Module, spec: EnvSpec | None = None) -> Runtime:
    """Runs a module, and looks at the scores that its last argmax chose from.

    Args:
        module: takes observations and what else there is by name.
        spec: of observations that it takes by parts; None where it takes them whole.
    """

    def act(obs: Array, **others: Array) -> Outputs:
        given: Any = torch.from_numpy(obs)
        if spec is not None and spec.obs.parts:
            given = {name: torch.from_numpy(part) for name, part in taken_apart(spec, obs).items()}
        with torch.no_grad(), _ArgmaxInputs() as seen:  # type: ignore[no-untyped-call]
            result = module(given, **{name: torch.from_numpy(x) for name, x in others.items()})
        action, state = result if isinstance(result, (tuple, list)) else (result, None)
        return Outputs(action.numpy(), seen.scores, state.numpy() if state is not None else None)

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


def _compare_states(wanted: Array | None, found: Array | None, moved: Array | None, what: str) -> None:
    if wanted is None or moved is None:
        return
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise _mismatch(what, "no states, or of another form", f"{wanted.dtype} {list(wanted.shape)}")
    rounding = float(np.abs(moved - wanted).max())
    allowed = max(TOLERANCE * max(1.0, float(np.abs(wanted).max())), _ROUNDINGS * rounding)
    _judge(np.asarray([np.abs(found - wanted).max()]), np.asarray([allowed]), "state", what)


def _check_form(port: Port, wanted: Array, found: Array, what: str) -> None:
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
