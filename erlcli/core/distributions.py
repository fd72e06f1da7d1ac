"""Which distribution of actions fits an action space."""

from __future__ import annotations

from erlcli.core.categorical import Categorical, MultiCategorical
from erlcli.core.distribution import Distribution
from erlcli.core.gaussian import Gaussian, StateGaussian, TanhGaussian
from erlcli.core.types import ActionSpace, Box, Discrete


def for_space(action: ActionSpace, log_std: float = 0.0, squash: bool = False, state_std: bool = False) -> Distribution:
    """The distribution that fits an action space.

    Args:
        action: the environment's action space.
        log_std: initial log standard deviation of continuous actions.
        squash: bound continuous actions by tanh.
        state_std: the standard deviation of continuous actions, which aren't squashed, is a function of the state.
    """
    if isinstance(action, Box):
        if state_std:
            return StateGaussian(action.size, log_std)
        return (TanhGaussian if squash else Gaussian)(action.size, log_std)
    if isinstance(action, Discrete):
        return Categorical(action.n)
    return MultiCategorical(action.nvec)
