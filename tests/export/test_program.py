"""Every operation of a program against torch's own, by tracing small modules."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from erlcli.errors import RecipeError
from erlcli.export.numpy_ops import OPS
from erlcli.export.program import ATEN, compute, translate


class Function(nn.Module):
    """Any function of (B, 6) observations, with some tensors at hand."""

    def __init__(self, body: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)
        nn.init.uniform_(self.norm.bias)
        self.register_buffer("vector", torch.linspace(-1.0, 2.0, 6), persistent=False)
        self.register_buffer("index", torch.tensor([[0, 5, 2], [1, 1, 3]]), persistent=False)
        self.register_buffer("flags", torch.tensor([True, False, True, True, False, True]), persistent=False)
        self.lstm, self.gru = nn.LSTM(3, 2), nn.GRU(3, 2)
        self.requires_grad_(False)

    def forward(self, obs: Tensor) -> Tensor:
        return self.body(self, obs)


def traced(body: Callable[[nn.Module, Tensor], Tensor]) -> tuple[nn.Module, torch.export.ExportedProgram]:
    torch.manual_seed(0)
    module = Function(body).eval()
    batch = {"obs": {0: torch.export.Dim("batch")}}
    with torch.no_grad():
        return module, torch.export.export(module, (torch.zeros(3, 6),), dynamic_shapes=batch)


def dueling(m: nn.Module, x: Tensor) -> Tensor:
    advantage = m.linear(x)
    return (x[:, :1] + advantage - advantage.mean(-1, keepdim=True)).argmax(-1)


def halves(m: nn.Module, x: Tensor) -> Tensor:
    mean, log_std = m.linear(x).chunk(2, -1)
    return torch.tanh(mean) * torch.clamp(log_std, -0.5, 0.5).exp()


BODIES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "arithmetic": lambda m, x: (x + m.vector) * 2.0 - m.vector / 3.0,
    "addcmul": lambda m, x: torch.addcmul(m.vector, x, m.vector),
    "clamp": lambda m, x: x.clamp(max=0.5).clamp(m.vector - 1.0, m.vector + 0.5).clamp_min(-0.75),
    "linear": lambda m, x: m.linear(x),
    "linear_without_bias": lambda m, x: F.linear(x, m.linear.weight),
    "layer_norm": lambda m, x: m.norm(x),
    "layer_norm_plain": lambda m, x: F.layer_norm(x, (6,), eps=0.1),
    "tanh": lambda m, x: x.tanh(),
    "sigmoid": lambda m, x: (50.0 * x).sigmoid(),
    "relu": lambda m, x: x.relu(),
    "elu": lambda m, x: F.elu(x, alpha=0.5),
    "silu": lambda m, x: F.silu(x),
    "gelu": lambda m, x: F.gelu(x),
    "gelu_tanh": lambda m, x: F.gelu(x, approximate="tanh"),
    "softplus": lambda m, x: F.softplus(x),
    "softmax": lambda m, x: torch.softmax(10.0 * x, dim=-1),
    "extremes": lambda m, x: torch.minimum(torch.maximum(x, m.vector), x * 2.0),
    "mean": lambda m, x: x.mean(-1),
    "sum": lambda m, x: x.sum((1,), keepdim=True),
    "range": lambda m, x: (x - x.amin(-1, keepdim=True)) / x.amax((-1,), keepdim=True),
    "argmax": lambda m, x: x.argmax(-1, keepdim=True) + 3,
    "index": lambda m, x: x[..., m.index],
    "select": lambda m, x: x[:, 2],
    "slice": lambda m, x: x[:, 1:5:2],
    "split": lambda m, x: x.split(4, -1)[1] * x.split([2, 4], 1)[0],
    "cat": lambda m, x: torch.cat([x, m.linear(x)], -1),
    "reshape": lambda m, x: x.view(-1, 2, 3).flatten(1).reshape(x.shape[0], 3, 2),
    "axes": lambda m, x: x.unsqueeze(1).unsqueeze(-1).squeeze(1),
    "cast": lambda m, x: (x * 100.0).to(torch.int64),
    "nothing": lambda m, x: F.dropout(x.clone().contiguous().detach(), training=False) + 0.0,
    "dueling": dueling,
    "halves": halves,
    "masked": lambda m, x: x.masked_fill(~m.flags, -3.4e38),
    "lstm": lambda m, x: torch.cat(torch.lstm_cell(x[:, :3], (x[:, 2:4], x[:, 4:]), *m.lstm.parameters()), -1),
    "gru": lambda m, x: torch.gru_cell(x[:, :3], x[:, 4:], *m.gru.parameters()),
}


@pytest.mark.parametrize("name", BODIES)
def test_program_equals_torch(name: str) -> None:
    module, exported = traced(BODIES[name])
    program, tensors = translate(exported)
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    for batch in (1, 4, 33):
        obs = torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch))
        wanted = module(obs).numpy()
        found = compute(program, {**arrays, "obs": obs.numpy()})["action"]
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_every_operation_is_tried_above() -> None:
    used = {step["op"] for body in BODIES.values() for step in translate(traced(body)[1])[0]}
    assert used == set(OPS)
    assert set(ATEN.values()) <= set(OPS)


def test_only_tensors_that_are_used_are_kept() -> None:
    program, tensors = translate(traced(lambda m, x: m.linear(x))[1])
    assert program == [{"op": "linear", "x": "obs", "weight": "linear.weight", "bias": "linear.bias", "out": "action"}]
    assert set(tensors) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda m, x: F.conv1d(x.unsqueeze(1), m.vector.view(1, 1, 6)), "conv1d"),
        (lambda m, x: torch.add(x, m.vector, alpha=2.0), "alpha"),
        (lambda m, x: F.softplus(x, beta=2.0), "softplus"),
        (lambda m, x: x / x.shape[0], "div"),
    ],
)
def test_what_has_no_equivalent_is_refused_by_name(body: Callable[[nn.Module, Tensor], Tensor], what: str) -> None:
    exported = traced(body)[1]
    with pytest.raises(RecipeError) as caught:
        translate(exported)
    assert what in caught.value.found
    assert "--format onnx" in caught.value.remedy
