"""Action distributions as plain tensor code; `torch.distributions` costs more per call than a small network.

Each takes the network's output, `params`, and noise that was drawn for a whole rollout at once. Sampling is therefore
a deterministic function of (params, noise), which also makes it exportable and testable.

Dimension letters: B any leading dimensions, A continuous action dimensions, D discrete dimensions, C choices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.core.types import ActionSpace, Box, Discrete

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(nn.Module, ABC):
    """A family of action distributions.

    Attributes:
        num_params: width of the network's last layer.
        action_shape: of one action in the policy's units.
        action_dtype: float32 for continuous actions, int64 for discrete ones.
    """

    num_params: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Noise for actions of leading `shape`."""

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, *action_shape) and their log-probabilities (B,)."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor:
        """The greedy action (B, *action_shape)."""

    def logits(self, params: Tensor) -> Tensor | None:
        """Logits (B, C) or (B, D, C) of discrete choices; None for continuous actions."""
        return None

    @abstractmethod
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-probability (density for continuous actions) of given actions, (B,)."""

    @abstractmethod
    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """Entropy (B,), or a scalar where it is the same for all; `log_prob` serves where only an estimate exists."""


class Gaussian(Distribution):
    """Independent normals whose log standard deviation is a parameter of its own, not a function of the state.

    Actions are not bounded: the environment's adapter clips them to [-1, 1].

    Args:
        action_dim: A.
        log_std: initial log standard deviation.
    """

    def __init__(self, action_dim: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.num_params = action_dim
        self.action_shape = (action_dim,)
        self.action_dtype = torch.float32
        self.log_std = nn.Parameter(torch.full((action_dim,), log_std))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals, (*shape, A)."""
        return torch.randn(*shape, *self.action_shape, generator=generator, device=device)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean + std * noise; the log-density needs the noise alone."""
        action = torch.addcmul(params, self.log_std.exp(), noise)
        return action, (noise * noise).sum(-1) * -0.5 - self._log_volume()

    def mode(self, params: Tensor) -> Tensor:
        """The mean."""
        return params

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Sum over dimensions of the normal log-density."""
        scaled = (action - params) * (-self.log_std).exp()
        return (scaled * scaled).sum(-1) * -0.5 - self._log_volume()

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """0.5 + log(sqrt(2 pi)) + log std, summed; a scalar since it does not depend on the state."""
        return self._log_volume() + 0.5 * self.num_params

    def _log_volume(self) -> Tensor:
        return self.log_std.sum() + LOG_SQRT_2PI * self.num_params


