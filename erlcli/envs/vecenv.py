"""The protocol of every backend, and the way to one."""

from __future__ import annotations

from typing import Protocol

from torch import Generator, Tensor

from erlcli.core.compiled import Compiler
from erlcli.core.types import EnvSpec, Step
from erlcli.envs.config import EnvConfig, choose_backend
from erlcli.envs.position import PositionLog


class VecEnv(Protocol):
    """N environments stepped together; tensors live on `spec.device`.

    Attributes:
        spec: spaces, N, time limit, device.
        generator: of all that a step draws, where `spec.capturable`; else None.
    """

    spec: EnvSpec
    generator: Generator | None

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """Start every environment anew.

        Args:
            seed: of all N environments; each derives its own from it and its index.
            first_index: index of the first environment among those of all workers.

        Returns:
            (N, *obs), valid until the next call.

        Raises:
            EnvError: an environment failed.
        """

    def first_mask(self) -> Tensor | None:
        """(N, C) bool, the choices that are legal after `reset`; None where `spec.mask` is 0.

        Those after a step are in `Step.mask`.
        """

    def step(self, action: Tensor) -> Step:
        """Step with (N, *action) in the policy's own units.

        Returns:
            What happened, in tensors that are valid until the next call.

        Raises:
            EnvError: an environment failed.
        """

    def verify(self) -> None:
        """Called after each rollout: whether it gave finite numbers, where `step` does not look itself.

        A GPU tells of the rollout before, while it works on this one.

        Raises:
            EnvError: they did not.
        """

    def close(self) -> None:
        """Release everything; twice is fine."""


def make_vec_env(config: EnvConfig, position: PositionLog | None = None, compiler: Compiler | None = None) -> VecEnv:
    """The environments of a recipe.

    Args:
        config: of the environments.
        position: told of every call into one of them.
        compiler: compiles steps that are tensor operations; None leaves them to PyTorch.

    Raises:
        RecipeError: there is no such env, or its spaces are of no supported kind.
        EnvError: the env fails while it is made.
    """
    backend, _ = choose_backend(config)
    if backend == "envpool":
        from erlcli.envs.envpool import EnvpoolVecEnv

        return EnvpoolVecEnv(config, position)
    if backend == "torch":
        from erlcli.envs.torch_vec import TorchVecEnv

        return TorchVecEnv(config, position, compiler)
    from erlcli.envs.gymnasium import GymnasiumVecEnv

    return GymnasiumVecEnv(config, position)
