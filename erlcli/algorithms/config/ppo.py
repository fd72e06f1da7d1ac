"""The `[algorithm]` section of PPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.algorithms.config.on_policy import OnPolicyConfig
from erlcli.core.schedule import Schedule, constant


class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (arXiv 1707.06347), clipped variant."""

    implementation: ClassVar[str] = "erlcli.algorithms.ppo:PPO"

    name: Literal["ppo"] = Field("ppo", description="Algorithm.")
    rollout_length: int = Field(
        2048, ge=1, le=1_000_000, description="Steps that each env takes between two updates, T."
    )
    batch_size: int = Field(
        64,
        ge=2,
        description="Rows of one minibatch; at most rollout_length * num_envs. With a recurrent network minibatches "
        "are whole sequences, so that they hold about as many.",
    )
    epochs: int = Field(10, ge=1, le=1000, description="Passes over each rollout.")
    learning_rate: Schedule = Field(constant(3e-4), description="Adam's step size.")
    adaptive_kl: float | None = Field(
        None,
        gt=0,
        description="KL of a rollout's last epoch that is wanted: above twice it the step size is halved, below half "
        "of it doubled, from learning_rate on. Unset follows learning_rate.",
    )
    min_learning_rate: float = Field(1e-5, gt=0, description="Smallest step size of adaptive_kl.")
    max_learning_rate: float = Field(1e-2, gt=0, description="Largest step size of adaptive_kl.")
    clip_range: Schedule = Field(constant(0.2), description="Bound on the probability ratio, epsilon.")
    clip_value: float | None = Field(
        None, gt=0, description="Bound on the change of the value estimate in one update; unset for no bound."
    )
    target_kl: float | None = Field(
        None, gt=0, description="Ends the epochs of a rollout early once the KL passes 1.5 times this."
    )
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon.")
    h_term: HTermConfig = Field(HTermConfig(), description="Keeps the actions of the best episodes likely.")

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
        if self.adaptive_kl is None:
            return super().problems(num_envs) | self.h_term.problems(rows)
        low, high = self.min_learning_rate, self.max_learning_rate
        if self.learning_rate.kind != "constant" or not low <= self.learning_rate.start <= high:
            return {
                "learning_rate": (
                    f"with adaptive_kl a number in min_learning_rate ... max_learning_rate, {low:g} ... {high:g}",
                    "a number within these bounds, or no adaptive_kl",
                )
            }
        return super().problems(num_envs) | self.h_term.problems(rows)
