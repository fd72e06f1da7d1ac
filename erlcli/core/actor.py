"""Exploring with a policy, step after step of a rollout: as machine code where the run compiles that.

A step of few environments through a small network is overhead of its some twenty operations, of which machine code
leaves the matrix products; see `core.compiled`.

Dimension letters: N environments.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from torch import Tensor

from erlcli.core import trees
from erlcli.core.compiled import Compiler
from erlcli.core.policy import Policy


class Actor:
    """Calls `Policy.act` of a policy that acts on observations alone.

    Args:
        policy: whose tensors stay where they are in memory; their numbers may change between rollouts.
        config: the `[algorithm]` section.
        compiler: compiles acting; None leaves it to PyTorch.
        facts: whatever else decides what the policy does, with a `repr` that says so.
        refusal: why acting can't be compiled; None if it can.
    """

    def __init__(
        self,
        policy: Policy,
        config: BaseModel | None = None,
        compiler: Compiler | None = None,
        facts: Sequence[object] = (),
        refusal: str | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        # A policy may hold its numbers alone, or its learner's optimiser may hold them all in one vector.
        where = [(name, t.storage_offset(), t.untyped_storage().nbytes()) for name, t in trees.named(policy).items()]
        facts = (type(policy), str(policy), where, *facts)
        self._act = (compiler or Compiler()).compile("acting", Actor._explore, facts, refusal=refusal)

    def __call__(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """(N, *obs) and a slice of the policy's noise to actions, and what is beside them by `Policy.extras`."""
        return self._act(self, obs, noise)

    def _explore(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        action, beside = self.policy.act(obs, noise)
        return action, *(beside[name] for name in self.policy.extras)
