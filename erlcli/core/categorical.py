"""Distributions of discrete actions, of which some may be illegal; see `core.distribution`.

Dimension letters: B any leading dimensions, D discrete dimensions, C choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erlcli.core.distribution import Distribution


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
