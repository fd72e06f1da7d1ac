"""The `[algorithm]` section of SAC for discrete actions."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.off_policy import OffPolicyConfig


class DiscreteSACConfig(OffPolicyConfig):
    """Soft actor-critic for discrete actions (arXiv 1910.07207)."""

    implementation: ClassVar[str] = "erlcli.algorithms.sac_discrete:DiscreteSAC"
    fixed: ClassVar[tuple[str, ...]] = ("name", "learn_alpha")

    name: Literal["sac_discrete"] = Field("sac_discrete", description="Algorithm.")
    alpha: float = Field(1.0, gt=0, description="Temperature, the weight of the entropy, at the start.")
    learn_alpha: bool = Field(True, description="Adapt the temperature so that the entropy nears its target.")
    target_entropy_share: float = Field(
        0.98, gt=0, lt=1, description="Entropy that the temperature aims at, as a share of that of a uniform choice."
    )
