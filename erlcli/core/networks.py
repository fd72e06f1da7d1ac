"""Networks from the `[network]` section of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, TypeVar

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


Initialisation = Literal["orthogonal", "uniform"]


class LayerOptions(TypedDict):
    """What the hidden layers of all networks of a run have in common; arguments of `mlp`."""

    activation: str
    layer_norm: bool
    init: Initialisation


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
    init: Initialisation = "orthogonal"

    @property
    def layers(self) -> LayerOptions:
        """Arguments of `mlp`."""
        return {"activation": self.activation, "layer_norm": self.layer_norm, "init": self.init}


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: str = "tanh",
    layer_norm: bool = False,
    init: Initialisation = "orthogonal",
    output_gain: float = 1.0,
) -> nn.Sequential:
    """A multi-layer perceptron.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers; may be empty.
        outputs: width of the output, which has no activation.
        activation: a key of `ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        init: see `linear`.
        output_gain: scale of the last layer's orthogonal weights; 0.01 makes a policy start near its centre.
    """
    layers: list[nn.Module] = []
    width = inputs
    for size in hidden:
        layers.append(linear(width, size, math.sqrt(2.0), init))
        if layer_norm:
            layers.append(nn.LayerNorm(size))
        layers.append(ACTIVATIONS[activation]())
        width = size
    layers.append(linear(width, outputs, output_gain, init))
    return nn.Sequential(*layers)


def linear(inputs: int, outputs: int, gain: float, init: Initialisation) -> nn.Linear:
    """A layer with orthogonal weights times `gain` and zero biases, or both uniform in +-1 / sqrt(inputs).

    The latter is PyTorch's own way, whatever the gain. Its weights are less than half as large as those of a gain of
    sqrt(2), so that steps of the same size turn them further.
    """
    layer = nn.Linear(inputs, outputs)
    return orthogonal(layer, gain) if init == "orthogonal" else layer


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
