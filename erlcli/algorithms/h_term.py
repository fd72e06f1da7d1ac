"""From the `[algorithm.h_term]` section to the add-on."""

from __future__ import annotations

from erlcli.algorithms.config.h_term import HTermConfig
from erlcli.core.algorithm import Context
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


def draws(term: HTerm | None) -> str | None:
    """Why a step with this term can't be compiled; None where there is no term."""
    return None if term is None else "algorithm.h_term: it draws trajectories"
