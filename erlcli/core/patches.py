"""Convolutions of small images as matrix products, for steps that are to be machine code.

A convolution is the product of the patches of its images, a row each, with its kernels. Of large images there are too
many patches to write down, which oneDNN avoids. Of small ones there are few, and most of the time goes into what
oneDNN does around the arithmetic: a gradient step on 128 images of 7 x 7 takes 4.0 ms, with products 1.5. Where the
first layer makes 7 x 7 pixels or more of each, patches leave the processor's cache, and nothing is gained any more.

Dimension letters: B batch, C channels, H height, W width; of a convolution, O channels, P and Q height and width of its
output, K and L height and width of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, slice_scatter

PIXELS = 40  # of a convolution's output, up to which patches pay


class Options(NamedTuple):
    """How a convolution goes over its images, as `aten.convolution` takes it."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def convolution(x: Tensor, kernels: Tensor, bias: Tensor | None, *options: Any) -> Tensor:  # noqa: ANN401 - `Options`
    """`aten.convolution` of images (B, C, H, W) with kernels (O, C, K, L): (B, O, P, Q), channels side by side."""
    how = Options(*options)
    if not _is_product(x, kernels, how):
        return NotImplemented  # type: ignore[no-any-return]
    patches, size = _patches(x, kernels, how.stride)
    product = patches @ kernels.permute(2, 3, 1, 0).flatten(0, 2)
    if bias is not None:  # into the loop of what comes next, see `decompositions.biased`
        product = product.as_strided(product.shape, product.stride()) + bias
    return product.view(-1, *size, kernels.shape[0]).permute(0, 3, 1, 2)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    kernels: Tensor,
    bias_sizes: Sequence[int] | None,
    *options_and_wanted: Any,  # noqa: ANN401 - `Options`, and which gradients are wanted
) -> tuple[Tensor | None, ...]:
    """`aten.convolution_backward`: gradients of images, kernels and bias, those that are wanted, from (B, O, P, Q)."""
    *options, wanted = options_and_wanted
    how = Options(*options)
    if not _is_product(x, kernels, how):
        return NotImplemented  # type: ignore[no-any-return]
    of_images, of_kernels, of_bias = wanted
    rows = grad.permute(0, 2, 3, 1).flatten(0, 2)  # (B P Q, O)
    by_images = by_kernels = None
    if of_images:
        by_patches = rows @ kernels.permute(0, 2, 3, 1).flatten(1)
        by_images = _put_together(by_patches, x, kernels, grad.shape[2:], how.stride)
    if of_kernels:
        patches, _ = _patches(x, kernels, how.stride)
        by_kernels = (rows.mT @ patches).view(-1, *kernels.shape[2:], kernels.shape[1]).permute(0, 3, 1, 2).contiguous()
    return by_images, by_kernels, rows.sum(0) if of_bias else None


def _is_product(x: Tensor, kernels: Tensor, how: Options) -> bool:
    plain = not how.transposed and how.groups == 1 and not any(how.padding) and all(d == 1 for d in how.dilation)
    if not plain or x.dim() != 4:
        return False
    size = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernels.shape[2:], how.stride, strict=True)]
    return few_pixels(size)


def few_pixels(size: Sequence[int]) -> bool:
    """Whether patches pay for a convolution whose output is of this height and width."""
    height, width = size
    return height * width <= PIXELS


def _patches(x: Tensor, kernels: Tensor, stride: Sequence[int]) -> tuple[Tensor, tuple[int, int]]:
    """(B P Q, K L C), and (P, Q)."""
    (high, wide), (down, across) = kernels.shape[2:], stride
    windows = x.unfold(2, high, down).unfold(3, wide, across)  # (B, C, P, Q, K, L), by strides
    return windows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(0, 2), (windows.shape[2], windows.shape[3])


def _put_together(by_patches: Tensor, x: Tensor, kernels: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Gradients (B P Q, K L C) of patches as one (B, C, H, W) of images: the sum of those that a pixel is in.

    As the compiler makes a loop over the images' pixels of it, it adds up what is there, without writing zeros.
    """
    channels, high, wide = kernels.shape[1:]
    (p, q), (down, across), (height, width) = size, stride, x.shape[2:]
    parts = by_patches.view(-1, p, q, high, wide, channels)
    lines = by_patches.new_zeros(x.shape[0], p, width, channels)
    images = by_patches.new_zeros(x.shape[0], height, width, channels)
    total = images
    for i in range(high):
        line = lines
        for j in range(wide):
            line = line + slice_scatter(lines, parts[:, :, :, i, j], 2, j, j + (q - 1) * across + 1, across)
        total = total + slice_scatter(images, line, 1, i, i + (p - 1) * down + 1, down)
    return total.permute(0, 3, 1, 2)
