"""From raw observations to features that are learnt: convolutions for images, joined with what is no image.

An encoder is the first layer of a network and not a step before it: target networks, optimisers, checkpoints and
export take it along without knowing. Observations stay uint8 until they are here.

Dimension letters: B batch, C channels, H height, W width, K stacked observations, V floats of the vector parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from erlcli.core import matmul
from erlcli.core.convolutions import LAYERS, NATURE_SIDE, are_products
from erlcli.core.machine_code import tracing
from erlcli.core.networks import NetworkConfig, mlp
from erlcli.core.packing import image, vector, vector_size
from erlcli.core.types import Box
from erlcli.errors import RecipeError

CHUNK = 1024  # images that are encoded at once where no gradient is wanted: a layer of a whole rollout fills memories

Parts = tuple[Tensor, ...]
"""A packed observation taken apart: the vector parts joined, (..., V), where there are any; then each image."""
Observations = Tensor | Parts


def is_image(space: Box) -> bool:
    """Whether `auto` takes a box for an image: uint8, with height and width of at least 3, a stack left aside."""
    own = space.shape[1:] if space.stack > 1 else space.shape
    return space.dtype == "uint8" and len(own) >= 2 and len(space.shape) <= 4 and sum(n >= 3 for n in own) >= 2


def wants_encoder(obs: Box, network: NetworkConfig) -> bool:
    """Whether a network for these observations begins with an encoder."""
    if obs.parts:
        return True
    return network.encoder != "mlp" and (network.encoder != "auto" or is_image(obs))


def convolves(obs: Box, network: NetworkConfig) -> bool:
    """Whether the time of a network for these observations goes into convolutions, which machine code leaves alone."""
    if not wants_encoder(obs, network) or network.encoder == "mlp":
        return False
    images = [part.space for part in obs.parts if part.space.dtype == "uint8"] if obs.parts else [obs]
    sides = [_layout(space, network, "observation")[2] for space in images]
    return not all(are_products(_kind(network, each), each) for each in sides)


def make_encoder(obs: Box, network: NetworkConfig) -> ImageEncoder | PartsEncoder | None:
    """The encoder of a recipe's networks, freshly initialised; None where networks take flat vectors.

    Raises:
        RecipeError: the observations are none for the encoder that the recipe asks for.
    """
    if not wants_encoder(obs, network):
        return None
    return PartsEncoder(obs, network) if obs.parts else ImageEncoder(obs, network)


def encoded(obs: Box, network: NetworkConfig, build: Callable[[int], nn.Module]) -> nn.Module:
    """What `build` makes for inputs of a given width, behind an encoder where these observations want one."""
    encoder = make_encoder(obs, network)
    return build(obs.size) if encoder is None else Encoded(encoder, build(encoder.width))


def actor_network(obs: Box, network: NetworkConfig, outputs: int) -> nn.Module:
    """From observations to (..., outputs), with a small last layer, so that an actor starts near its centre."""
    return encoded(
        obs,
        network,
        lambda inputs: mlp(
            inputs,
            network.hidden,
            outputs,
            **network.layers,
            output_gain=0.01,
        ),
    )


def trunk_width(obs: Box, network: NetworkConfig) -> int:
    """Width of the last hidden layer, or of what comes before where there is none."""
    if network.hidden:
        return network.hidden[-1]
    encoder = make_encoder(obs, network)
    return obs.size if encoder is None else encoder.width


class Encoded(nn.Module):
    """A network behind an encoder of its own."""

    def __init__(self, encoder: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.body = body

    def forward(self, obs: Observations, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - the body's own
        """Whatever the body makes of the encoded observations."""
        out: Tensor = self.body(self.encoder(obs), *args, **kwargs)
        return out


class ImageEncoder(nn.Module):
    """One image to a flat vector.

    Args:
        space: of the image: (H, W), (H, W, C), (C, H, W), or K of these stacked along a new first axis.
        network: the `[network]` section.
        name: of the observation's part, for messages.

    Attributes:
        width: of the output.

    Raises:
        RecipeError: the layout can't be told from the shape, or the image is too small.
    """

    def __init__(self, space: Box, network: NetworkConfig, name: str = "observation") -> None:
        super().__init__()
        self.shape = space.shape
        self.axes, channels, sides = _layout(space, network, name)
        self.scale = 1.0 / network.pixel_max if space.dtype == "uint8" else 1.0
        self.layers = LAYERS[_kind(network, sides)](channels, sides, name)
        with torch.no_grad():
            self.width = int(self.layers(torch.zeros(1, channels, *sides)).shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        """(..., *shape) of any dtype to float32 (..., width)."""
        lead = obs.shape[: obs.ndim - len(self.shape)]
        flat = obs if len(lead) == 1 else obs.reshape(-1, *self.shape)
        count = flat.shape[0]  # where a program is traced for any number of them, a symbol that must not be compared
        if not torch.is_grad_enabled() and isinstance(count, int) and count > CHUNK:
            out = torch.cat([self._encode(chunk) for chunk in torch.split(flat, CHUNK)])
        else:
            out = self._encode(flat)
        return out if len(lead) == 1 else out.reshape(*lead, self.width)

    def _encode(self, obs: Tensor) -> Tensor:
        """(B, *shape) to (B, width)."""
        x = obs
        if len(self.shape) == 2:
            x = x.unsqueeze(1)
        elif self.axes is not None:
            x = x.permute(0, *(1 + axis for axis in self.axes))
        if len(self.shape) == 4:
            x = x.flatten(1, 2)
        on_cpu = x.device.type == "cpu"
        rounded = on_cpu and matmul.rounding() and not tracing()  # machine code makes products, which round themselves
        # With a pixel's channels side by side, a CPU takes half the time for gradients.
        layout = torch.channels_last if on_cpu else torch.preserve_format
        x = x.to(torch.bfloat16 if rounded else torch.float32, memory_format=layout)
        if self.scale != 1.0:  # in place where it is a copy
            x = x.mul_(self.scale) if x.dtype != obs.dtype else x * self.scale
        # Of convolutions oneDNN rounds no factors by itself when it comes to gradients.
        with torch.autocast("cpu", torch.bfloat16) if rounded else contextlib.nullcontext():
            out: Tensor = self.layers(x)
        return out.to(torch.float32)


class PartsEncoder(nn.Module):
    """A packed observation to a flat vector: each image through an encoder of its own, joined with the vector parts.

    With `encoder = "mlp"` images are scaled and flattened.

    Args:
        space: packed.
        network: the `[network]` section.

    Attributes:
        width: of the output.
    """

    def __init__(self, space: Box, network: NetworkConfig) -> None:
        super().__init__()
        self.floats = vector_size(space)
        self.images = tuple(part for part in space.parts if part.space.dtype == "uint8")
        encoders: list[Pixels | ImageEncoder] = [
            Pixels(part.space, network) if network.encoder == "mlp" else ImageEncoder(part.space, network, part.name)
            for part in self.images
        ]
        self.encoders = nn.ModuleList(encoders)
        self.width = self.floats + sum(encoder.width for encoder in encoders)

    def forward(self, obs: Observations) -> Tensor:
        """Packed rows (..., R), or what `split` makes of them, to float32 (..., width)."""
        parts = self.split(obs) if isinstance(obs, Tensor) else obs
        vectors, images = (parts[:1], parts[1:]) if self.floats else ((), parts)
        return torch.cat([*vectors, *(enc(x) for enc, x in zip(self.encoders, images, strict=True))], dim=-1)

    def split(self, row: Tensor) -> Parts:
        """Views of packed rows (..., R)."""
        images = (image(row, part) for part in self.images)
        return (vector(row, self.floats), *images) if self.floats else tuple(images)


class Pixels(nn.Module):
    """An image as a flat vector of scaled pixels.

    Args:
        space: of the image.
        network: the `[network]` section.

    Attributes:
        width: of the output.
    """

    def __init__(self, space: Box, network: NetworkConfig) -> None:
        super().__init__()
        self.ndim, self.width, self.scale = len(space.shape), space.size, 1.0 / network.pixel_max

    def forward(self, obs: Tensor) -> Tensor:
        """(..., *shape) to float32 (..., width)."""
        return obs.flatten(-self.ndim).to(torch.float32) * self.scale


def _kind(network: NetworkConfig, sides: tuple[int, int]) -> str:
    """Which convolutions: a key of `LAYERS`."""
    if network.encoder != "auto":
        return network.encoder
    return "nature_cnn" if min(sides) >= NATURE_SIDE else "small_cnn"


def _layout(space: Box, network: NetworkConfig, name: str) -> tuple[tuple[int, ...] | None, int, tuple[int, int]]:
    """How axes are to be permuted, if at all; channels; height and width."""
    shape = space.shape
    if not 2 <= len(shape) <= 4:
        raise RecipeError(
            f"network.encoder {network.encoder}: the {name} is no image",
            expected="a shape of 2, 3 or 4 axes: height, width, channels, and a stack of these",
            found=f"shape {shape} of {space.dtype}",
            remedy='network.encoder = "auto" or "mlp"',
        )
    if len(shape) == 2:
        return None, 1, (shape[0], shape[1])
    stack = shape[0] if len(shape) == 4 else 1
    a, b, c = shape[-3:]
    layout = _guess(a, b, c) if network.image_layout == "auto" else network.image_layout
    if layout is None:
        raise RecipeError(
            f"network.image_layout: the axes of the {name} can't be told from its shape",
            expected="channels first or last, of at most 4, or height and width alike",
            found=f"shape {shape}",
            remedy='network.image_layout = "hwc" or "chw"',
        )
    if layout == "chw":
        return None, stack * a, (b, c)
    return ((0, 3, 1, 2) if len(shape) == 4 else (2, 0, 1)), stack * c, (a, b)


def _guess(a: int, b: int, c: int) -> str | None:
    """Whether channels are first or last: they are few, or the one axis that differs; None where both may be."""
    first, last = a <= 4, c <= 4
    if first == last:
        first, last = b == c != a, a == b != c
    return "chw" if first and not last else "hwc" if last and not first else None
