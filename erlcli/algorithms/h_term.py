"""From the `[algorithm.h_term]` section to the add-on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic

from torch import Tensor

from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.core.algorithm import Context
from erlcli.core.compiled import OwnerT, P
from erlcli.core.h_term import HTerm, HTermSettings
from erlcli.core.policy import Policy
from erlcli.core.trajectories import TrajectoryStore


def h_term(config: HTermConfig, context: Context, policy: Policy) -> HTerm | None:
    """The H-term of an actor on the learner's device, or None where the recipe wants none.

    Args:
        config: the section.
        context: environment, device, seed.
        policy: the actor, whose actions are stored.
    """
    if not config.enabled:
        return None
    store = TrajectoryStore(
        context.spec.obs,
        policy.action_shape,
        policy.action_dtype,
        num_envs=context.spec.num_envs,
        capacity=config.capacity,
        device=context.device,
    )
    return HTerm(HTermSettings(**config.model_dump(exclude={"enabled", "capacity"})), store, context.seed)


class TermStep(Generic[OwnerT, P]):
    """A gradient step of an actor which has the H-term where it `is_due`: compiled, that makes two programs.

    Args:
        context: which compiles.
        name: of the step, for messages.
        step: a function of the algorithm and of tensors.
        term: of the algorithm.
        rows_vary: see `Context.compiled`, as `refusal`.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        step: Callable[Concatenate[OwnerT, P], tuple[Tensor, ...]],
        term: HTerm | None,
        *,
        rows_vary: bool = False,
        refusal: str | None = None,
    ) -> None:
        self._term = term
        self._without = context.compiled(name, step, rows_vary=rows_vary, refusal=refusal)
        self._with = self._without
        if term is not None:
            self._with = context.compiled(f"{name} with the H-term", step, rows_vary=rows_vary, refusal=refusal)

    def __call__(self, owner: OwnerT, *args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, ...]:
        """What the step returns."""
        due = self._term is not None and self._term.step()
        return (self._with if due else self._without)(owner, *args, **kwargs)
