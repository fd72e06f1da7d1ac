"""CrossQ: no target networks, but batch normalisation.

Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"
(arXiv 1902.05605). SAC whose critics see (s, a) and (s', a') in one batch, so that the statistics of their norm layers
are those of both:

    [Q(s, a), Q(s', a')] = Q([s, s'], [a, a']),  y = r + gamma (min_i Q_i(s', a') - alpha log pi(a'|s'))

with y a constant to the gradient. Norm layers renormalise (arXiv 1702.03275, see `core.batch_norm`); they stand before
the first layer and after each activation. Adam's beta_1 is 0.5; the actor moves at every third step.

The statistics of the actor's norm layers change how it acts, so they are part of the policy's state: they take in the
batches of the actor's own steps, while acting, target actions and export go by the running statistics. The critics'
value for the actor's loss goes by their running statistics too.

Deviations: critics as wide as the recipe says, by default as the actor, where the paper has 2048 units.

Dimension letters: E critics, B rows of a batch, F features, A action dimensions.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
from torch import Tensor, nn

from erlcli.algorithms.config.crossq import CrossQConfig
from erlcli.algorithms.config.sac import SoftConfig
from erlcli.algorithms.ddpg import action_dim, squared_loss
from erlcli.algorithms.soft import SoftActorCritic, SquashedPolicy
from erlcli.core.algorithm import Context
from erlcli.core.batch_norm import BatchRenorm
from erlcli.core.encoders import make_encoder
from erlcli.core.ensemble import QEnsemble
from erlcli.core.networks import ACTIVATIONS, Initialisation, linear
from erlcli.core.optim import Optimizer
from erlcli.core.transitions import Transitions

BETAS = (0.5, 0.999)


class NormedMLP(nn.Module):
    """A multi-layer perceptron with batch renormalisation before its first layer and after each activation.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        outputs: width of the output.
        activation: a key of `networks.ACTIVATIONS`.
        layer_norm: normalise over the features of each hidden layer too, before its activation.
        init: see `networks.linear`.
        warmup: updates with plain batch norm.
    """

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        *,
        activation: str,
        layer_norm: bool,
        init: Initialisation,
        warmup: int,
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.norms = nn.ModuleList(BatchRenorm((width,), warmup) for width in widths)
        self.hidden = nn.ModuleList(
            linear(before, after, 2.0**0.5, init) for before, after in itertools.pairwise(widths)
        )
        self.layer_norms = nn.ModuleList(nn.LayerNorm(size) if layer_norm else nn.Identity() for size in hidden)
        self.activation = ACTIVATIONS[activation]()
        self.output = linear(widths[-1], outputs, 0.01, init)

    def forward(self, x: Tensor, training: bool = False) -> Tensor:
        """(B, inputs) to (B, outputs); `training` goes by the batch's statistics and takes them in."""
        x = self.norms[0](x, training=training)
        for layer, layer_norm, norm in zip(self.hidden, self.layer_norms, list(self.norms)[1:], strict=True):
            x = norm(self.activation(layer_norm(layer(x))), training=training)
        out: Tensor = self.output(x)
        return out


class CrossQPolicy(SquashedPolicy):
    """SAC's policy with a batch-normalised network."""

    def build_network(self, config: SoftConfig, context: Context, inputs: int) -> NormedMLP:
        """See `SquashedPolicy.build_network`."""
        if not isinstance(config, CrossQConfig):
            raise TypeError(f"config: expected a CrossQConfig, found {type(config).__name__}")
        network = context.network
        return NormedMLP(
            inputs,
            network.hidden,
            self.distribution.num_params,
            **network.layers,
            warmup=config.norm_warmup,
        )

    def params(self, features: Tensor, *, training: bool = False) -> Tensor:
        """See `SquashedPolicy.params`."""
        params: Tensor = self.network(features, training)
        return params


class CrossQ(SoftActorCritic):
    """See the module's docstring.

    Args:
        config: the `[algorithm]` section.
        context: environment, networks, device, seed.
    """

    Config: ClassVar[type[CrossQConfig]] = CrossQConfig
    config: CrossQConfig

    @classmethod
    def build_policy(cls, config: SoftConfig, context: Context) -> CrossQPolicy:
        """The actor."""
        return CrossQPolicy(config, context)

    def optimizer(self, modules: dict[str, nn.Module], context: Context) -> Optimizer:
        """See `SoftActorCritic.optimizer`."""
        config = self.config
        return Optimizer(
            modules,
            eps=config.adam_eps,
            betas=BETAS,
            max_grad_norm=config.max_grad_norm,
            collective=context.collective,
        )

    def build_critic(self, context: Context) -> QEnsemble:
        """See `SoftActorCritic.build_critic`."""
        config, network, obs = self.config, context.network, context.spec.obs
        encoder = make_encoder(obs, network)
        return QEnsemble(
            config.critics,
            (obs.size if encoder is None else encoder.width) + action_dim(context),
            network.hidden if config.critic_hidden is None else config.critic_hidden,
            1,
            **network.layers,
            batch_norm_warmup=config.norm_warmup,
            encoder=encoder,
        )

    def critic_loss(self, batch: Transitions, features: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `SoftActorCritic.critic_loss`."""
        with torch.no_grad():
            next_features, next_action, cost = self.next_action(batch, *draws)
        joint = torch.cat([features, next_features]), torch.cat([batch.action, next_action])
        value, next_value = self.critic.q(*joint, training=True).chunk(2, dim=-1)  # (E, B) each
        with torch.no_grad():
            target = torch.addcmul(batch.reward, batch.discount, next_value.amin(0) - cost)
        error = value - target
        return squared_loss(error, batch.weight), error.detach().abs().mean(0), value.detach().mean()

    def actor_value(self, features: Tensor, action: Tensor) -> Tensor:
        """See `SoftActorCritic.actor_value`."""
        return self.critic.q(features, action, frozen=True).amin(0)
