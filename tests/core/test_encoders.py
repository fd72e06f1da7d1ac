"""Dimension letters: B batch, C channels, H height, W width."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from erlcli.core import encoders, matmul
from erlcli.core.encoders import ImageEncoder, PartsEncoder, encoded, is_image, make_encoder, trunk_width
from erlcli.core.ensemble import QEnsemble
from erlcli.core.networks import NetworkConfig, mlp
from erlcli.core.packing import packed, vector
from erlcli.core.policy import VectorPolicy
from erlcli.core.types import Box
from erlcli.errors import RecipeError


def image_box(*shape):
    size = int(np.prod(shape))
    return Box(shape, "uint8", (0.0,) * size, (255.0,) * size)


def vector_box(size):
    return Box((size,), "float32", (-1.0,) * size, (1.0,) * size)


@pytest.mark.parametrize(
    ("shape", "channels", "sides"),
    [
        ((84, 84), 1, (84, 84)),
        ((84, 84, 3), 3, (84, 84)),
        ((4, 84, 84), 4, (84, 84)),
        ((12, 84, 84), 12, (84, 84)),
        ((84, 84, 12), 12, (84, 84)),
        ((4, 64, 48, 3), 12, (64, 48)),
        ((4, 3, 64, 48), 12, (64, 48)),
        ((7, 7, 3), 3, (7, 7)),
    ],
)
def test_channels_are_found_from_the_shape(shape, channels, sides):
    _, found, found_sides = encoders._layout(image_box(*shape), NetworkConfig(), "observation")
    assert (found, found_sides) == (channels, sides)


@pytest.mark.parametrize("shape", [(8, 8, 8), (3, 9, 3), (7, 8, 9)])
def test_a_shape_that_says_nothing_has_to_be_told(shape):
    with pytest.raises(RecipeError, match="image_layout"):
        make_encoder(image_box(*shape), NetworkConfig())
    for layout in ("hwc", "chw"):
        assert make_encoder(image_box(*shape), NetworkConfig(image_layout=layout)) is not None


def test_both_layouts_of_one_image_are_encoded_alike(draws):
    hwc, chw = (ImageEncoder(image_box(*shape), NetworkConfig()) for shape in ((20, 16, 3), (3, 20, 16)))
    chw.load_state_dict(hwc.state_dict())
    image = torch.randint(0, 256, (5, 20, 16, 3), generator=draws, dtype=torch.uint8)
    torch.testing.assert_close(hwc(image), chw(image.permute(0, 3, 1, 2).contiguous()))


def test_a_stack_is_more_channels_the_oldest_first(draws):
    stacked = ImageEncoder(image_box(2, 12, 12, 3), NetworkConfig())
    joined = ImageEncoder(image_box(6, 12, 12), NetworkConfig(image_layout="chw"))
    joined.load_state_dict(stacked.state_dict())
    image = torch.randint(0, 256, (4, 2, 12, 12, 3), generator=draws, dtype=torch.uint8)
    channels = torch.cat([image[:, 0].permute(0, 3, 1, 2), image[:, 1].permute(0, 3, 1, 2)], dim=1)
    torch.testing.assert_close(stacked(image), joined(channels))


@pytest.mark.parametrize(
    ("kind", "shape", "width"),
    [
        ("auto", (4, 84, 84), 64 * 7 * 7),  # 84 -> 20 -> 9 -> 7
        ("auto", (36, 36, 3), 64),  # 36 -> 8 -> 3 -> 1
        ("auto", (35, 35, 3), 64 * 6 * 6),  # small: 35 -> 17 -> 8 -> 6
        ("auto", (7, 7, 3), 64),  # 7 -> 5 -> 3 -> 1
        ("impala_cnn", (64, 64, 3), 32 * 8 * 8),
        ("impala_cnn", (7, 7, 3), 32),  # 7 -> 4 -> 2 -> 1
    ],
)
def test_widths(kind, shape, width):
    encoder = make_encoder(image_box(*shape), NetworkConfig(encoder=kind))
    assert encoder.width == width
    out = encoder(torch.zeros(2, *shape, dtype=torch.uint8))
    assert out.shape == (2, width) and out.dtype == torch.float32
    assert encoder(torch.zeros(3, 2, *shape, dtype=torch.uint8)).shape == (3, 2, width)


def test_the_nature_network_by_numpy(draws):
    """A slow transcription: valid convolutions of 8, 4, 3 with strides 4, 2, 1, each with a ReLU, on pixels / 255."""
    encoder = ImageEncoder(image_box(2, 44, 36), NetworkConfig(encoder="nature_cnn"))
    image = torch.randint(0, 256, (1, 2, 44, 36), generator=draws, dtype=torch.uint8)
    x = image[0].numpy().astype(np.float64) / 255.0
    for layer in (encoder.layers[0], encoder.layers[2], encoder.layers[4]):
        weight, bias = (p.detach().numpy().astype(np.float64) for p in (layer.weight, layer.bias))
        kernel, stride = weight.shape[-1], layer.stride[0]
        rows, columns = ((n - kernel) // stride + 1 for n in x.shape[1:])
        y = np.zeros((len(weight), rows, columns))
        for i in range(rows):
            for j in range(columns):
                patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
                y[:, i, j] = np.maximum((weight * patch).sum((1, 2, 3)) + bias, 0.0)
        x = y
    np.testing.assert_allclose(encoder(image)[0].detach().numpy(), x.reshape(-1), atol=1e-4)


def gradients(encoder, encode, images):
    """Features of images, and the weights' gradients of the sum of their squares."""
    encoder.zero_grad()
    features = encode(images)
    features.square().sum().backward()
    return features.detach(), [p.grad.clone() for p in encoder.parameters()]


