"""The `[algorithm]` sections of the DQN family."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.off_policy import OffPolicyConfig
from erlcli.core.schedule import Schedule


class QLearningConfig(OffPolicyConfig):
    """Q-learning with a replay: what the whole family has in common."""

    epsilon: Schedule = Field(
        Schedule(kind="linear", start=1.0, end=0.05),
        description="Share of random actions; every env tosses its own coin at every step.",
    )
    exploration_fraction: float = Field(
        0.1, gt=0, le=1, description="Share of the budget over which the schedule of epsilon runs; then it stays."
    )
    updates_per_step: float = Field(
        0.25,
        gt=0,
        le=1000,
        description="Gradient steps per env transition after the warm-up; may be a fraction.",
    )
    tau: float = Field(1.0, gt=0, le=1, description="Share of the new weights in a target update; 1 is a hard copy.")
    target_interval: int = Field(250, ge=1, description="Gradient steps between target updates.")
    max_grad_norm: float = Field(10.0, gt=0, description="Gradients are scaled down to this norm.")


class DQNConfig(QLearningConfig):
    """Deep Q-network (arXiv 1312.5602, with the target network of its journal version)."""

    implementation: ClassVar[str] = "erlcli.algorithms.dqn:DQN"

    name: Literal["dqn"] = Field("dqn", description="Algorithm.")


class DoubleDQNConfig(QLearningConfig):
    """Double DQN (arXiv 1509.06461)."""

    implementation: ClassVar[str] = "erlcli.algorithms.dqn:DoubleDQN"

    name: Literal["double_dqn"] = Field("double_dqn", description="Algorithm.")


class DuelingDQNConfig(QLearningConfig):
    """DQN with a dueling network (arXiv 1511.06581)."""

    implementation: ClassVar[str] = "erlcli.algorithms.dqn:DuelingDQN"

    name: Literal["dueling_dqn"] = Field("dueling_dqn", description="Algorithm.")


class D3QNConfig(QLearningConfig):
    """Dueling double DQN."""

    implementation: ClassVar[str] = "erlcli.algorithms.dqn:D3QN"

    name: Literal["d3qn"] = Field("d3qn", description="Algorithm.")
