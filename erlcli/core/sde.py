"""Generalised state-dependent exploration.

Raffin, Kober and Stulp, "Smooth Exploration for Robotic Reinforcement Learning" (arXiv 2005.05719). The noise of an
action is a linear function of the policy's last hidden layer z(s), with weights that stay for several steps:

    a = mu(s) + W^T z(s),  W_ij ~ N(0, sigma_ij^2),  so that  a_j | s ~ N(mu_j(s), sum_i z_i(s)^2 sigma_ij^2)

The same state therefore gets the same noise until W is drawn again: at the start of each rollout and every few steps
within it, for each environment on its own. As in the paper no gradient flows into z through the variance. Beyond it,
`FLOOR` is added to the variance, or an environment that shows only zeros would have a density without bound.

Dimension letters: T time steps, N environments, B any leading dimensions, Z latent units, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from erlcli.core.distribution import Distribution
from erlcli.core.encoders import ImageEncoder, PartsEncoder
from erlcli.core.gaussian import LOG_SQRT_2PI
from erlcli.core.memory import Memory
from erlcli.core.networks import Initialisation
from erlcli.core.policy import ActorPolicy
from erlcli.core.types import Box

FLOOR = 1e-6


class LatentGaussian(Distribution):
    """Normals whose noise is linear in latent units; `params` are A means, then Z latent units.

    Args:
        action_dim: A.
        latent: Z.
        log_std: initial logarithm of every sigma.
    """

    def __init__(self, action_dim: int, latent: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.num_params = action_dim
        self.action_shape = (action_dim,)
        self.action_dtype = torch.float32
        self.log_std = nn.Parameter(torch.full((latent, action_dim), log_std))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Standard normals (*shape, Z, A): W before it is scaled."""
        return torch.randn(*shape, *self.log_std.shape, generator=generator, device=device)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, and what W makes of the latent units."""
        mean, latent = self._split(params)
        action = mean + (latent.unsqueeze(-2) @ (self.log_std.exp() * noise)).squeeze(-2)
        return action, self.log_prob(params, action)

    def mode(self, params: Tensor) -> Tensor:
        """The mean."""
        return self._split(params)[0]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Sum over dimensions of the normal log-density."""
        mean, latent = self._split(params)
        variance = self._variance(latent)
        return ((action - mean).square() / variance + variance.log()).sum(-1) * -0.5 - LOG_SQRT_2PI * self.num_params

    def entropy(self, params: Tensor, log_prob: Tensor) -> Tensor:
        """0.5 + log(sqrt(2 pi)) + log std, summed over the dimensions."""
        variance = self._variance(self._split(params)[1])
        return 0.5 * variance.log().sum(-1) + (0.5 + LOG_SQRT_2PI) * self.num_params

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[..., : self.num_params], params[..., self.num_params :]

    def _variance(self, latent: Tensor) -> Tensor:
        return latent.square() @ (2.0 * self.log_std).exp() + FLOOR


class LatentNoisePolicy(ActorPolicy):
    """An `ActorPolicy` that explores so.

    Args:
        obs: the observation space.
        action: the action space.
        log_std: initial logarithm of every sigma.
        interval: steps for which W stays; None for a whole rollout.
        hidden: widths of the hidden layers.
        activation: of the hidden layers.
        layer_norm: normalise hidden layers.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        memory: between the observations and the network; None for a policy that remembers nothing.
        encoder: of raw observations, before the network; None where the network takes flat vectors.
        init: of the network; see `mlp`.
    """

    def __init__(
        self,
        obs: Box,
        action: Box,
        log_std: float,
        interval: int | None,
        hidden: Sequence[int],
        activation: str,
        layer_norm: bool,
        obs_clip: float | None,
        memory: Memory | None = None,
        encoder: ImageEncoder | PartsEncoder | None = None,
        init: Initialisation = "orthogonal",
    ) -> None:
        inputs = memory.hidden if memory is not None else obs.size if encoder is None else encoder.width
        distribution = LatentGaussian(action.size, hidden[-1] if hidden else inputs, log_std)
        shape = (hidden, activation, layer_norm, obs_clip, memory)
        super().__init__(obs, distribution, *shape, encoder=encoder, init=init)
        self.interval = interval

    def params(self, features: Tensor) -> Tensor:
        """Means and latent units."""
        return self.head(self.trunk(features))

    def head(self, trunk: Tensor) -> Tensor:
        """See `ActorPolicy.head`."""
        return torch.cat([super().head(trunk), trunk.detach()], dim=-1)

    def rollout_noise(
        self, length: int, num_envs: int, generator: torch.Generator, device: torch.device
    ) -> Sequence[Tensor]:
        """One draw for each stretch of `interval` steps, which its steps share without a copy."""
        interval = self.interval or length
        draws = self.noise((-(-length // interval), num_envs), generator, device).unbind(0)
        return [draws[t // interval] for t in range(length)]