def test_how_pixels_lie_in_memory_changes_neither_features_nor_gradients(draws):
    encoder = ImageEncoder(image_box(4, 84, 84), NetworkConfig())
    images = torch.randint(0, 256, (3, 4, 84, 84), generator=draws, dtype=torch.uint8)
    wanted, plain = gradients(encoder, lambda x: encoder.layers(x.float() / 255.0), images)
    before = images.clone()
    got, found = gradients(encoder, encoder, images)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    assert torch.equal(images, before)

    # Pixels that are numbers already are not changed where they are.
    numbers = images.float().contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(encoder(numbers), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(numbers, images.float())


def test_factors_of_convolutions_are_rounded_where_all_products_are(draws, monkeypatch):
    encoder = ImageEncoder(image_box(4, 84, 84), NetworkConfig())
    images = torch.randint(0, 256, (3, 4, 84, 84), generator=draws, dtype=torch.uint8)
    exact, plain = gradients(encoder, encoder, images)
    monkeypatch.setattr(matmul, "rounding", lambda: True)
    rounded, found = gradients(encoder, encoder, images)
    assert rounded.dtype == torch.float32 and all(g.dtype == torch.float32 for g in found)
    for a, b in zip((rounded, *found), (exact, *plain), strict=True):
        assert 1e-4 < float((a - b).norm() / b.norm()) < 2e-2  # of 8 bits in each of three layers


def test_weights_of_convolutions_are_orthogonal():
    layer = ImageEncoder(image_box(84, 84, 4), NetworkConfig()).layers[2]
    flat = layer.weight.detach().flatten(1)
    torch.testing.assert_close(flat @ flat.T, 2.0 * torch.eye(len(flat)), atol=1e-4, rtol=0)
    assert not layer.bias.detach().any()


def test_pixels_are_divided_by_their_largest_value():
    ten, byte = (ImageEncoder(image_box(7, 7, 3), NetworkConfig(pixel_max=top)) for top in (10.0, 255.0))
    ten.load_state_dict(byte.state_dict())
    small = torch.full((1, 7, 7, 3), 2, dtype=torch.uint8)
    torch.testing.assert_close(ten(small), byte(torch.full_like(small, 51)), atol=1e-6, rtol=1e-5)


def test_many_images_are_encoded_in_chunks_where_no_gradient_is_wanted(draws, monkeypatch):
    encoder = ImageEncoder(image_box(7, 7, 3), NetworkConfig())
    image = torch.randint(0, 256, (5, 4, 7, 7, 3), generator=draws, dtype=torch.uint8)
    whole = encoder(image)
    monkeypatch.setattr(encoders, "CHUNK", 6)
    with torch.no_grad():
        torch.testing.assert_close(encoder(image), whole.detach())


def test_encoders_that_do_not_fit_are_refused():
    with pytest.raises(RecipeError, match="nature_cnn"):
        make_encoder(image_box(35, 84, 1), NetworkConfig(encoder="nature_cnn"))
    with pytest.raises(RecipeError, match="no image"):
        make_encoder(vector_box(4), NetworkConfig(encoder="impala_cnn"))
    assert make_encoder(vector_box(4), NetworkConfig()) is None
    assert make_encoder(image_box(12, 12, 1), NetworkConfig(encoder="mlp")) is None
    assert not is_image(image_box(128)) and is_image(image_box(12, 12))


def test_a_stack_of_vectors_is_no_image():
    vectors, images = replace(image_box(4, 128), stack=4), replace(image_box(4, 12, 12), stack=4)
    assert not is_image(vectors) and is_image(images)
    assert make_encoder(vectors, NetworkConfig()) is None


def test_parts_are_joined_numbers_first(draws):
    space = packed([("camera", image_box(7, 7, 3)), ("pose", vector_box(2))])
    encoder = make_encoder(space, NetworkConfig())
    assert isinstance(encoder, PartsEncoder) and encoder.width == 2 + 64
    rows = torch.zeros(3, *space.shape, dtype=torch.uint8)
    pose, camera = torch.randn(3, 2, generator=draws), torch.randint(0, 256, (3, 7, 7, 3), generator=draws)
    vector(rows, 2).copy_(pose)
    rows[:, 8 : 8 + 147] = camera.flatten(1)
    out = encoder(rows)
    assert torch.equal(out[:, :2], pose)
    torch.testing.assert_close(out[:, 2:], encoder.encoders[0](camera.to(torch.uint8)))
    assert torch.equal(encoder(encoder.split(rows)), out)
    flat = make_encoder(space, NetworkConfig(encoder="mlp"))
    torch.testing.assert_close(flat(rows), torch.cat([pose, camera.flatten(1) / 255.0], dim=1))


class Plain(VectorPolicy):
    """Observations alone: nobody acts here."""

    noise = act = act_greedy = None


def test_numbers_beside_images_are_normalised_and_images_are_not(draws):
    space = packed([("camera", image_box(7, 7, 3)), ("pose", vector_box(2))])
    policy = Plain(space, 10.0, raw=True)
    rows = torch.randint(0, 256, (6, *space.shape), generator=draws, dtype=torch.uint8)
    pose = torch.randn(6, 2, generator=draws) * 5 + 3
    vector(rows, 2).copy_(pose)
    kept = rows.clone()
    policy.normalizer.update(pose)
    features = policy.features(rows)
    assert torch.equal(rows, kept) and features.dtype == torch.uint8
    assert torch.equal(features[:, 8:], rows[:, 8:])
    expected = (pose - pose.mean(0)) / (pose.var(0, correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(vector(features, 2), expected, atol=1e-5, rtol=1e-5)
    image_only = Plain(image_box(7, 7, 3), 10.0, raw=True)
    assert image_only.normalizer is None


def test_networks_of_vectors_are_as_they_were():
    torch.manual_seed(0)
    plain = mlp(4, (8,), 2)
    torch.manual_seed(0)
    found = encoded(vector_box(4), NetworkConfig(hidden=(8,)), lambda inputs: mlp(inputs, (8,), 2))
    assert list(found.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), plain.parameters(), strict=True))


def test_a_frozen_critic_gives_its_encoder_no_gradient(draws):
    encoder = make_encoder(image_box(7, 7, 3), NetworkConfig())
    critic = QEnsemble(2, encoder.width + 1, (8,), 1, encoder=encoder)
    image = torch.randint(0, 256, (3, 7, 7, 3), generator=draws, dtype=torch.uint8)
    action = torch.randn(3, 1, generator=draws, requires_grad=True)
    critic.q(image, action, frozen=True).sum().backward()
    assert action.grad is not None and all(p.grad is None for p in critic.parameters())
    critic.q(image, action).sum().backward()
    assert all(p.grad is not None for p in critic.parameters())


def test_the_trunk_ends_with_the_last_hidden_layer():
    assert trunk_width(image_box(7, 7, 3), NetworkConfig(hidden=(9, 5))) == 5
    assert trunk_width(image_box(7, 7, 3), NetworkConfig(hidden=())) == 64
    assert trunk_width(vector_box(4), NetworkConfig(hidden=())) == 4
