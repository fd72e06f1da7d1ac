"""The `[algorithm]` section of TD3."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.ddpg import DeterministicConfig


class TD3Config(DeterministicConfig):
    """Twin delayed deep deterministic policy gradient (arXiv 1802.09477)."""

    implementation: ClassVar[str] = "erlcli.algorithms.td3:TD3"

    name: Literal["td3"] = Field("td3", description="Algorithm.")
    target_interval: int = Field(2, ge=1, description="Gradient steps between target updates.")
    policy_delay: int = Field(2, ge=1, description="Gradient steps of the critics for each one of the actor.")
    target_noise: float = Field(
        0.2, ge=0, description="Std of the noise on target actions; 1 is half the distance of the bounds."
    )
    target_noise_clip: float = Field(0.5, ge=0, description="Largest magnitude of that noise.")
