"""The matrix products and convolutions of one gradient step and nothing else: the limit of arithmetic on this machine.

Batch and networks of SAC and TD3 are those of `off_policy.py` on HalfCheetah.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

from erlcli.core import matmul
from erlcli.core.decompositions import turned

OBS, ACTIONS, ROWS, WIDTH = 17, 6, 256, 256


def seconds_of(work: Callable[[], object], at_least: float = 1.0) -> float:
    """Of one call: the fastest of several groups, since anything else on the machine only adds to it."""
    work()
    start = time.perf_counter()
    work()
    count = max(1, int(at_least / 10 / (time.perf_counter() - start)))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(count):
            work()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """As `erl` has it multiplied, which is the faster of two ways."""
    other = turned(left, right)
    return left @ right if other is NotImplemented else other


class Network:
    """The operands of `members` networks' products: weights, a batch that goes in, and the gradient of what comes out.

    Biases, activations and losses are left out, since they are not products.
    """

    def __init__(self, widths: Sequence[int], rows: int, members: int | None = None):
        lead = () if members is None else (members,)
        self.layers = [
            (torch.randn(*lead, i, o), torch.randn(*lead, rows, i), torch.randn(*lead, rows, o))
            for i, o in itertools.pairwise(widths)
        ]

    def forward(self) -> None:
        """Of all layers."""
        for weight, x, _ in self.layers:
            product(x, weight)

    def backward(self, weights: bool = True, inputs: bool = False) -> None:
        """The gradients of the `weights`, and those of hidden layers' inputs; of what comes in with `inputs`."""
        for place, (weight, x, gradient) in enumerate(self.layers):
            if weights:
                product(x.mT, gradient)
            if place or inputs:
                product(gradient, weight.mT)


def critics(members: int | None = None) -> Network:
    """Q(s, a)."""
    return Network([OBS + ACTIONS, WIDTH, WIDTH, 1], ROWS, members)


def actor(outputs: int) -> Network:
    """What acts in s."""
    return Network([OBS, WIDTH, WIDTH, outputs], ROWS)


def sac() -> float:
    """Seconds of one update: the actor on s' and s; two critics on (s', a'), (s, a) and (s, a ~ pi), and backwards."""
    policy, both = actor(2 * ACTIONS), critics(2)

    def update() -> None:
        for network in (policy, both, both, policy, both):
            network.forward()
        both.backward()
        both.backward(weights=False, inputs=True)  # down to the action
        policy.backward()

    with torch.inference_mode():
        return seconds_of(update)


def td3() -> float:
    """Seconds of one update: the actor on s', two critics on (s', a') and (s, a), and backwards.

    Each second update has the actor's, too: the actor on s, the first critic on (s, pi(s)), and backwards.
    """
    policy, both, first = actor(ACTIONS), critics(2), critics()

    def two_updates() -> None:
        for _ in range(2):
            for network in (policy, both, both):
                network.forward()
            both.backward()
        policy.forward()
        first.forward()
        first.backward(weights=False, inputs=True)
        policy.backward()

    with torch.inference_mode():
        return seconds_of(two_updates) / 2


def ppo(inputs: int, outputs: int, hidden: Sequence[int], rows: int) -> float:
    """Seconds of one gradient step of actor and critic, networks of their own, on `rows`; of A2C likewise."""
    networks = [Network([inputs, *hidden, last], rows) for last in (outputs, 1)]

    def step() -> None:
        for network in networks:
            network.forward()
            network.backward()

    with torch.inference_mode():
        return seconds_of(step)


class Convolutions:
    """The operands of Mnih et al.'s three convolutions, 84 x 84 pixels to 7 x 7, with a pixel's channels side by side.

    In bfloat16 where this process rounds.
    """

    KERNELS = ((32, 8, 4, 84), (64, 4, 2, 20), (64, 3, 1, 9))  # channels, side, stride; side of what comes in
    FEATURES = 64 * 7 * 7

    def __init__(self, channels: int, rows: int):
        dtype = torch.bfloat16 if matmul.rounding() else torch.float32
        self.layers = []
        for out, side, stride, size in self.KERNELS:
            end = (size - side) // stride + 1
            shapes = ((rows, channels, size, size), (out, channels, side, side), (rows, out, end, end))
            x, weight, gradient = (torch.randn(*shape).to(dtype, memory_format=torch.channels_last) for shape in shapes)
            self.layers.append((x, weight, gradient, stride))
            channels = out

    def forward(self) -> None:
        """Of all layers."""
        for x, weight, _, stride in self.layers:
            torch.conv2d(x, weight, stride=stride)

    def backward(self) -> None:
        """The gradients of the weights, and those of what comes in, but for the first layer's."""
        for place, (x, weight, gradient, stride) in enumerate(self.layers):
            window = [stride, stride], [0, 0], [1, 1]  # stride, padding, dilation
            wanted = [place > 0, True, False]
            torch.ops.aten.convolution_backward(gradient, x, weight, None, *window, False, [0, 0], 1, wanted)


def nature(channels: int, outputs: int, hidden: Sequence[int], rows: int) -> float:
    """Seconds of one gradient step of PPO on `rows` images; actor and critic share all but their last layers."""
    images = Convolutions(channels, rows)
    trunk = Network([Convolutions.FEATURES, *hidden], rows)
    heads = [Network([hidden[-1], last], rows) for last in (outputs, 1)]

    def step() -> None:
        images.forward()
        for network in (trunk, *heads):
            network.forward()
        for head in heads:
            head.backward(inputs=True)
        trunk.backward(inputs=True)
        images.backward()

    with torch.inference_mode():
        return seconds_of(step)
