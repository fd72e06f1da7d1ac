"""Policies: all that acting needs, and nothing else.

Whatever changes acting is a parameter or a buffer here, so one state dict is the whole channel from learner to workers,
evaluator and export.

Dimension letters: T time steps, N environments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from erlcli.core.distributions import Distribution
from erlcli.core.encoders import ImageEncoder, Observations, PartsEncoder
from erlcli.core.networks import mlp
from erlcli.core.normalize import ObsNormalizer
from erlcli.core.packing import vector, vector_size
from erlcli.core.types import Box, Rollout


class Policy(nn.Module, ABC):
    """What a worker runs.

    Attributes:
        action_shape: of one action in the policy's own units.
        action_dtype: int64 for discrete actions; float32 for continuous ones, where [-1, 1] spans the bounds.
        extras: name to (shape, dtype) of what `act` returns beside the action.
    """

    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    extras: dict[str, tuple[tuple[int, ...], torch.dtype]]

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """All the randomness of acting for leading `shape`, usually (T, N): drawn once a rollout."""

    @abstractmethod
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Explore: (N, *obs) and a slice of `noise` to actions (N, *action_shape) and extras."""

    @abstractmethod
    def act_greedy(self, obs: Tensor) -> Tensor:
        """Exploit: (N, *obs) to actions; used by evaluation and export."""


class VectorPolicy(Policy):
    """A policy over flat observations, which may be normalised, or over raw ones, whose networks begin with encoders.

    Images are never normalised; the vector parts of packed observations may be.

    Args:
        obs: the observation space.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        raw: whether networks begin with an encoder, see `encoders.wants_encoder`.
    """

    def __init__(self, obs: Box, obs_clip: float | None, raw: bool = False) -> None:
        super().__init__()
        self.obs_ndim = len(obs.shape)
        self.raw, self.floats = raw, vector_size(obs)
        shape = (self.floats,) if raw else obs.shape
        wanted = obs_clip is not None and (self.floats > 0 or not raw)
        self.normalizer = ObsNormalizer(shape, obs_clip) if wanted and obs_clip is not None else None

    def features(self, obs: Tensor) -> Tensor:
        """What networks take: (..., *obs) of any dtype to flat float32 (..., F), normalised where the recipe says so.

        Where networks begin with an encoder, observations stay as they are, but for normalised vector parts.
        """
        if self.raw:
            return obs if self.normalizer is None else self._raw_features(obs, self.normalizer)
        obs = self.normalizer(obs) if self.normalizer is not None else obs.to(torch.float32)
        return obs if self.obs_ndim == 1 else obs.flatten(-self.obs_ndim) if self.obs_ndim else obs.unsqueeze(-1)

    def _raw_features(self, obs: Observations, normalizer: ObsNormalizer) -> Tensor:
        """Packed rows, or what `PartsEncoder.split` makes of them, with the vector parts normalised."""
        if not isinstance(obs, Tensor):
            return cast(Tensor, (normalizer(obs[0]), *obs[1:]))
        obs = obs.clone()
        floats = vector(obs, self.floats)
        floats.copy_(normalizer(floats))
        return obs

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the observations of a rollout into the running statistics, where there are any."""
        if self.normalizer is not None:
            seen = rollout.obs[:-1]
            self.normalizer.update((vector(seen, self.floats) if self.raw else seen)[rollout.valid])


class ActorPolicy(VectorPolicy):
    """A stochastic policy: normaliser, network, distribution.

    Args:
        obs: the observation space.
        distribution: fits the action space.
        hidden: widths of the hidden layers.
        activation: of the hidden layers.
        layer_norm: normalise hidden layers.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        encoder: of raw observations, before the network; None where the network takes flat vectors.
    """

    def __init__(
        self,
        obs: Box,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        layer_norm: bool,
        obs_clip: float | None,
        encoder: ImageEncoder | PartsEncoder | None = None,
    ) -> None:
        super().__init__(obs, obs_clip, raw=encoder is not None)
        self.encoder = encoder
        width = obs.size if encoder is None else encoder.width
        self.trunk_width = hidden[-1] if hidden else width
        self.network = mlp(
            width,
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
        params: Tensor = self.network(features if self.encoder is None else self.encoder(features))
        return params

    def trunk(self, features: Tensor) -> Tensor:
        """The last hidden layer (..., H) for `features`: what a critic that shares encoder and hidden layers takes."""
        x: Tensor = features if self.encoder is None else self.encoder(features)
        for layer in list(self.network)[:-1]:
            x = layer(x)
        return x

    def head(self, trunk: Tensor) -> Tensor:
        """Distribution parameters for what `trunk` gave."""
        params: Tensor = self.network[-1](trunk)
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
