"""Distributions of continuous actions; see `core.distribution`.

Dimension letters: B any leading dimensions, A continuous action dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.core.distribution import Distribution

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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
