"""Convolutions as products: PyTorch's numbers, and nothing left of them in what is compiled."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from erlcli.core import matmul
from erlcli.core.convolutions import are_products
from erlcli.core.decompositions import DECOMPOSITIONS
from erlcli.core.encoders import ImageEncoder, convolves
from erlcli.core.networks import NetworkConfig
from erlcli.core.packing import packed
from erlcli.core.patches import PIXELS, convolution, convolution_backward
from erlcli.core.types import Box

aten = torch.ops.aten


def image(*shape):
    size = torch.Size(shape).numel()
    return Box(shape, "uint8", (0.0,) * size, (255.0,) * size)


def settings(stride=(1, 1), padding=(0, 0), dilation=(1, 1), transposed=False, groups=1):
    return stride, padding, dilation, transposed, (0, 0), groups


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("sides", "kernel", "stride"),
    [
        ((7, 7), (3, 3), (1, 1)),
        ((3, 3), (3, 3), (1, 1)),
        ((5, 9), (3, 3), (1, 1)),
        ((12, 12), (3, 3), (2, 2)),
        ((11, 12), (3, 3), (2, 2)),  # the last column of pixels is in no patch
        ((9, 8), (2, 3), (3, 2)),  # nor are rows between patches
        ((6, 6), (1, 1), (1, 1)),
    ],
)
def test_values_and_gradients_are_those_of_the_convolution(sides, kernel, stride, layout, draws):
    x = torch.randn(5, 3, *sides, generator=draws, dtype=torch.float64).to(memory_format=layout)
    kernels = torch.randn(4, 3, *kernel, generator=draws, dtype=torch.float64)
    bias = torch.randn(4, generator=draws, dtype=torch.float64)
    options = settings(stride)
    for offset in (bias, None):
        wanted = aten.convolution(x, kernels, offset, *options)
        torch.testing.assert_close(convolution(x, kernels, offset, *options), wanted, rtol=1e-12, atol=1e-12)
    grad = torch.randn(wanted.shape, generator=draws, dtype=torch.float64)
    for mask in ([True, True, True], [False, True, True], [True, False, False]):
        wanted = aten.convolution_backward(grad, x, kernels, [4], *options, mask)
        got = convolution_backward(grad, x, kernels, [4], *options, mask)
        for asked, a, b in zip(mask, got, wanted, strict=True):
            assert (a is not None) == asked
            if asked:
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        settings(padding=(1, 1)),
        settings(dilation=(2, 2)),
        settings(groups=2),
        settings(transposed=True),
    ],
)
def test_other_convolutions_stay_what_they_are(options):
    x, kernels = torch.zeros(2, 4, 6, 6), torch.zeros(4, 2 if options[-1] == 2 else 4, 3, 3)
    assert convolution(x, kernels, None, *options) is NotImplemented
    grad = torch.zeros_like(aten.convolution(x, kernels, None, *options))
    assert convolution_backward(grad, x, kernels, None, *options, [True, True, False]) is NotImplemented


def test_so_do_those_of_larger_images_and_of_lines():
    side = int(PIXELS**0.5) + 1 + 2
    large, kernels = torch.zeros(2, 3, side, side), torch.zeros(4, 3, 3, 3)
    assert convolution(large, kernels, None, *settings()) is NotImplemented
    assert convolution(large[..., :-1, :-1], kernels, None, *settings()) is not NotImplemented
    options = ([1], [0], [1], False, [0], 1)
    x, kernels = torch.zeros(2, 3, 6), torch.zeros(4, 3, 3)
    assert convolution(x, kernels, None, *options) is NotImplemented


@pytest.mark.parametrize(
    ("sides", "products"), [((7, 7), True), ((8, 8), True), ((10, 10), False), ((14, 14), True), ((20, 20), False)]
)
def test_which_encoders_are_products_is_known_beforehand(sides, products):
    network = NetworkConfig()
    assert are_products("small_cnn", sides) is products
    assert convolves(image(*sides, 3), network) is not products
    # `convolves` and the decompositions agree about every layer.
    encoder = ImageEncoder(image(*sides, 3), network)
    x = torch.zeros(4, 3, *sides)
    for layer in encoder.layers:
        if isinstance(layer, nn.Conv2d):
            found = convolution(x, layer.weight, layer.bias, *settings(layer.stride))
            assert products is False or found is not NotImplemented
        x = layer(x)


def test_what_has_no_convolutions_does_not_convolve_and_large_ones_do():
    numbers = Box((3,), "float32", (-1.0,) * 3, (1.0,) * 3)
    assert not convolves(numbers, NetworkConfig())
    assert not convolves(image(84, 84, 3), NetworkConfig(encoder="mlp"))
    assert convolves(image(84, 84, 3), NetworkConfig())
    assert convolves(image(7, 7, 3), NetworkConfig(encoder="impala_cnn"))
    small, large = ("small", image(7, 7, 3)), ("large", image(40, 40, 3))
    assert not convolves(packed([("numbers", numbers), small]), NetworkConfig())
    assert convolves(packed([small, large]), NetworkConfig())
    assert not convolves(packed([small, large]), NetworkConfig(encoder="mlp"))


def test_a_traced_gradient_has_products_alone_and_float_ones(monkeypatch):
    """Also where factors are rounded: products do that themselves, and are compared without."""
    monkeypatch.setattr("erlcli.core.machine_code._state", {"tracing": True})
    encoder = ImageEncoder(image(7, 7, 3), NetworkConfig())
    x = torch.randint(0, 256, (6, 7, 7, 3), dtype=torch.uint8)
    weights = tuple(encoder.parameters())

    def gradients(obs):
        return torch.autograd.grad(encoder(obs).square().sum(), weights)

    wanted = gradients(x)
    monkeypatch.setattr(matmul, "rounding", lambda: True)
    traced = make_fx(gradients, DECOMPOSITIONS)(x)
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert "aten.mm.default" in called and not any("convolution" in name for name in called)
    types = {node.meta["val"].dtype for node in traced.graph.nodes if "val" in node.meta}
    assert torch.bfloat16 not in types
    for a, b in zip(traced(x), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
