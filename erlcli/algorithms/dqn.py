"""The DQN family: each member differs from its parent where its paper does.

* `DQN`: Mnih et al., "Playing Atari with Deep Reinforcement Learning" (arXiv 1312.5602), with the target network of
  the journal version. Minimise the Huber loss of

      Q(s, a) - (R + gamma^k max_a' Q_target(s', a'))

  where R is the discounted sum of the k rewards up to s', and terminated episodes have no future.
* `DoubleDQN`: van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning" (arXiv 1509.06461). The online
  network chooses a', the target network values it.
* `DuelingDQN`: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning" (arXiv 1511.06581).
  Q = V + A - mean A (equation 9).
* `D3QN`: both.

Beyond the papers: Adam instead of RMSProp; the target network may follow softly; epsilon is tossed for each
environment; losses are weighted where replay is prioritised.

Dimension letters: T time steps, N environments, B batch, C choices.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from erlcli.algorithms.config.dqn import D3QNConfig, DoubleDQNConfig, DQNConfig, DuelingDQNConfig, QLearningConfig
from erlcli.algorithms.off_policy import ExploringPolicy, OffPolicyAlgorithm
from erlcli.core.algorithm import Context, NetworkConfig, Supports
from erlcli.core.encoders import encoded, wants_encoder
from erlcli.core.networks import mlp
from erlcli.core.optim import Optimizer
from erlcli.core.target import Target
from erlcli.core.transitions import Transitions
from erlcli.core.types import Box, Discrete


def plain_network(inputs: int, choices: int, network: NetworkConfig) -> nn.Module:
    """A multi-layer perceptron."""
    return mlp(inputs, network.hidden, choices, **network.layers)


class DuelingNetwork(nn.Module):
    """Streams for V and A, each with the last hidden layer for itself, on what is before it.

    Args:
        inputs: width of the input.
        choices: C.
        network: the `[network]` section.
    """

    def __init__(self, inputs: int, choices: int, network: NetworkConfig) -> None:
        super().__init__()
        shared, own = network.hidden[:-1], network.hidden[-1:]
        self.torso = mlp(inputs, shared, 1, **network.layers)[:-1]  # without the output layer
        width = shared[-1] if shared else inputs
        self.value = mlp(width, own, 1, **network.layers)
        self.advantage = mlp(width, own, choices, **network.layers)

    def forward(self, features: Tensor) -> Tensor:
        """(..., F) to (..., C)."""
        shared = self.torso(features)
        advantage: Tensor = self.advantage(shared)
        q: Tensor = self.value(shared) + (advantage - advantage.mean(-1, keepdim=True))
        return q


class QPolicy(ExploringPolicy):
    """Epsilon-greedy on Q values.

    Args:
        obs: the observation space.
        action: C choices.
        network: features to whatever `values` turns into Q values.
        obs_clip: bound of normalised observations, or None to leave observations as they are.
        epsilon: at first.
        warmup: whether to start with random actions.
        raw: whether the network begins with an encoder.
    """

    epsilon: Tensor
    scores_are_values = True

    def __init__(
        self,
        obs: Box,
        action: Discrete,
        network: nn.Module,
        obs_clip: float | None,
        epsilon: float,
        warmup: bool,
        raw: bool = False,
    ) -> None:
        super().__init__(obs, obs_clip, warmup, raw)
        self.choices = action.n
        self.network = network
        self.register_buffer("epsilon", torch.tensor(epsilon))
        self.action_shape = ()
        self.action_dtype = torch.int64

    def values(self, features: Tensor) -> Tensor:
        """Q values (..., C)."""
        q: Tensor = self.network(features)
        return q

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Uniform in [0, 1): a coin and a choice for every environment and step, (*shape, 2)."""
        return torch.rand(*shape, 2, generator=generator, device=device)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The greedy choice, or with probability epsilon one at random."""
        coin, choice = noise.unbind(-1)
        # The product may round up to C.
        random = (choice * self.choices).to(torch.int64).clamp_(max=self.choices - 1)
        return torch.where(coin < self.epsilon.masked_fill(self.warmup, 1.0), random, self.act_greedy(obs)), {}

    def act_greedy(self, obs: Tensor) -> Tensor:
        """The choice of the largest Q value."""
        return self.values(self.features(obs)).argmax(-1)

    def choice_scores(self, obs: Tensor) -> Tensor:
        """Q values (N, C)."""
        return self.values(self.features(obs))


class DQN(OffPolicyAlgorithm):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config = DQNConfig
    supports: ClassVar[Supports] = Supports(discrete=True)
    policy_class: ClassVar[type[QPolicy]] = QPolicy
    config: QLearningConfig
    policy: QPolicy

    def __init__(self, config: QLearningConfig, context: Context) -> None:
        super().__init__(config, context)
        self.optimizer = Optimizer(
            {"critic": self.policy.network},
            eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            collective=context.collective,
        )
        self.target = Target(self.policy.network, self.optimizer.flat)
        self.networks = {"target": self.target.module}
        self.optimizers = {"critic": self.optimizer}
        self._step = context.compiled("gradient step", type(self).step)

    @classmethod
    def build_policy(cls, config: QLearningConfig, context: Context) -> QPolicy:
        """The Q network with epsilon."""
        spec, action = context.spec, context.spec.action
        if not isinstance(action, Discrete):
            raise TypeError(f"action space: expected Discrete, found {action}")
        return cls.policy_class(
            spec.obs,
            action,
            encoded(
                spec.obs,
                context.network,
                lambda inputs: cls.build_network(config, inputs, action.n, context.network),
            ),
            context.normalize.obs_clip if context.normalize.obs else None,
            config.epsilon(0.0),
            config.warmup_steps > 0,
            wants_encoder(spec.obs, context.network),
        )

    @classmethod
    def build_network(cls, config: Any, inputs: int, choices: int, network: NetworkConfig) -> nn.Module:  # noqa: ANN401
        """From features to whatever the policy turns into Q values."""
        return plain_network(inputs, choices, network)

    def learn(self, batch: Transitions) -> dict[str, Tensor]:
        """One gradient step, and what follows from it; see `OffPolicyAlgorithm.learn`."""
        loss, error, value = self._step(self, batch)
        self.optimizer.count(1)
        self.replay.update_priorities(batch.index, error)
        self.follow()
        return {"loss/critic": loss, "value/q": value}

    def step(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step on the Huber loss; the loss, TD errors (B,) and the mean value, without gradient."""
        features, next_features = self.policy.features(batch.obs), self.policy.features(batch.next_obs)
        with torch.no_grad():
            target = batch.reward + batch.discount * self.next_value(next_features)
        q = self.policy.values(features).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)  # (B,)
        loss = (F.smooth_l1_loss(q, target, reduction="none") * batch.weight).mean()
        self.optimizer.apply(loss, self.learning_rate)
        q = q.detach()
        return loss.detach(), q - target, q.mean()

    def next_value(self, features: Tensor) -> Tensor:
        """The value (B,) of what follows."""
        value: Tensor = self.target.module(features).max(-1).values
        return value

    def follow(self) -> None:
        """Update the target network where it is due, counted in gradient steps alone."""
        if self.updates % self.config.target_interval == 0:
            self.target.update(self.config.tau)

    def set_acting(self, progress: float) -> dict[str, float | Tensor]:
        """Epsilon; see `Algorithm.set_acting`."""
        epsilon = self.config.epsilon(progress / self.config.exploration_fraction)
        self.policy.epsilon.fill_(epsilon)
        return {"schedule/epsilon": epsilon}


class DoubleDQN(DQN):
    """The online network chooses, the target network values."""

    Config = DoubleDQNConfig  # type: ignore[assignment]

    def next_value(self, features: Tensor) -> Tensor:
        """See `DQN.next_value`."""
        choice = self.policy.values(features).argmax(-1, keepdim=True)
        value: Tensor = self.target.module(features).gather(-1, choice).squeeze(-1)
        return value


class DuelingDQN(DQN):
    """A network with streams for value and advantage."""

    Config = DuelingDQNConfig  # type: ignore[assignment]

    @classmethod
    def build_network(cls, config: Any, inputs: int, choices: int, network: NetworkConfig) -> nn.Module:  # noqa: ANN401
        """See `DQN.build_network`."""
        return DuelingNetwork(inputs, choices, network)


class D3QN(DuelingDQN, DoubleDQN):
    """Dueling double DQN."""

    Config = D3QNConfig  # type: ignore[assignment]
