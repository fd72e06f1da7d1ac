"""Policies: all that acting needs, and nothing else.

Whatever changes acting is a parameter or a buffer here, so one state dict is the whole channel from learner to workers,
evaluator and export.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from erlcli.core.distributions import Distribution
from erlcli.core.networks import mlp
from erlcli.core.normalize import ObsNormalizer
from erlcli.core.types import Box


class Policy(nn.Module, ABC):
    """What a worker runs.

    Attributes:
        action_shape: of one action in the policy's own units.
        action_dtype: int64 for discrete actions; float32 for continuous ones, where [-1, 1] spans the bounds.
        extras: name to (shape, dtype) of what `act` returns beside the action.
        scores_are_values: whether `choice_scores` gives Q values.
    """

    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    extras: dict[str, tuple[tuple[int, ...], torch.dtype]]
    scores_are_values: bool = False

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """All the randomness of acting for leading `shape`, usually (T, N): drawn once a rollout."""

    @abstractmethod
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Explore: (N, *obs) and a slice of `noise` to actions (N, *action_shape) and extras."""

    @abstractmethod
    def act_greedy(self, obs: Tensor) -> Tensor:
        """Exploit: (N, *obs) to actions; used by evaluation and export."""

    def choice_scores(self, obs: Tensor) -> Tensor | None:
        """What `act_greedy` takes the largest of, for ensembles of policies.

        Returns:
            (N, C) or (N, D, C) logits, or Q values where `scores_are_values`; what is no choice is below -1e8. None for
            continuous actions, and for a policy that has no such scores.
        """
        return None


class VectorPolicy(Policy):
    """A policy over flat observations, which may be normalised.

    Args:
        obs: the observation space.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
    """

    def __init__(self, obs: Box, obs_clip: float | None) -> None:
        super().__init__()
        self.obs_ndim = len(obs.shape)
        self.normalizer = ObsNormalizer(obs.shape, obs_clip) if obs_clip is not None else None

    def features(self, obs: Tensor) -> Tensor:
        """(..., *obs) of any dtype to flat float32 (..., F), normalised where the recipe says so."""
        obs = self.normalizer(obs) if self.normalizer is not None else obs.to(torch.float32)
        return obs if self.obs_ndim == 1 else obs.flatten(-self.obs_ndim) if self.obs_ndim else obs.unsqueeze(-1)


class ActorPolicy(VectorPolicy):
    """A stochastic policy: normaliser, network, distribution.

    Args:
        obs: the observation space.
        distribution: fits the action space.
        hidden: widths of the hidden layers.
        activation: of the hidden layers.
        layer_norm: normalise hidden layers.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
    """

    def __init__(
        self,
        obs: Box,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        layer_norm: bool,
        obs_clip: float | None,
    ) -> None:
        super().__init__(obs, obs_clip)
        self.network = mlp(
            obs.size,
            hidden,
            distribution.num_params,
            activation=activation,
            layer_norm=layer_norm,
            output_gain=0.01,
        )
        self.distribution = distribution
        self.action_shape = distribution.action_shape
        self.action_dtype = distribution.action_dtype
        self.extras = {"log_prob": ((), torch.float32)}

    def params(self, features: Tensor) -> Tensor:
        """Distribution parameters for `features`."""
        params: Tensor = self.network(features)
        return params

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """What the distribution needs."""
        return self.distribution.noise(shape, generator, device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """A sample, and its log-probability under this very policy."""
        action, log_prob = self.distribution.sample(self.params(self.features(obs)), noise)
        return action, {"log_prob": log_prob}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """The mode."""
        return self.distribution.mode(self.params(self.features(obs)))

    def choice_scores(self, obs: Tensor) -> Tensor | None:
        """See `Policy.choice_scores`."""
        return self.distribution.logits(self.params(self.features(obs)))
