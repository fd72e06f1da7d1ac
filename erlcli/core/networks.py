"""Networks from the `[network]` section of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: str = "tanh",
    layer_norm: bool = False,
    output_gain: float = 1.0,
) -> nn.Sequential:
    """A multi-layer perceptron with orthogonal weights and zero biases.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers; may be empty.
        outputs: width of the output, which has no activation.
        activation: a key of `ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        output_gain: scale of the last layer's weights; 0.01 makes a policy start near its centre.
    """
    layers: list[nn.Module] = []
    width = inputs
    for size in hidden:
        layers.append(orthogonal(nn.Linear(width, size), math.sqrt(2.0)))
        if layer_norm:
            layers.append(nn.LayerNorm(size))
        layers.append(ACTIVATIONS[activation]())
        width = size
    layers.append(orthogonal(nn.Linear(width, outputs), output_gain))
    return nn.Sequential(*layers)


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Initialise `layer` with orthogonal weights times `gain` and zero biases; returns it."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Critic(nn.Module):
    """V(s): observations (B, *obs), normalised, to values (B,)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, obs: Tensor) -> Tensor:
        """Values without the trailing dimension of 1."""
        value: Tensor = self.body(obs)
        return value.squeeze(-1)
