"""The `[algorithm]` section of TQC."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.sac import SoftConfig


class TQCConfig(SoftConfig):
    """Truncated quantile critics (arXiv 2005.04269): SAC on the distribution of returns, its top cut off."""

    implementation: ClassVar[str] = "erlcli.algorithms.tqc:TQC"
    fixed: ClassVar[tuple[str, ...]] = (*SoftConfig.fixed, "quantiles")

    name: Literal["tqc"] = Field("tqc", description="Algorithm.")
    quantiles: int = Field(25, ge=1, le=1000, description="Quantiles of each critic, K.")
    drop: int = Field(2, ge=0, description="Largest quantiles dropped from the target for each critic.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """Some quantiles have to be left."""
        found = super().problems(num_envs)
        if self.drop >= self.quantiles:
            found["drop"] = (
                f"less than algorithm.quantiles = {self.quantiles}",
                "lower algorithm.drop, or raise algorithm.quantiles",
            )
        return found
