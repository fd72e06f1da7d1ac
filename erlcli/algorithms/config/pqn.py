"""The `[algorithm]` section of PQN."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.base import AlgorithmConfig
from erlcli.core.schedule import Schedule


class PQNConfig(AlgorithmConfig):
    """Parallelised Q-network (arXiv 2407.04811): Q-learning on many envs, without replay and target network."""

    implementation: ClassVar[str] = "erlcli.algorithms.pqn:PQN"
    distributes: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ("name", "layer_norm")

    name: Literal["pqn"] = Field("pqn", description="Algorithm.")
    rollout_length: int = Field(32, ge=1, le=1_000_000, description="Steps that each env takes between two updates, T.")
    batch_size: int = Field(128, ge=2, description="Rows of one minibatch; at most rollout_length * num_envs.")
    epochs: int = Field(2, ge=1, le=1000, description="Passes over each rollout.")
    learning_rate: Schedule = Field(Schedule(kind="linear", start=2.5e-4, end=0.0), description="Adam's step size.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    q_lambda: float = Field(0.65, ge=0, le=1, description="0 is one-step Q-learning, 1 sums rewards to the end.")
    epsilon: Schedule = Field(
        Schedule(kind="linear", start=1.0, end=0.05),
        description="Share of random actions; every env tosses its own coin at every step.",
    )
    exploration_fraction: float = Field(
        0.2, gt=0, le=1, description="Share of the budget over which the schedule of epsilon runs; then it stays."
    )
    max_grad_norm: float = Field(10.0, gt=0, description="Gradients are scaled down to this norm.")
    layer_norm: bool = Field(
        True, description="Layer norm even if network.layer_norm is off; without it nothing holds the targets."
    )
    reward_scale: float = Field(1.0, gt=0, description="Rewards are multiplied by this before they are learnt from.")
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon.")

    def gradient_steps(self, steps: int, num_envs: int) -> float:
        """See `AlgorithmConfig.gradient_steps`."""
        return self.epochs * steps / self.batch_size

    def rows(self, num_envs: int) -> int:
        """See `AlgorithmConfig.rows`."""
        return self.batch_size

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
        return {}
