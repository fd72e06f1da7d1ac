"""The `[algorithm]` section of quantile regression DQN."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.dqn import QLearningConfig


class QRDQNConfig(QLearningConfig):
    """Quantile regression DQN (arXiv 1710.10044)."""

    implementation: ClassVar[str] = "erlcli.algorithms.qrdqn:QRDQN"
    fixed: ClassVar[tuple[str, ...]] = ("name", "quantiles")

    name: Literal["qrdqn"] = Field("qrdqn", description="Algorithm.")
    quantiles: int = Field(50, ge=1, le=1000, description="Quantiles of the return for each action.")
    kappa: float = Field(1.0, gt=0, description="Error from which on the quantile loss is linear.")
