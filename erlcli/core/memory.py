"""Memory of what was seen earlier in an episode: one layer of LSTM or GRU.

Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with forget gates; Cho et al., "Learning Phrase
Representations using RNN Encoder-Decoder" (arXiv 1406.1078). The state of either is one tensor, (N, S): for a GRU its H
hidden numbers, for an LSTM those and then its H cells. Zeros are the state at the start of an episode.

The same weights serve three ways: step by step where one acts, over time with restarts where the learner values a
rollout, and over many sequences at once where it takes gradients.

Dimension letters: T time steps, N environments, R rows, L longest sequence, P sequences, F features, H hidden units,
S numbers of a state.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Kind = Literal["lstm", "gru"]


class Memory(nn.Module):
    """See the module's docstring.

    Args:
        kind: `lstm` or `gru`.
        inputs: F.
        hidden: H.
        encoder: of raw observations, to F features; None where features come.
    """

    def __init__(self, kind: Kind, inputs: int, hidden: int, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.hidden = hidden
        self.is_lstm = kind == "lstm"
        self.state_size = 2 * hidden if self.is_lstm else hidden
        self.cell = (nn.LSTM if self.is_lstm else nn.GRU)(inputs, hidden)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)

    def forward(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: (N, F) and (N, S) to outputs (N, H) and the next state (N, S)."""
        return self._step(features if self.encoder is None else self.encoder(features), state)

    def _step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` behind the encoder."""
        cell = self.cell
        weights: tuple[Any, ...] = (cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0, cell.bias_hh_l0)
        if self.is_lstm:
            hidden, cells = torch.lstm_cell(features, state.chunk(2, dim=-1), *weights)
            return hidden, torch.cat([hidden, cells], dim=-1)
        hidden = torch.gru_cell(features, state, *weights)
        return hidden, hidden

    def over_time(self, features: Tensor, state: Tensor, restarts: Tensor) -> tuple[Tensor, Tensor]:
        """A rollout in which episodes end.

        Args:
            features: (T, N, F).
            state: (N, S) before the first step.
            restarts: (T, N) bool, where an episode begins, so that nothing is remembered.

        Returns:
            Outputs (T, N, H), and the state (T, N, S) after each step.
        """
        outputs, states = [], []
        features = features if self.encoder is None else self.encoder(features)
        for row, forget in zip(features.unbind(0), restarts.unsqueeze(-1).unbind(0), strict=True):
            output, state = self._step(row, state.masked_fill(forget, 0.0))
            outputs.append(output)
            states.append(state)
        return torch.stack(outputs), torch.stack(states)

    def over_sequences(self, features: Tensor, sizes: Tensor, state: Tensor) -> Tensor:
        """Sequences that know nothing of each other, packed: there is no padding that could count.

        Args:
            features: (R, F): the first step of every sequence, then the second of those that have one, and so on; the
                longest sequence comes first in each.
            sizes: (L,) int64 on the CPU, sequences that have a first step, a second one ...
            state: (P, S) before the first step of each.

        Returns:
            (R, H) outputs in the order of `features`.
        """
        features = features if self.encoder is None else self.encoder(features)
        initial = [part.unsqueeze(0).contiguous() for part in state.chunk(2 if self.is_lstm else 1, dim=-1)]
        packed = PackedSequence(features, sizes)
        if self.is_lstm and not features.is_cuda:
            # oneDNN has an LSTM, ten times as fast, but none that takes packed rows. What comes behind the end of a
            # sequence is zeros that nothing reads.
            padded, lengths = pad_packed_sequence(packed)  # (L, P, F)
            return pack_padded_sequence(self.cell(padded, tuple(initial))[0], lengths).data
        output: Tensor = self.cell(packed, tuple(initial) if self.is_lstm else initial[0])[0].data
        return output


class RecurrentCritic(nn.Module):
    """V of all that was seen in an episode: a memory of its own, and a network on what it makes of observations.

    Args:
        memory: takes normalised, flat observations.
        body: from its outputs to values, (..., H) to (..., 1).
    """

    def __init__(self, memory: Memory, body: nn.Module) -> None:
        super().__init__()
        self.memory = memory
        self.body = body

    def forward(self, features: Tensor, sizes: Tensor, state: Tensor) -> Tensor:
        """Values (R,) of packed sequences; see `Memory.over_sequences`."""
        value: Tensor = self.body(self.memory.over_sequences(features, sizes, state))
        return value.squeeze(-1)

    def over_time(self, features: Tensor, state: Tensor, restarts: Tensor) -> tuple[Tensor, Tensor]:
        """Values (T, N) and states (T, N, S) of a rollout; see `Memory.over_time`."""
        outputs, states = self.memory.over_time(features, state, restarts)
        value: Tensor = self.body(outputs)
        return value.squeeze(-1), states

    def after(self, features: Tensor, state: Tensor) -> Tensor:
        """Values (K,) of observations (K, F), each seen after `state` (K, S)."""
        value: Tensor = self.body(self.memory(features, state)[0])
        return value.squeeze(-1)
