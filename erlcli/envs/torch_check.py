"""Whether a `TorchEnv` returns what it should: looked at once, when its copies are made, so that no step has to.

Dimension letters: N copies.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.types import ActionSpace, Box, Discrete, EnvSpec
from erlcli.envs.spaces import action_space, obs_box
from erlcli.envs.torch_env import State, TorchEnv
from erlcli.errors import EnvError, RecipeError


@torch.no_grad()
def check_methods(env: TorchEnv, spec: EnvSpec, env_id: str) -> State:
    """Call each method once.

    Args:
        env: the copies.
        spec: of them; observations and actions are held against it.
        env_id: for messages.

    Returns:
        First states, as examples of shapes and dtypes.

    Raises:
        EnvError: a method raises, or returns something else than it should.
    """
    check = _Check(env, env_id)
    env.generator.manual_seed(0)
    state = check.state("initial", check.call("initial", env.initial))
    check.tensor("observe", "observations", check.call("observe", env.observe, state), _obs_like(env, spec))
    action = ActionMap(spec.action).to(env.device)(_various_units(spec))
    kept, versions = tuple(tensor.clone() for tensor in state), [tensor._version for tensor in (*state, action)]
    result = check.call("dynamics", env.dynamics, state, action)
    if not isinstance(result, tuple) or len(result) != 3:
        raise check.wrong("dynamics", "(state, reward, terminated)", _kind(result))
    following, reward, terminated = result
    # PyTorch counts changes in place, also those that make no difference here; not those by way of `.data`.
    changed = versions != [tensor._version for tensor in (*state, action)]
    if changed or not all(torch.equal(a, b) for a, b in zip(state, kept, strict=True)):
        found = "a state or an action changed in place"
        raise check.wrong("dynamics", "new tensors, and what it is given left as it is", found)
    check.state("dynamics", following, state)
    check.tensor("dynamics", "rewards", reward, torch.empty(env.num_envs, device=env.device))
    check.tensor("dynamics", "terminated", terminated, torch.empty(env.num_envs, dtype=torch.bool, device=env.device))
    again = check.call("observe", env.observe, following)
    check.tensor("observe", "observations", again, _obs_like(env, spec))
    places = {tensor.untyped_storage().data_ptr() for tensor in state}  # which the next reset writes over
    for name, what, tensor in (
        ("observe", "observations", again),
        ("dynamics", "rewards", reward),
        ("dynamics", "terminated", terminated),
    ):
        if tensor.untyped_storage().data_ptr() in places:
            raise check.wrong(name, f"{what} in memory of their own: .clone()", "a part of the state before the step")
    return state


def spaces_of(env: TorchEnv, env_id: str) -> tuple[Box, ActionSpace]:
    """What one copy shows and takes.

    Raises:
        RecipeError: its spaces are of no supported kind. No wrapper could change that: there are none here.
    """
    if not isinstance(env.observation_space, spaces.Box):
        raise RecipeError(
            f"env.id {env_id}: observation space not supported where environments are tensors",
            expected="Box, float32 or uint8",
            found=str(env.observation_space),
            remedy="concatenate the parts in observe(), numbers of choices as one-hot vectors",
        )
    obs = obs_box(env.observation_space, env_id)
    try:
        return obs, action_space(env.action_space, env_id)
    except RecipeError as error:
        error.remedy = "declare one of those, and make of its actions in dynamics() what the environment needs"
        raise


def _obs_like(env: TorchEnv, spec: EnvSpec) -> Tensor:
    return torch.empty(env.num_envs, *spec.obs.shape, dtype=getattr(torch, spec.obs.dtype), device=env.device)


def some_units(spec: EnvSpec) -> Tensor:
    """(N, *action) in a policy's units: the middle of bounds, or the first choice."""
    if isinstance(spec.action, Box):
        return torch.zeros(spec.num_envs, spec.action.size, device=spec.device)
    choices = () if isinstance(spec.action, Discrete) else (len(spec.action.nvec),)
    return torch.zeros(spec.num_envs, *choices, dtype=torch.int64, device=spec.device)


def _various_units(spec: EnvSpec) -> Tensor:
    """The same, none of them 0 where there is another choice: an action of 0 leaves too much as it is."""
    if isinstance(spec.action, Box):
        return some_units(spec) + 0.5
    counts = spec.action.n if isinstance(spec.action, Discrete) else torch.tensor(spec.action.nvec, device=spec.device)
    return (some_units(spec) + 1) % counts


class _Check:
    """Failures in the user's words."""

    def __init__(self, env: TorchEnv, env_id: str) -> None:
        self.env, self.env_id = env, env_id

    def call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it returns
        try:
            return method(*arguments)
        except Exception as error:
            raise EnvError(
                f"env.id {self.env_id}: {name}() raised {type(error).__name__}: {error}",
                expected="tensor operations over all copies",
                details={"traceback": "".join(traceback.format_exception(error))},
            ) from error

    def state(self, name: str, found: Any, like: State | None = None) -> State:  # noqa: ANN401
        """A tuple of tensors (N, ...), each as the one in `like`."""
        expected = "a tuple of tensors whose first axis is the copies"
        if not isinstance(found, tuple) or not all(isinstance(tensor, Tensor) for tensor in found):
            raise self.wrong(name, expected, _kind(found))
        if like is not None and len(found) != len(like):
            raise self.wrong(name, f"a state of {len(like)} tensors, as initial() returns it", f"{len(found)}")
        for i, tensor in enumerate(found):
            if like is not None:
                self.tensor(name, f"state[{i}]", tensor, like[i])
            elif tensor.ndim == 0 or len(tensor) != self.env.num_envs or tensor.device.type != self.env.device.type:
                wanted = f"{expected}, {self.env.num_envs} of them, on {self.env.device}"
                raise self.wrong(name, wanted, f"state[{i}] is {_kind(tensor)}")
        return found

    def tensor(self, name: str, what: str, found: Any, like: Tensor) -> None:  # noqa: ANN401
        """A tensor of the shape, dtype and device of `like`."""
        alike = isinstance(found, Tensor) and (found.shape, found.dtype, found.device) == (
            like.shape,
            like.dtype,
            like.device,
        )
        if not alike:
            raise self.wrong(name, f"{what} as {_kind(like)}", _kind(found))

    def wrong(self, name: str, expected: str, found: str) -> EnvError:
        return EnvError(
            f"env.id {self.env_id}: {type(self.env).__name__}.{name}() returned something else than it should",
            expected=expected,
            found=found,
            remedy=f"mend {name}(); its docstring in erlcli.envs.torch_env.TorchEnv says what is wanted",
        )


def _kind(value: Any) -> str:  # noqa: ANN401 - whatever came
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')} on {value.device}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"one {type(value).__name__}"
