"""What the `[algorithm]` sections have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class AlgorithmConfig(BaseModel):
    """Base of every `[algorithm]` section.

    Attributes:
        implementation: `module:Class` of the algorithm, imported only by processes that train.
        remembers: whether its networks may be recurrent.
        distributes: whether several learners can share the work.
        fixed: keys that networks or optimisers are made by, so that they can't change within a run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    implementation: ClassVar[str]
    remembers: ClassVar[bool] = False
    distributes: ClassVar[bool] = False
    fixed: ClassVar[tuple[str, ...]] = ("name",)

    name: str = Field(description="Algorithm, e.g. `ppo`.")
    rollout_length: int = Field(ge=1, le=1_000_000, description="Steps that each env takes between two updates, T.")

    def problems(self, num_envs: int) -> dict[str, tuple[str, str]]:
        """Fields that don't fit each other: dotted field name to (expected, remedy). Empty when all is well.

        Args:
            num_envs: environments stepped together, N.
        """
        return {}

    def gradient_steps(self, steps: int, num_envs: int) -> float:
        """How many gradient steps `steps` env transitions of `num_envs` environments make; 0 where it isn't known."""
        return 0.0

    def rows(self, num_envs: int) -> int:
        """Rows of one gradient step; 0 where it isn't known."""
        return 0

    def to_toml(self) -> dict[str, Any]:
        """The section as TOML values; what is None is left out, since TOML has no null."""
        return self.model_dump(mode="json", exclude_none=True)
