"""Several policies that act as one.

Continuous actions: the mean of the members' greedy actions, each held within the bounds first, as the environment would
hold it.

Discrete actions, rule `mean`: the choice with the largest mean score. A stochastic policy scores its choices by their
probabilities. A value-based one gives all probability to its greedy choice: a softmax over Q values would need a
temperature that nobody trained. Where all members are value-based and their values have the same unit (discount and
scale of rewards), the mean is that of the Q values themselves.

Discrete actions, rule `vote`: the choice that most members would take; of those with as many votes, the one of the
largest mean score.

Dimension letters: N environments, M members, D discrete dimensions, C choices, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from erlcli.core.policy import Policy
from erlcli.core.types import ActionSpace, Box, Discrete

Rule = Literal["mean", "vote"]
RULES: tuple[Rule, ...] = ("mean", "vote")
TIE = 0.5  # of a vote: what the mean score, scaled to [0, 1], counts for at most
CLOSE = 1e-4  # of the largest score: a lead below this may be a matter of rounding


class PolicyEnsemble(Policy):
    """The members, and what all kinds of ensembles share.

    Args:
        members: at least one, all of the same spaces.
    """

    def __init__(self, members: Sequence[Policy]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.action_shape, self.action_dtype = members[0].action_shape, members[0].action_dtype
        self.extras = {}

    @property
    def policies(self) -> list[Policy]:
        """The members as what they are."""
        return [member for member in self.members if isinstance(member, Policy)]

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """None: an ensemble is for evaluation and export, and acts greedily. (*shape, 0)."""
        return torch.empty(*shape, 0, device=device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The greedy action."""
        return self.act_greedy(obs), {}


class ContinuousEnsemble(PolicyEnsemble):
    """The mean of actions.

    Args:
        members: as in `PolicyEnsemble`.
        action: the environment's action space.
    """

    low: Tensor
    high: Tensor

    def __init__(self, members: Sequence[Policy], action: Box) -> None:
        super().__init__(members)
        low, high = np.asarray(action.low), np.asarray(action.high)
        finite = np.isfinite(low) & np.isfinite(high)  # such dimensions are in units of their bounds; see `ActionMap`
        for name, bound in (("low", np.where(finite, -1.0, low)), ("high", np.where(finite, 1.0, high))):
            self.register_buffer(name, torch.as_tensor(bound, dtype=torch.float32))  # (A,)

    def act_greedy(self, obs: Tensor) -> Tensor:
        """(N, *obs) to (N, A)."""
        first, *others = [policy.act_greedy(obs).clamp(self.low, self.high) for policy in self.policies]
        for action in others:
            first = first + action
        return first * (1.0 / len(self.members))


class DiscreteEnsemble(PolicyEnsemble):
    """One choice out of C, or D of them.

    Args:
        members: as in `PolicyEnsemble`.
        action: the environment's action space.
        rule: mean or vote.
        same_unit: whether the members' Q values may be averaged, if all of them have some.
    """

    identity: Tensor

    def __init__(self, members: Sequence[Policy], action: ActionSpace, rule: Rule, same_unit: bool) -> None:
        super().__init__(members)
        if isinstance(action, Box):
            raise TypeError(f"action space: expected discrete choices, found {action}")
        choices = action.n if isinstance(action, Discrete) else max(action.nvec)
        self.rule: Rule = rule
        self.averages_values = same_unit and all(policy.scores_are_values for policy in members)
        self.register_buffer("identity", torch.eye(choices))

    def act_greedy(self, obs: Tensor) -> Tensor:
        """(N, *obs) to (N,) or (N, D) choices."""
        return self.scores(obs).argmax(-1)

    def scores(self, obs: Tensor) -> Tensor:
        """What the choice is made by, (N, C) or (N, D, C)."""
        own = [policy.choice_scores(obs) for policy in self.policies]
        choices = [
            self.identity[policy.act_greedy(obs) if scores is None else scores.argmax(-1)]
            for policy, scores in zip(self.policies, own, strict=True)
        ]
        mean = self._mean(own, choices)
        if self.rule == "mean":
            return mean
        if self.averages_values:
            low, high = mean.amin(-1, keepdim=True), mean.amax(-1, keepdim=True)
            mean = (mean - low) / (high - low + 1e-12)
        return _sum(choices) + mean * TIE

    def _mean(self, own: Sequence[Tensor | None], choices: Sequence[Tensor]) -> Tensor:
        """Mean scores, (N, C) or (N, D, C)."""
        parts: list[Tensor] = []
        for policy, scores, choice in zip(self.policies, own, choices, strict=True):
            if scores is None or (policy.scores_are_values and not self.averages_values):
                parts.append(choice)
            else:
                parts.append(scores if policy.scores_are_values else scores.softmax(-1))
        return _sum(parts) * (1.0 / len(parts))

    def is_clear(self, obs: Tensor) -> Tensor:
        """(N,) whether no member that counts by its choice alone is so undecided that rounding may change it."""
        clear = torch.ones(len(obs), dtype=torch.bool)
        for policy in self.policies:
            scores = policy.choice_scores(obs)
            counts = self.rule == "vote" or (policy.scores_are_values and not self.averages_values)
            if scores is None or not counts or scores.shape[-1] == 1:
                continue
            best, second = scores.topk(2, dim=-1).values.unbind(-1)  # (N,) or (N, D)
            lead = best - second > CLOSE * best.abs().clamp(min=1.0)
            clear &= lead if lead.ndim == 1 else lead.all(-1)
        return clear


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total, *others = parts
    for part in others:
        total = total + part
    return total


def ensemble_of(members: Sequence[Policy], action: ActionSpace, rule: Rule, same_unit: bool) -> PolicyEnsemble:
    """The ensemble for an action space.

    Args:
        members: at least one, all of these spaces.
        action: the environment's action space.
        rule: only `mean` where actions are continuous.
        same_unit: see `DiscreteEnsemble`.
    """
    if isinstance(action, Box):
        if rule != "mean":
            raise ValueError(f"rule: expected mean for continuous actions, found {rule}")
        return ContinuousEnsemble(members, action)
    return DiscreteEnsemble(members, action, rule, same_unit)