class StateGaussian(Distribution):
    """Independent normals whose mean and log standard deviation are both functions of the state.

    `params` holds A means, then A numbers that are added to the initial log standard deviation; the sum is held within
    `LOG_STD`. Actions are not bounded, as with `Gaussian`.

    Args:
        action_dim: A.
        log_std: initial log standard deviation.
    """

    LOG_STD = (-20.0, 2.0)

    def __init__(self, action_dim: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.num_params = 2 * action_dim
        self.action_shape = (action_dim,)
        self.action_dtype = torch.float32
        self.log_std = log_std

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals, (*shape, A)."""
        return torch.randn(*shape, *self.action_shape, generator=generator, device=device)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean + std * noise."""
        mean, log_std = self._moments(params)
        return torch.addcmul(mean, log_std.exp(), noise), self._density(noise, log_std)

    def mode(self, params: Tensor) -> Tensor:
        """The mean."""
        return params[..., : self.num_params // 2]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Sum over dimensions of the normal log-density."""
        mean, log_std = self._moments(params)
        return self._density((action - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """0.5 + log(sqrt(2 pi)) + log std, summed over the dimensions."""
        log_std = self._moments(params)[1]
        return log_std.sum(-1) + (0.5 + LOG_SQRT_2PI) * (self.num_params // 2)

    def _moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.chunk(2, dim=-1)
        return mean, (log_std + self.log_std).clamp(*self.LOG_STD)

    def _density(self, noise: Tensor, log_std: Tensor) -> Tensor:
        return (noise.square() * -0.5 - log_std).sum(-1) - LOG_SQRT_2PI * (self.num_params // 2)


class TanhGaussian(Gaussian):
    """A `Gaussian` squashed through tanh, so that actions lie within (-1, 1).

    log p(a) = log N(u) - sum log(1 - tanh(u)^2), with the last term as 2 (log 2 - u - softplus(-2u)), which does not
    lose digits for large |u| (arXiv 1812.05905, appendix C).
    """

    EDGE = 1.0 - 1e-6  # float32 tanh reaches 1.0 exactly, whose inverse is infinite
    NODES = 16  # of the quadrature in `entropy`: exact to 1e-5 at std 1, to 3e-3 at std 2

    nodes: Tensor
    weights: Tensor

    def __init__(self, action_dim: int, log_std: float = 0.0) -> None:
        super().__init__(action_dim, log_std)
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.NODES)
        self.register_buffer("nodes", torch.tensor(nodes, dtype=torch.float32), persistent=False)
        self.register_buffer("weights", torch.tensor(weights / weights.sum(), dtype=torch.float32), persistent=False)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(mean + std * noise), and the density as `log_prob` will give it for the (rounded, held) action."""
        raw = torch.addcmul(params, self.log_std.exp(), noise)
        action = raw.tanh().clamp(-self.EDGE, self.EDGE)
        return action, self.log_prob(params, action)

    def mode(self, params: Tensor) -> Tensor:
        """Tanh of the mean."""
        return params.tanh()

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """The change of variables undone; actions are held within the open interval."""
        raw = action.clamp(-self.EDGE, self.EDGE).atanh()
        return super().log_prob(params, raw) - _log_slope(raw).sum(-1)

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """H(N) + E[sum log(1 - tanh(u)^2)], the expectation by Gauss-Hermite quadrature in each dimension.

        The one-sample estimate -log_prob will not do as a bonus: for actions that are given, not reparameterised, its
        gradient is zero on average.
        """
        raw = params.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * self.nodes  # (B, A, nodes)
        return super().entropy(params, log_prob) + (_log_slope(raw) @ self.weights).sum(-1)


class StateTanhGaussian(Distribution):
    """Normals squashed through tanh whose mean and log standard deviation are both functions of the state.

    `params` holds A means, then A log standard deviations, which are held within `LOG_STD`. Samples are
    reparameterised: gradients flow through actions and log-probabilities into `params` (arXiv 1812.05905).

    Args:
        action_dim: A.
    """

    LOG_STD = (-20.0, 2.0)
    EDGE = TanhGaussian.EDGE

    def __init__(self, action_dim: int) -> None:
        super().__init__()
        self.num_params = 2 * action_dim
        self.action_shape = (action_dim,)
        self.action_dtype = torch.float32

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals, (*shape, A)."""
        return torch.randn(*shape, *self.action_shape, generator=generator, device=device)

    def action(self, params: Tensor, noise: Tensor) -> Tensor:
        """The action of `sample`, for those who don't need its density."""
        mean, log_std = self._moments(params)
        return torch.addcmul(mean, log_std.exp(), noise).tanh()

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(mean + std * noise); the density comes from the unsquashed sample, so no digit is lost at the edges."""
        mean, log_std = self._moments(params)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        return raw.tanh(), self._density(noise, log_std, raw)

    def mode(self, params: Tensor) -> Tensor:
        """Tanh of the mean."""
        return params[..., : self.num_params // 2].tanh()

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """The change of variables undone; actions are held within the open interval."""
        mean, log_std = self._moments(params)
        raw = action.clamp(-self.EDGE, self.EDGE).atanh()
        return self._density((raw - mean) * (-log_std).exp(), log_std, raw)

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """The one-sample estimate; with a reparameterised sample its gradient is right on average."""
        return -log_prob

    def _moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.chunk(2, dim=-1)
        return mean, log_std.clamp(*self.LOG_STD)

    def _density(self, noise: Tensor, log_std: Tensor, raw: Tensor) -> Tensor:
        """Of the squashed sample: log N(raw) - log(1 - tanh(raw)^2), summed over the dimensions."""
        per_dimension = noise.square() * -0.5 - log_std - _log_slope(raw)
        return per_dimension.sum(-1) - LOG_SQRT_2PI * (self.num_params // 2)


def _log_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(raw)^2), elementwise."""
    return 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))


class Categorical(Distribution):
    """One of C choices, sampled exactly as argmax(logits + Gumbel noise).

    Args:
        choices: C.
    """

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.num_params = choices
        self.action_shape = ()
        self.action_dtype = torch.int64

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard Gumbel variates, (*shape, C)."""
        return gumbel((*shape, self.num_params), generator, device)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The Gumbel-max trick."""
        action = (params + noise).argmax(-1)
        return action, self.log_prob(params, action)

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest choice."""
        return params.argmax(-1)

    def logits(self, params: Tensor) -> Tensor:
        """The parameters themselves, (B, C)."""
        return params

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-softmax at the chosen index."""
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """-sum p log p."""
        log_probs = params.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategorical(Distribution):
    """D independent choices. Rows of logits are padded to the widest with -1e9, so that all D are one tensor.

    Args:
        nvec: number of choices of each dimension.
    """

    index: Tensor
    padding: Tensor

    def __init__(self, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.num_params = sum(nvec)
        self.action_shape = (len(nvec),)
        self.action_dtype = torch.int64
        widest = max(nvec)
        index = torch.zeros(len(nvec), widest, dtype=torch.int64)
        padding = torch.full((len(nvec), widest), -1e9)
        offset = 0
        for row, choices in enumerate(nvec):
            index[row, :choices] = torch.arange(offset, offset + choices)
            padding[row, :choices] = 0.0
            offset += choices
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("padding", padding, persistent=False)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard Gumbel variates, (*shape, D, C)."""
        return gumbel((*shape, *self.index.shape), generator, device)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The Gumbel-max trick in every dimension."""
        logits = self.logits(params)
        action = (logits + noise).argmax(-1)
        return action, _chosen(logits, action).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest choice of every dimension."""
        return self.logits(params).argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Summed over the dimensions, which are independent."""
        return _chosen(self.logits(params), action).sum(-1)

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """Summed over the dimensions."""
        log_probs = self.logits(params).log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum((-2, -1))

    def logits(self, params: Tensor) -> Tensor:
        """(B, D, C), padded."""
        return params[..., self.index] + self.padding


def _chosen(logits: Tensor, action: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def legal(params: Tensor, mask: Tensor) -> Tensor:
    """Logits without the illegal choices.

    They get the smallest finite number, not -inf: their probability is 0 all the same, but log-probabilities,
    entropies and gradients stay finite.

    Args:
        params: (B, C) logits of `Categorical` or `MultiCategorical`.
        mask: (B, C) bool; at least one choice of each dimension has to be legal.
    """
    return params.masked_fill(~mask, torch.finfo(params.dtype).min)


def gumbel(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard Gumbel variates, -log(Exp(1))."""
    return torch.empty(shape, device=device).exponential_(generator=generator).log_().neg_()


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
