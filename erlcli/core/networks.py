"""Networks from the `[network]` section of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


@dataclass(frozen=True)
class NetworkConfig:
    """The `[network]` section as an algorithm sees it; fields as in `recipe.schema.NetworkSection`.

    Attributes:
        share_trunk: None where the recipe leaves it to the algorithm.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False
    encoder: str = "auto"
    image_layout: str = "auto"
    pixel_max: float = 255.0
    share_trunk: bool | None = None
    recurrent: Literal["lstm", "gru"] | None = None
    recurrent_hidden: int = 128


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


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Initialise `layer` with orthogonal weights times `gain` and zero biases; returns it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
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
