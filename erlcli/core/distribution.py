"""What every family of action distributions can do.

They are plain tensor code; `torch.distributions` costs more per call than a small network. Each takes the network's
output, `params`, and noise that was drawn for a whole rollout at once. Sampling is therefore a deterministic function
of (params, noise), which also makes it exportable and testable.

Dimension letters: B any leading dimensions, D discrete dimensions, C choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


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
