"""The `[algorithm]` section of PPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.core.schedule import Schedule, constant


class PPOConfig(AlgorithmConfig):
    """Proximal policy optimisation (arXiv 1707.06347), clipped variant."""

    implementation: ClassVar[str] = "erlcli.algorithms.ppo:PPO"

    name: Literal["ppo"] = Field("ppo", description="Algorithm.")
    rollout_length: int = Field(
        2048, ge=1, le=1_000_000, description="Steps that each env takes between two updates, T."
    )
    batch_size: int = Field(64, ge=2, description="Rows of one minibatch; at most rollout_length * num_envs.")
    epochs: int = Field(10, ge=1, le=1000, description="Passes over each rollout.")
    learning_rate: Schedule = Field(constant(3e-4), description="Adam's step size.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="0 is one-step TD, 1 is Monte Carlo.")
    clip_range: Schedule = Field(constant(0.2), description="Bound on the probability ratio, epsilon.")
    clip_value: float | None = Field(
        None, gt=0, description="Bound on the change of the value estimate in one update; unset for no bound."
    )
    entropy_coef: Schedule = Field(constant(0.0), description="Weight of the entropy bonus.")
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    max_grad_norm: float = Field(0.5, gt=0, description="Gradients are scaled down to this norm.")
    target_kl: float | None = Field(
        None, gt=0, description="Ends the epochs of a rollout early once the KL passes 1.5 times this."
    )
    normalize_advantage: bool = Field(True, description="Advantages of a rollout to mean 0 and std 1.")
    log_std: float = Field(0.0, ge=-10, le=2, description="Initial log std of continuous actions.")
    squash: bool = Field(False, description="Bound continuous actions by tanh instead of clipping.")
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon.")
    h_term: HTermConfig = Field(HTermConfig(), description="Keeps the actions of the best episodes likely.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """A minibatch has to fit in the rollout that it is drawn from."""
        rows = self.rollout_length * num_envs
        if self.batch_size > rows:
            return {
                "batch_size": (
                    f"at most rollout_length * num_envs = {self.rollout_length} * {num_envs} = {rows}",
                    "lower algorithm.batch_size, or raise algorithm.rollout_length or env.num_envs",
                )
            }
        return self.h_term.problems(rows)
