"""Convolutions of the encoders of images, by the names that recipes give them.

* `nature_cnn`: Mnih et al., "Human-level control through deep reinforcement learning" (Nature 518, 2015), methods,
  without its hidden layer, which is `network.hidden`. For images of 36 pixels and more.
* `impala_cnn`: Espeholt et al., "IMPALA" (arXiv 1802.01561), figure 3, right, without its hidden layer. Any size.
* `small_cnn`: up to three 3x3 convolutions of 16, 32, 64 channels, of stride 2 while the shorter side is above 10
  pixels, until it is below 3. What `auto` takes below 36 pixels.

Weights are orthogonal with gain sqrt(2), biases zero. The activation within an encoder is ReLU, as in the papers.

Dimension letters: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from erlcli.core.networks import orthogonal
from erlcli.core.patches import few_pixels
from erlcli.errors import RecipeError

NATURE_SIDE = 36  # pixels: below, nothing is left of an image behind the three convolutions


def _conv(channels: int, out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    return orthogonal(nn.Conv2d(channels, out, kernel, stride, padding), math.sqrt(2.0))


def _nature(channels: int, sides: tuple[int, int], name: str) -> nn.Sequential:
    if min(sides) < NATURE_SIDE:
        raise RecipeError(
            f"network.encoder nature_cnn: the {name} is too small",
            expected=f"an image of at least {NATURE_SIDE} x {NATURE_SIDE} pixels",
            found=f"{sides[0]} x {sides[1]}",
            remedy='network.encoder = "auto", "small_cnn" or "impala_cnn"',
        )
    return nn.Sequential(
        _conv(channels, 32, 8, 4),
        nn.ReLU(),
        _conv(32, 64, 4, 2),
        nn.ReLU(),
        _conv(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
    )


def _impala(channels: int, sides: tuple[int, int], name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for out in (16, 32, 32):
        layers += [_conv(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), Residual(out), Residual(out)]
        channels = out
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


def _small(channels: int, sides: tuple[int, int], name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    side = min(sides)
    for out in (16, 32, 64):
        if side < 3:
            break
        stride = _small_stride(side)
        layers += [_conv(channels, out, 3, stride), nn.ReLU()]
        channels, side = out, (side - 3) // stride + 1
    return nn.Sequential(*layers, nn.Flatten())


def _small_stride(side: int) -> int:
    return 2 if side > 10 else 1


def are_products(kind: str, sides: tuple[int, int]) -> bool:
    """Whether all convolutions of an encoder are such that machine code makes products of them, see `core.patches`."""
    stride = _small_stride(min(sides))
    return kind == "small_cnn" and few_pixels([(side - 3) // stride + 1 for side in sides])


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), with 3x3 convolutions that keep the size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), _conv(channels, channels, 3, padding=1), nn.ReLU(), _conv(channels, channels, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        out: Tensor = x + self.layers(x)
        return out


LAYERS: dict[str, Callable[[int, tuple[int, int], str], nn.Sequential]] = {
    "nature_cnn": _nature,
    "impala_cnn": _impala,
    "small_cnn": _small,
}
