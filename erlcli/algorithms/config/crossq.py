"""The `[algorithm]` section of CrossQ."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.sac import SoftConfig
from erlcli.core.schedule import Schedule, constant


class CrossQConfig(SoftConfig):
    """CrossQ (arXiv 1902.05605): SAC with batch-normalised networks and without target networks."""

    implementation: ClassVar[str] = "erlcli.algorithms.crossq:CrossQ"

    name: Literal["crossq"] = Field("crossq", description="Algorithm.")
    learning_rate: Schedule = Field(constant(1e-3), description="Adam's step size.")
    policy_delay: int = Field(3, ge=1, description="Gradient steps of the critics for each one of the actor.")
    norm_warmup: int = Field(
        100_000, ge=0, description="Gradient steps with plain batch norm before batch renormalisation."
    )
