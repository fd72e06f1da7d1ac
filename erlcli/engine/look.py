"""Snapshots of a policy, which a learner writes for the evaluator to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from erlcli.engine.evaluate import Scores


@dataclass
class Look:
    """A snapshot, and how it has played so far.

    Attributes:
        facts: what the learner has written beside the weights.
        weights: of the policy.
        scores: of the first so many episodes; of none yet.
        seconds: that they took.
    """

    facts: dict[str, str]
    weights: dict[str, Tensor]
    scores: Scores = field(default_factory=Scores)
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Look:
        """A snapshot that has not played yet.

        Raises:
            FileNotFoundError: it is gone.
        """
        with safe_open(path, "pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return cls(dict(file.metadata()), weights)

    @property
    def attempt(self) -> int:
        """Of the learner, which may be started anew while the evaluator lives on."""
        return int(self.facts["attempt"])

    @property
    def steps(self) -> int:
        """Env steps before it was written."""
        return int(self.facts["steps"])

    @property
    def mean(self) -> float:
        """Return of the episodes played."""
        return sum(self.scores.returns) / len(self.scores.returns)


def written_at(path: Path) -> tuple[int, int] | None:
    """Attempt and steps of a snapshot; a newer attempt may come from an older checkpoint. None if it is gone."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata()
    except FileNotFoundError:
        return None
    return int(facts["attempt"]), int(facts["steps"])
