"""What the `[algorithm]` sections of all off-policy algorithms have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.core.schedule import Schedule, constant


class ReplayConfig(BaseModel):
    """Which transitions are kept, and how they are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capacity: int = Field(
        1_000_000, ge=1, le=2**31 - 1, description="Transitions kept, over all envs; the oldest make room."
    )
    device: Literal["learner", "cpu"] = Field(
        "learner",
        description="Where they are kept: on the learner's device, or in host memory, pinned on the way to a GPU.",
    )
    prioritized: bool = Field(
        False, description="Draw in proportion to TD errors (arXiv 1511.05952) instead of uniformly."
    )
    alpha: float = Field(0.6, ge=0, le=1, description="Exponent of the priorities; 0 is uniform.")
    beta: Schedule = Field(
        Schedule(kind="linear", start=0.4, end=1.0),
        description="Exponent of the importance weights; 1 corrects the draw in full.",
    )
    priority_floor: float = Field(
        1e-6, gt=0, description="Added to each TD error, so that every transition can be drawn."
    )


class OffPolicyConfig(AlgorithmConfig):
    """Learning from a replay of transitions."""

    rollout_length: int = Field(
        8, ge=1, le=1_000_000, description="Steps that each env takes between two rounds of updates, T."
    )
    batch_size: int = Field(256, ge=2, le=1_000_000, description="Transitions of one gradient step.")
    learning_rate: Schedule = Field(constant(3e-4), description="Adam's step size.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    n_step: int = Field(1, ge=1, le=100, description="Rewards summed before bootstrapping; episode ends cut it short.")
    warmup_steps: int = Field(1000, ge=0, description="Env transitions with random actions, before the first update.")
    updates_per_step: float = Field(
        1.0, gt=0, le=1000, description="Gradient steps per env transition after the warm-up; fractions add up exactly."
    )
    tau: float = Field(0.005, gt=0, le=1, description="Share of the new weights in a target update; 1 is a hard copy.")
    target_interval: int = Field(1, ge=1, description="Gradient steps between target updates.")
    max_grad_norm: float | None = Field(
        None, gt=0, description="Gradients are scaled down to this norm; unset leaves them as they are."
    )
    reward_scale: float = Field(1.0, gt=0, description="Rewards are multiplied by this before they are learnt from.")
    adam_eps: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    replay: ReplayConfig = Field(ReplayConfig(), description="Which transitions are kept, and how they are drawn.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """A rollout has to fit in the replay."""
        rows = self.rollout_length * num_envs
        if self.replay.capacity < rows:
            return {
                "replay.capacity": (
                    f"at least rollout_length * num_envs = {self.rollout_length} * {num_envs} = {rows}",
                    "raise algorithm.replay.capacity, or lower algorithm.rollout_length or env.num_envs",
                )
            }
        return {}

    def gradient_steps(self, steps: int, num_envs: int) -> float:
        """See `AlgorithmConfig.gradient_steps`."""
        return max(0, steps - self.warmup_steps) * self.updates_per_step

    def rows(self, num_envs: int) -> int:
        """See `AlgorithmConfig.rows`."""
        return self.batch_size
