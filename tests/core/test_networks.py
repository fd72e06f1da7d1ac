import pytest
import torch
from torch import nn

from erlcli.core.networks import ACTIVATIONS, Critic, mlp


def linears(network):
    return [layer for layer in network if isinstance(layer, nn.Linear)]


def test_widths_and_layers():
    network = mlp(5, (7, 3), 2)
    assert [(layer.in_features, layer.out_features) for layer in linears(network)] == [(5, 7), (7, 3), (3, 2)]
    assert isinstance(network[-1], nn.Linear)
    assert network(torch.zeros(4, 6, 5)).shape == (4, 6, 2)


def test_no_hidden_layer_is_a_linear_map():
    network = mlp(3, (), 2)
    assert len(network) == 1 and isinstance(network[0], nn.Linear)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations(name):
    network = mlp(2, (4, 4), 1, activation=name)
    assert sum(isinstance(layer, ACTIVATIONS[name]) for layer in network) == 2


def test_layer_norm_comes_before_each_activation():
    kinds = [type(layer) for layer in mlp(2, (4, 4), 1, layer_norm=True)]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.Tanh] * 2 + [nn.Linear]


def test_weights_are_orthogonal_with_the_gain_and_biases_zero():
    network = mlp(8, (8, 8), 4, output_gain=0.01)
    for layer, gain in zip(linears(network), (2**0.5, 2**0.5, 0.01), strict=True):
        product = layer.weight @ layer.weight.T
        torch.testing.assert_close(product, torch.eye(layer.out_features) * gain**2, atol=1e-5, rtol=1e-4)
        assert not layer.bias.any()


def test_initialisation_follows_the_seed():
    def made(seed):
        torch.manual_seed(seed)
        return mlp(3, (4,), 2)[0].weight

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))


def test_critic_drops_the_trailing_dimension():
    critic = Critic(mlp(3, (4,), 1))
    assert critic(torch.zeros(5, 3)).shape == (5,)
    assert critic(torch.zeros(7, 5, 3)).shape == (7, 5)
    assert critic(torch.zeros(0, 3)).shape == (0,)
    assert critic(torch.zeros(1, 1, 3)).shape == (1, 1)
