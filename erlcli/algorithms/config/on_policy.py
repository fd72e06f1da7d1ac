"""What the `[algorithm]` sections of PPO and A2C have in common."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.core.schedule import Schedule, constant


class OnPolicyConfig(AlgorithmConfig):
    """Learning from the newest rollout, with actor, critic and generalised advantages."""

    remembers: ClassVar[bool] = True
    distributes: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ("name", "std", "squash")

    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="0 is one-step TD, 1 is Monte Carlo.")
    normalize_advantage: bool = Field(True, description="Advantages of a rollout to mean 0 and std 1.")
    sequence_length: int | None = Field(
        None,
        ge=1,
        description="With a recurrent network: steps over which gradients go back in time, at most; longer stretches "
        "of an episode are cut, which is faster by as much. Unset goes back to the start of the rollout or episode.",
    )
    entropy_coef: Schedule = Field(constant(0.0), description="Weight of the entropy bonus.")
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    max_grad_norm: float = Field(0.5, gt=0, description="Gradients are scaled down to this norm.")
    log_std: float = Field(0.0, ge=-10, le=2, description="Initial log std of continuous actions.")
    std: Literal["global", "state", "sde"] = Field(
        "global",
        description="Std of continuous actions: parameters of their own, a second output of the network, or "
        "generalised state-dependent exploration (arXiv 2005.05719), whose log_std is rather -2.",
    )
    sde_interval: int | None = Field(
        None, ge=1, description='Steps for which std = "sde" keeps its noise weights; unset for a whole rollout.'
    )
    squash: bool = Field(False, description="Bound continuous actions by tanh instead of clipping.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """Options of the distribution of actions that exclude each other."""
        if self.squash and self.std != "global":
            return {"squash": (f'false where algorithm.std = "{self.std}"', "set one of them only: squash, or std")}
        if self.sde_interval is not None and self.std != "sde":
            return {"sde_interval": ('nothing where algorithm.std is not "sde"', 'set algorithm.std = "sde"')}
        return {}
