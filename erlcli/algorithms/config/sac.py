"""The `[algorithm]` sections of soft actor-critics that differ in their settings: SAC, ModSAC, REDQ, DroQ."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.algorithms.config.off_policy import OffPolicyConfig

Width = Annotated[int, Field(ge=1, le=65536)]


class SoftConfig(OffPolicyConfig):
    """What all soft actor-critics have in common."""

    fixed: ClassVar[tuple[str, ...]] = ("name", "critics", "critic_hidden", "learn_alpha")

    critics: int = Field(2, ge=1, le=100, description="Critics, E.")
    critic_hidden: list[Width] | None = Field(
        None, max_length=64, description="Widths of the critics' hidden layers; unset for network.hidden."
    )
    policy_delay: int = Field(1, ge=1, description="Gradient steps of the critics for each one of the actor.")
    alpha: float = Field(1.0, gt=0, description="Temperature, the weight of the entropy, at the start.")
    learn_alpha: bool = Field(True, description="Adapt the temperature so that the entropy nears target_entropy.")
    target_entropy: float | None = Field(
        None,
        ge=-10_000,
        le=10_000,
        description="Entropy in nats that the temperature aims at; unset for minus the number of dimensions.",
    )
    h_term: HTermConfig = Field(HTermConfig(), description="Keeps the actions of the best episodes likely.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """See `OffPolicyConfig.problems`."""
        return super().problems(num_envs) | self.h_term.problems(self.rollout_length * num_envs)


class EnsembleConfig(SoftConfig):
    """What soft actor-critics with an ensemble of plain critics have in common."""

    fixed: ClassVar[tuple[str, ...]] = (*SoftConfig.fixed, "critic_layer_norm")

    target: Literal["min", "mean", "subset"] = Field(
        "min", description="Target value: min or mean over all critics, or min over a random subset."
    )
    subset: int = Field(2, ge=1, description='Critics of the random subset of target = "subset".')
    actor_value: Literal["min", "mean"] = Field("min", description="What the actor climbs, over all critics.")
    critic_layer_norm: bool = Field(False, description="Layer norm in the critics even if network.layer_norm is off.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the critics' hidden units that are dropped.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """A subset has to be one."""
        found = super().problems(num_envs)
        if self.target == "subset" and self.subset > self.critics:
            found["subset"] = (
                f"at most algorithm.critics = {self.critics}",
                "lower algorithm.subset, or raise algorithm.critics",
            )
        return found


class SACConfig(EnsembleConfig):
    """Soft actor-critic with a learnt temperature (arXiv 1812.05905)."""

    implementation: ClassVar[str] = "erlcli.algorithms.sac:SAC"

    name: Literal["sac"] = Field("sac", description="Algorithm.")


class ModSACConfig(EnsembleConfig):
    """SAC on two time scales: the better the critics fit, the more often the actor learns."""

    implementation: ClassVar[str] = "erlcli.algorithms.sac:ModSAC"

    name: Literal["mod_sac"] = Field("mod_sac", description="Algorithm.")
    loss_memory: float = Field(
        0.995, ge=0, lt=1, description="Share of the old value in the moving average of the critics' loss."
    )


class REDQConfig(EnsembleConfig):
    """Randomised ensembled double Q-learning (arXiv 2101.05982): SAC with many critics and many updates."""

    implementation: ClassVar[str] = "erlcli.algorithms.sac:REDQ"

    name: Literal["redq"] = Field("redq", description="Algorithm.")
    updates_per_step: float = Field(
        20.0, gt=0, le=1000, description="Gradient steps per env transition after the warm-up, G; may be a fraction."
    )
    critics: int = Field(10, ge=1, le=100, description="Critics, E.")
    target: Literal["min", "mean", "subset"] = Field(
        "subset", description="Target value: min or mean over all critics, or min over a random subset."
    )
    actor_value: Literal["min", "mean"] = Field("mean", description="What the actor climbs, over all critics.")
    policy_delay: int = Field(20, ge=1, description="Gradient steps of the critics for each one of the actor.")


class DroQConfig(EnsembleConfig):
    """Dropout Q-functions (arXiv 2110.02034): two critics with dropout and layer norm instead of REDQ's ten."""

    implementation: ClassVar[str] = "erlcli.algorithms.sac:DroQ"

    name: Literal["droq"] = Field("droq", description="Algorithm.")
    updates_per_step: float = Field(
        20.0, gt=0, le=1000, description="Gradient steps per env transition after the warm-up, G; may be a fraction."
    )
    actor_value: Literal["min", "mean"] = Field("mean", description="What the actor climbs, over all critics.")
    policy_delay: int = Field(20, ge=1, description="Gradient steps of the critics for each one of the actor.")
    critic_layer_norm: bool = Field(True, description="Layer norm in the critics even if network.layer_norm is off.")
    dropout: float = Field(0.01, ge=0, lt=1, description="Share of the critics' hidden units that are dropped.")
