"""The memory against the equations of its papers, step by step in numpy.

Dimension letters: T time steps, N environments, F features, H hidden units.
"""

import numpy as np
import pytest
import torch

from erlcli.core.memory import Memory, RecurrentCritic
from erlcli.core.networks import mlp

F, H, T, N = 3, 5, 9, 4
every_kind = pytest.mark.parametrize("kind", ["lstm", "gru"])


def make(kind, seed=0):
    torch.manual_seed(seed)
    memory = Memory(kind, F, H)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return memory


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_step(memory, x, state):
    """One step for one environment in double precision."""
    w_in, w_state, b_in, b_state = (p.detach().double().numpy() for p in memory.cell.parameters())
    if memory.is_lstm:
        hidden, cell = state[:H], state[H:]
        enter, keep, candidate, leave = np.split(w_in @ x + b_in + w_state @ hidden + b_state, 4)
        cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(candidate)
        hidden = sigmoid(leave) * np.tanh(cell)
        return hidden, np.concatenate([hidden, cell])
    a, b = np.split(w_in @ x + b_in, 3), np.split(w_state @ state + b_state, 3)
    reset, update = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    hidden = (1 - update) * np.tanh(a[2] + reset * b[2]) + update * state
    return hidden, hidden


def slow_sequence(memory, features, state):
    outputs = []
    for x in features:
        output, state = slow_step(memory, x, state)
        outputs.append(output)
    return np.stack(outputs), state


@every_kind
def test_a_step_is_that_of_the_paper(kind, draws):
    memory = make(kind)
    assert memory.state_size == (2 * H if kind == "lstm" else H)
    x, state = torch.randn(N, F, generator=draws), torch.randn(N, memory.state_size, generator=draws)
    kept = state.clone()
    output, following = memory(x, state)
    assert torch.equal(state, kept)
    for n in range(N):
        expected = slow_step(memory, x[n].double().numpy(), state[n].double().numpy())
        np.testing.assert_allclose(output[n].detach().numpy(), expected[0], atol=1e-6)
        np.testing.assert_allclose(following[n].detach().numpy(), expected[1], atol=1e-6)


@every_kind
def test_over_time_it_forgets_where_episodes_begin(kind, draws):
    memory = make(kind)
    x, start = torch.randn(T, N, F, generator=draws), torch.randn(N, memory.state_size, generator=draws)
    restarts = torch.rand(T, N, generator=draws) < 0.3
    restarts[0, 0], restarts[0, 1] = True, False
    outputs, states = memory.over_time(x, start, restarts)
    for n in range(N):
        state = start[n].double().numpy()
        for t in range(T):
            state = state * (not restarts[t, n])
            output, state = slow_step(memory, x[t, n].double().numpy(), state)
            np.testing.assert_allclose(outputs[t, n].detach().numpy(), output, atol=1e-5)
            np.testing.assert_allclose(states[t, n].detach().numpy(), state, atol=1e-5)


@every_kind
def test_packed_sequences_are_what_they_are_alone(kind, draws):
    memory, lengths = make(kind), [6, 4, 4, 1]
    sequences = [torch.randn(length, F, generator=draws) for length in lengths]
    state = torch.randn(4, memory.state_size, generator=draws)
    packed = torch.cat([torch.stack([s[t] for s in sequences if len(s) > t]) for t in range(6)])
    sizes = torch.tensor([sum(length > t for length in lengths) for t in range(6)])
    output = memory.over_sequences(packed, sizes, state)
    row = 0
    expected = [slow_sequence(memory, s.double().numpy(), state[i].double().numpy()) for i, s in enumerate(sequences)]
    for t in range(6):
        for i, sequence in enumerate(sequences):
            if len(sequence) > t:
                np.testing.assert_allclose(output[row].detach().numpy(), expected[i][0][t], atol=1e-5)
                row += 1
    assert row == len(output)


@every_kind
def test_gradients_over_sequences_are_those_over_time(kind, draws):
    memory = make(kind)
    x, start = torch.randn(T, N, F, generator=draws), torch.randn(N, memory.state_size, generator=draws)
    never = torch.zeros(T, N, dtype=torch.bool)
    found = []
    for output in (
        memory.over_time(x, start, never)[0].flatten(0, 1),
        memory.over_sequences(x.flatten(0, 1), torch.full((T,), N), start),
    ):
        memory.zero_grad()
        output.square().sum().backward()
        found.append([p.grad.clone() for p in memory.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@every_kind
def test_weights_are_orthogonal_at_first(kind):
    memory = Memory(kind, F, H)
    for name, p in memory.named_parameters():
        if "bias" in name:
            assert not p.any()
        else:
            torch.testing.assert_close(p.T @ p, torch.eye(p.shape[1]), atol=1e-5, rtol=0)


@every_kind
def test_the_critic_values_alike_in_all_three_ways(kind, draws):
    critic = RecurrentCritic(make(kind), mlp(H, (7,), 1))
    x = torch.randn(T, N, F, generator=draws)
    start = torch.zeros(N, critic.memory.state_size)
    value, states = critic.over_time(x, start, torch.zeros(T, N, dtype=torch.bool))
    assert value.shape == (T, N) and states.shape == (T, N, critic.memory.state_size)
    packed = critic(x.flatten(0, 1), torch.full((T,), N), start)
    torch.testing.assert_close(packed.view(T, N), value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(critic.after(x[5], states[4]), value[5], atol=1e-5, rtol=1e-5)
