"""Policies: all that acting needs, and nothing else.

Whatever changes acting is a parameter or a buffer here, so one state dict is the whole channel from learner to workers,
evaluator and export.

Dimension letters: T time steps, N environments, C choices, S numbers of a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from erlcli.core.categorical import legal
from erlcli.core.collective import Collective
from erlcli.core.distribution import Distribution
from erlcli.core.encoders import ImageEncoder, Observations, PartsEncoder
from erlcli.core.memory import Memory
from erlcli.core.networks import Initialisation, mlp
from erlcli.core.normalize import ObsNormalizer
from erlcli.core.packing import vector, vector_size
from erlcli.core.types import Box


class Policy(nn.Module, ABC):
    """What a worker runs.

    Most policies act on the observation alone: `act` and `act_greedy` are all that they have. Those that obey masks of
    legal actions, or remember what they have seen, override `step` and `step_greedy`, which is what is called wherever
    `plain` is False.

    Attributes:
        action_shape: of one action in the policy's own units.
        action_dtype: int64 for discrete actions; float32 for continuous ones, where [-1, 1] spans the bounds.
        extras: name to (shape, dtype) of what `act` returns beside the action.
        masked: whether it has to be given masks.
        state_size: S, numbers that it remembers of each environment; 0 where it remembers nothing.
        scores_are_values: whether `choice_scores` gives Q values.
        capturable: whether acting, its noise included, is tensor operations alone whose numbers are all parameters or
            buffers, so that a CUDA graph can record it.
    """

    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    extras: dict[str, tuple[tuple[int, ...], torch.dtype]]
    masked: bool = False
    state_size: int = 0
    scores_are_values: bool = False
    capturable: bool = True

    @property
    def plain(self) -> bool:
        """Whether an observation is all that it acts on."""
        return not (self.masked or self.state_size)

    def initial_state(self, num_envs: int, device: torch.device) -> Tensor | None:
        """What is remembered at the start of an episode, zeros (N, S); None where nothing is ever remembered."""
        return torch.zeros(num_envs, self.state_size, device=device) if self.state_size else None

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """All the randomness of acting for leading `shape`, usually (T, N)."""

    def rollout_noise(
        self, length: int, num_envs: int, generator: torch.Generator, device: torch.device
    ) -> Sequence[Tensor]:
        """The noise of a whole rollout, drawn at once: T slices for `act`."""
        return self.noise((length, num_envs), generator, device).unbind(0)

    @abstractmethod
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Explore: (N, *obs) and a slice of `noise` to actions (N, *action_shape) and extras."""

    @abstractmethod
    def act_greedy(self, obs: Tensor) -> Tensor:
        """Exploit: (N, *obs) to actions; used by evaluation and export."""

    def step(
        self, obs: Tensor, noise: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """`act` with all that may matter.

        Args:
            obs: (N, *obs).
            noise: a slice of `rollout_noise`.
            mask: (N, C) bool, the legal choices; of several choices at once one after the other. None where all are.
            state: (N, S) what is remembered so far, which is left as it is; None where `state_size` is 0.

        Returns:
            Actions, extras, and what is remembered from now on.
        """
        self._refuse(mask, state)
        return *self.act(obs, noise), None

    def step_greedy(self, obs: Tensor, mask: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`act_greedy` with all that may matter: actions, and what is remembered from now on; see `step`."""
        self._refuse(mask, state)
        return self.act_greedy(obs), None

    def _refuse(self, mask: Tensor | None, state: Tensor | None) -> None:
        if mask is not None or state is not None:
            raise TypeError(f"{type(self).__name__} acts on observations alone, and was given a mask or a state")

    def choice_scores(self, obs: Tensor) -> Tensor | None:
        """What `act_greedy` takes the largest of, for ensembles of policies.

        Returns:
            (N, C) or (N, D, C) logits, or Q values where `scores_are_values`; what is no choice is below -1e8. None for
            continuous actions, and for a policy that has no such scores.
        """
        return None


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
        self.obs, self.obs_ndim = obs, len(obs.shape)
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

    def prepare(self, obs: Tensor) -> Tensor:
        """(..., *obs) to what a minibatch holds and the networks are called with: computed once a rollout."""
        return self.features(obs)

    def _raw_features(self, obs: Observations, normalizer: ObsNormalizer) -> Tensor:
        """Packed rows, or what `PartsEncoder.split` makes of them, with the vector parts normalised."""
        if not isinstance(obs, Tensor):
            return cast(Tensor, (normalizer(obs[0]), *obs[1:]))
        obs = obs.clone()
        floats = vector(obs, self.floats)
        floats.copy_(normalizer(floats))
        return obs

    def update_normalizer(self, obs: Tensor, valid: Tensor | None, collective: Collective) -> None:
        """Take what was seen, by all learners, into the running statistics, where there are any.

        Args:
            obs: (T, N, *obs).
            valid: (T, N) bool, what counts; None where everything does.
            collective: the group of learners.
        """
        if self.normalizer is not None:
            seen = vector(obs, self.floats) if self.raw else obs
            self.normalizer.update(seen.flatten(0, 1), collective, None if valid is None else valid.flatten())


class ActorPolicy(VectorPolicy):
    """A stochastic policy: normaliser, memory, network, distribution.

    Args:
        obs: the observation space.
        distribution: fits the action space.
        hidden: widths of the hidden layers.
        activation: of the hidden layers.
        layer_norm: normalise hidden layers.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        memory: between the observations and the network; None for a policy that remembers nothing.
        masked: whether the environment says which actions are legal.
        encoder: of raw observations, before the network; None where the network takes flat vectors.
        init: of the network; see `mlp`.
    """

    def __init__(
        self,
        obs: Box,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        layer_norm: bool,
        obs_clip: float | None,
        memory: Memory | None = None,
        masked: bool = False,
        encoder: ImageEncoder | PartsEncoder | None = None,
        init: Initialisation = "orthogonal",
    ) -> None:
        super().__init__(obs, obs_clip, raw=encoder is not None or (memory is not None and memory.encoder is not None))
        self.memory = memory
        self.encoder = encoder
        self.network = mlp(
            memory.hidden if memory is not None else obs.size if encoder is None else encoder.width,
            hidden,
            distribution.num_params,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            output_gain=0.01,
        )
        self.distribution = distribution
        self.action_shape = distribution.action_shape
        self.action_dtype = distribution.action_dtype
        self.extras = {"log_prob": ((), torch.float32)}
        self.masked = masked
        self.state_size = 0 if memory is None else memory.state_size

    def params(self, features: Tensor) -> Tensor:
        """Distribution parameters for `features`, or for what the memory makes of them."""
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
        if self.memory is not None:
            raise TypeError("a recurrent policy acts from a state: step()")
        action, log_prob = self.distribution.sample(self.params(self.features(obs)), noise)
        return action, {"log_prob": log_prob}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """The mode."""
        if self.memory is not None:
            raise TypeError("a recurrent policy acts from a state: step_greedy()")
        return self.distribution.mode(self.params(self.features(obs)))

    def step(
        self, obs: Tensor, noise: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """A sample among the legal actions; see `Policy.step`."""
        params, state = self._stepped(obs, mask, state)
        action, log_prob = self.distribution.sample(params, noise)
        return action, {"log_prob": log_prob}, state

    def step_greedy(self, obs: Tensor, mask: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The mode among the legal actions; see `Policy.step_greedy`."""
        params, state = self._stepped(obs, mask, state)
        return self.distribution.mode(params), state

    def _stepped(self, obs: Tensor, mask: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features = self.features(obs)
        if self.memory is not None:
            if state is None:
                raise TypeError("a recurrent policy acts from a state: initial_state() is the first one")
            features, state = self.memory(features, state)
        params = self.params(features)
        return params if mask is None else legal(params, mask), state

    def choice_scores(self, obs: Tensor) -> Tensor | None:
        """See `Policy.choice_scores`."""
        return self.distribution.logits(self.params(self.features(obs)))
