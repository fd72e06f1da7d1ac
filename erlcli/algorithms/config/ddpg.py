"""The `[algorithm]` section of DDPG, and what it shares with TD3."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.algorithms.config.off_policy import OffPolicyConfig
from erlcli.core.schedule import Schedule, constant


class DeterministicConfig(OffPolicyConfig):
    """What DDPG and TD3 have in common."""

    noise: Literal["gaussian", "ou"] = Field(
        "gaussian", description="Exploration noise: independent at each step, or with a memory (Ornstein-Uhlenbeck)."
    )
    noise_std: Schedule = Field(
        constant(0.1), description="Its standard deviation in each dimension; 1 is half the distance of the bounds."
    )
    ou_theta: float = Field(
        0.15, gt=0, le=1, description="Pull of the Ornstein-Uhlenbeck noise towards 0 in one step; 1 has no memory."
    )
    h_term: HTermConfig = Field(HTermConfig(), description="Keeps the actions of the best episodes likely.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """See `OffPolicyConfig.problems`."""
        return super().problems(num_envs) | self.h_term.problems(self.rollout_length * num_envs)


class DDPGConfig(DeterministicConfig):
    """Deep deterministic policy gradient (arXiv 1509.02971)."""

    implementation: ClassVar[str] = "erlcli.algorithms.ddpg:DDPG"

    name: Literal["ddpg"] = Field("ddpg", description="Algorithm.")
