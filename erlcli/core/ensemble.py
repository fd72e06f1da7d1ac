"""E critics as one module: a batched matrix product per layer instead of E small ones.

Dimension letters: E members, B batch, F features, K outputs of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.core.batch_norm import BatchRenorm
from erlcli.core.networks import ACTIVATIONS, Initialisation, mlp

Members = slice | Tensor
"""Which members: a slice gives views, an int64 index copies."""


class Ensemble(nn.Module):
    """E multi-layer perceptrons of one shape, initialised independently of each other, each as `mlp` is.

    A hidden layer is: linear, dropout, layer norm, activation, batch norm; with batch norm, the input has one too.
    Whatever is on beside the linear layer and the activation is an option.

    Args:
        members: E.
        inputs: width of the input.
        hidden: widths of the hidden layers; may be empty.
        outputs: K.
        activation: a key of `networks.ACTIVATIONS`.
        layer_norm: normalise over the features of each hidden layer.
        init: see `mlp`.
        dropout: share of a hidden layer's units that are dropped, in [0, 1).
        batch_norm_warmup: normalise over the batch, each member by itself, with `BatchRenorm` of this warm-up.
        output_gain: scale of the last layer's weights.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        init: Initialisation = "orthogonal",
        dropout: float = 0.0,
        batch_norm_warmup: int | None = None,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.members, self.dropout = members, dropout
        self.activation = ACTIVATIONS[activation]()
        weights, biases = _initial(members, lambda: mlp(inputs, hidden, outputs, init=init, output_gain=output_gain))
        self.weights = nn.ParameterList(weights)  # (E, inputs, outputs) of each layer
        self.biases = nn.ParameterList(biases)  # (E, 1, outputs)
        normed = hidden if layer_norm else ()
        self.norm_weights = nn.ParameterList(torch.ones(members, 1, size) for size in normed)
        self.norm_biases = nn.ParameterList(torch.zeros(members, 1, size) for size in normed)
        self.batch_norms = nn.ModuleList()
        if batch_norm_warmup is not None:
            self.batch_norms.extend(BatchRenorm((members, 1, size), batch_norm_warmup) for size in (inputs, *hidden))

    def forward(
        self,
        x: Tensor,
        *,
        members: Members | None = None,
        frozen: bool = False,
        training: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """All members on one batch.

        Args:
            x: (B, F) for all members, or (E, B, F), for each its own.
            members: only these, E' of them; not with batch norm.
            frozen: no gradient reaches the members' parameters, only `x`: nothing is computed for them in `backward`.
            training: batch norm goes by this batch and takes it into its statistics.
            generator: of dropout, which is off without one.

        Returns:
            (E, B, K).
        """

        def of(parameter: Tensor) -> Tensor:
            chosen = parameter if members is None else parameter[members]
            return chosen.detach() if frozen else chosen

        last = len(self.weights) - 1
        batch_norms = list(self.batch_norms)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if batch_norms:  # of the input, then of each hidden layer's activation
                x = batch_norms[i](x, training=training, frozen=frozen)
            weight = of(weight)
            x = torch.baddbmm(of(bias), x.expand(len(weight), *x.shape[-2:]), weight)
            if i == last:
                break
            if self.dropout and generator is not None:
                keep = torch.empty_like(x).bernoulli_(1.0 - self.dropout, generator=generator)
                x = x * keep.mul_(1.0 / (1.0 - self.dropout))
            if len(self.norm_weights):
                plain = F.layer_norm(x, x.shape[-1:])
                x = torch.addcmul(of(self.norm_biases[i]), plain, of(self.norm_weights[i]))
            x = self.activation(x)
        return x


def _initial(members: int, make: Callable[[], nn.Sequential]) -> tuple[list[Tensor], list[Tensor]]:
    """Stacked weights (E, in, out) and biases (E, 1, out) of as many separate perceptrons."""
    layers = [[layer for layer in make() if isinstance(layer, nn.Linear)] for _ in range(members)]
    weights = [torch.stack([linear.weight.detach().T for linear in same]) for same in zip(*layers, strict=True)]
    biases = [torch.stack([linear.bias.detach().unsqueeze(0) for linear in same]) for same in zip(*layers, strict=True)]
    return weights, biases


class QEnsemble(Ensemble):
    """Q_1(s, a) ... Q_E(s, a); takes features and actions side by side.

    Args:
        members: E.
        inputs: width of encoded features and action together.
        hidden: widths of the hidden layers.
        outputs: K.
        encoder: of raw observations, before the members, who share it; None where features are vectors.
        options: as `Ensemble` has them.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        encoder: nn.Module | None = None,
        **options: Any,  # noqa: ANN401 - the keywords of `Ensemble`
    ) -> None:
        super().__init__(members, inputs, hidden, outputs, **options)
        self.encoder = encoder

    def q(
        self,
        features: Tensor,
        action: Tensor,
        *,
        members: Members | None = None,
        frozen: bool = False,
        training: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Values of actions.

        Args:
            features: (B, F), or raw observations for the encoder.
            action: (B, A).
            members: see `forward`.
            frozen: see `forward`.
            training: see `forward`.
            generator: see `forward`.

        Returns:
            (E, B), or (E, B, K) for members with K > 1 outputs.
        """
        x = self.join(features, action, frozen=frozen)
        out: Tensor = self(x, members=members, frozen=frozen, training=training, generator=generator)
        return out.squeeze(-1)

    def join(self, features: Tensor, action: Tensor, *, frozen: bool = False) -> Tensor:
        """What `forward` takes, (B, F + A): features, encoded where there is an encoder, and actions side by side."""
        if self.encoder is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
                features = self.encoder(features)
        return torch.cat([features, action], dim=-1)
