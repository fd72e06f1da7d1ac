"""Values that change over a run. Free of torch, since recipes are made of them."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator


class Schedule(BaseModel):
    """A number as a function of progress, the share of `train.total_steps` done, from 0 to 1.

    In a recipe a plain number is a constant: `learning_rate = 3e-4`, and a table is a schedule:
    `learning_rate = { kind = "linear", start = 3e-4, end = 0.0 }`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["constant", "linear", "cosine"] = Field("constant", description="Shape of the curve.")
    start: float = Field(ge=0, description="Value at the start of the run.")
    end: float = Field(0.0, ge=0, description="Value at the end of the run; a constant has none.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:  # noqa: ANN401 - whatever TOML holds
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return {"kind": "constant", "start": float(value), "end": float(value)}
        if isinstance(value, dict) and "start" in value and value.get("kind", "constant") == "constant":
            if value.get("end", value["start"]) != value["start"]:
                raise ValueError('a kind for a table with another end: kind = "linear" or kind = "cosine"')
            return {**value, "end": value["start"]}
        return value

    @model_serializer
    def _to_toml(self) -> float | dict[str, Any]:
        if self.kind == "constant":
            return self.start
        return {"kind": self.kind, "start": self.start, "end": self.end}

    @property
    def is_zero(self) -> bool:
        """Whether it is 0 throughout."""
        return self.start == self.end == 0.0

    def __call__(self, progress: float) -> float:
        """The value at `progress`, which is held within [0, 1]."""
        progress = min(max(progress, 0.0), 1.0)
        if self.kind == "linear":
            return self.start + progress * (self.end - self.start)
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.start


def constant(value: float) -> Schedule:
    """A schedule that stays at `value`."""
    return Schedule(kind="constant", start=value, end=value)
