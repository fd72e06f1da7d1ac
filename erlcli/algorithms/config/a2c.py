"""The `[algorithm]` section of A2C."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.on_policy import OnPolicyConfig
from erlcli.core.schedule import Schedule, constant


class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic (arXiv 1602.01783), with all envs stepped together."""

    implementation: ClassVar[str] = "erlcli.algorithms.a2c:A2C"

    name: Literal["a2c"] = Field("a2c", description="Algorithm.")
    rollout_length: int = Field(5, ge=1, le=1_000_000, description="Steps that each env takes between two updates, T.")
    learning_rate: Schedule = Field(constant(7e-4), description="RMSProp's step size.")
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="1 is the paper's sum of the rollout's rewards, 0 is one-step TD."
    )
    normalize_advantage: bool = Field(False, description="Advantages of a rollout to mean 0 and std 1.")
    rms_decay: float = Field(0.99, ge=0, lt=1, description="RMSProp's decay of the mean of squared gradients.")
    rms_eps: float = Field(1e-5, gt=0, description="Added to the root of that mean.")

    def gradient_steps(self, steps: int, num_envs: int) -> float:
        """See `AlgorithmConfig.gradient_steps`."""
        return steps / self.rows(num_envs)

    def rows(self, num_envs: int) -> int:
        """See `AlgorithmConfig.rows`."""
        return self.rollout_length * num_envs
