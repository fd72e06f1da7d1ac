"""The `[algorithm.h_term]` section, which the algorithms with an actor share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HTermConfig(BaseModel):
    """An add-on to the actor's loss: the actions of the best episodes so far stay likely."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(False, description="Whether the actor's loss has the term.")
    horizon: int = Field(4, ge=1, le=1000, description="Steps of a window, K; the end of its episode cuts it short.")
    trajectories: int = Field(16, ge=1, le=65536, description="Windows of one gradient step, L.")
    pool: int = Field(
        2, ge=1, le=1000, description="Windows drawn for each one that is taken, the best by K-step return."
    )
    interval: int = Field(2, ge=1, description="Gradient steps of the actor for each one that has the term.")
    weight: float = Field(0.125, ge=0, description="Weight of the term in the actor's loss, lambda_H.")
    discount: float = Field(0.8, gt=0, le=1, description="Discount within a window, g_H.")
    drop_rate: float = Field(
        0.125, ge=0, lt=1, description="Share of the episodes that is dropped each time that min_steps have come in."
    )
    min_steps: int = Field(4096, ge=1, description="Steps of whole episodes that are kept before the term starts.")
    capacity: int = Field(65_536, ge=2, le=2**31 - 1, description="Steps kept; the worst episodes make room.")

    def problems(self, rollout_steps: int) -> dict[str, tuple[str, str]]:
        """Fields that don't fit the rest, as in `AlgorithmConfig.problems`.

        Args:
            rollout_steps: of one rollout, T * N.
        """
        least = 2 * max(rollout_steps, self.min_steps)
        if not self.enabled or self.capacity >= least:
            return {}
        return {
            "h_term.capacity": (
                f"at least {least}: twice min_steps, and twice rollout_length * num_envs",
                "raise algorithm.h_term.capacity, or lower algorithm.h_term.min_steps or algorithm.rollout_length",
            )
        }
