"""Learning from rollouts with memories: what a recurrent critic says of one, and the sequences that it is learnt in.

A rollout begins with the state that the one before has left, gradients are cut there, and what is learnt from are
whole sequences: stretches of one environment within one episode. The value of a true last observation is that of the
memory at that moment. A memory runs through a sequence step by step, however many there are side by side, so that long
ones are slow: `sequence_length` cuts them, gradients too, and each part goes on from the state that was there when the
rollout was collected.

Dimension letters: T time steps, N environments, S numbers of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erlcli.core.batches import Recurrence
from erlcli.core.memory import RecurrentCritic
from erlcli.core.policy import ActorPolicy
from erlcli.core.returns import next_values
from erlcli.core.sequences import Sequences, restarts
from erlcli.core.types import Rollout


class CriticMemory:
    """A recurrent critic's state from one rollout to the next.

    Args:
        policy: with a memory of its own.
        critic: whose state it is.
        num_envs: N.
        longest: steps of a sequence; None for as many as there are.

    Attributes:
        state: (N, S) after the last rollout.
    """

    def __init__(self, policy: ActorPolicy, critic: RecurrentCritic, num_envs: int, longest: int | None) -> None:
        self._policy, self._critic, self._longest = policy, critic, longest
        device = next(critic.parameters()).device
        self.state = torch.zeros(num_envs, critic.memory.state_size, device=device)

    def restart(self) -> None:
        """Every environment was reset."""
        self.state.zero_()

    def values(self, rollout: Rollout, obs: Tensor) -> tuple[Tensor, Tensor, Recurrence]:
        """Go through a rollout.

        Args:
            rollout: of a policy with a memory.
            obs: (T + 1, N, ...) its prepared observations.

        Returns:
            V (T, N) of the observations acted upon, V (T, N) of what really followed, and what to learn both memories
            from.
        """
        if rollout.start is None:
            raise TypeError("a rollout of a policy without a memory")
        critic, last = self._critic, rollout.final_obs.obs if rollout.next_obs is None else rollout.next_obs
        final, begins = self._policy.prepare(last), restarts(rollout)
        state = self.state.masked_fill(rollout.start.fresh.unsqueeze(-1), 0.0)
        value, states = critic.over_time(obs, state, begins)  # (T + 1, N), (T + 1, N, S)
        if rollout.next_obs is not None:
            rows = critic.after(final.flatten(0, 1), states[:-1].flatten(0, 1))
            following = rows.view_as(rollout.reward)
        else:
            index = rollout.final_obs.index
            final_value = critic.after(final, states[index[:, 0], index[:, 1]])
            following = next_values(value, rollout.final_obs, final_value)
        self.state = states[-2].clone()
        before = torch.cat([state.unsqueeze(0), states[:-2]])  # (T, N, S)
        return value[:-1], following, self._recurrence(rollout, obs, begins, rollout.start.state, before)

    def _recurrence(
        self, rollout: Rollout, obs: Tensor, begins: Tensor, actor_state: Tensor, critic_states: Tensor
    ) -> Recurrence:
        """The rollout's sequences, and the states of actor and critic before each of them."""
        if self._policy.memory is None:
            raise TypeError("a recurrent critic goes with a recurrent policy")
        longest = self._longest
        sequences = Sequences.of(rollout.valid, begins[:-1], longest)
        actor_states = actor_state.unsqueeze(0)  # without a bound only those before the first step are asked for
        if longest is not None and longest < len(rollout.reward):
            _, after = self._policy.memory.over_time(obs[:-2], actor_state, begins[:-2])
            actor_states = torch.cat([actor_states, after])
        place = sequences.step * sequences.goes_on, sequences.env
        goes_on = sequences.goes_on.unsqueeze(-1)
        return Recurrence(sequences, actor_states[place] * goes_on, critic_states[place] * goes_on)
