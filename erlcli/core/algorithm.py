"""The contract between the training loop and an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor

from erlcli.core.collective import Collective
from erlcli.core.compiled import Compiled, Compiler, Owner
from erlcli.core.encoders import convolves, make_encoder, wants_encoder
from erlcli.core.graphs import Graphs
from erlcli.core.memory import Memory
from erlcli.core.networks import NetworkConfig as NetworkConfig  # algorithms find all that they are built from here
from erlcli.core.normalize import RewardNormalizer
from erlcli.core.policy import Policy
from erlcli.core.replay import Replay
from erlcli.core.types import ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete, Rollout

OwnerT = TypeVar("OwnerT", bound=Owner)
P = ParamSpec("P")


@dataclass(frozen=True)
class NormalizeConfig:
    """The `[normalize]` section as an algorithm sees it; fields as in `recipe.schema.NormalizeSection`."""

    obs: bool = False
    reward: bool = False
    obs_clip: float = 10.0
    reward_clip: float = 10.0


@dataclass(frozen=True)
class Context:
    """What every algorithm is built from, beside its own config.

    Attributes:
        spec: of the environment; `spec.num_envs` counts the environments of all workers of this learner.
        network: the `[network]` section.
        normalize: the `[normalize]` section.
        device: where the learner computes.
        seed: of the learner's own draws.
        collective: the group of learners.
        graphs: captures what can be captured on a GPU.
        compiler: compiles gradient steps on a CPU.
    """

    spec: EnvSpec
    network: NetworkConfig = field(default_factory=NetworkConfig)
    normalize: NormalizeConfig = field(default_factory=NormalizeConfig)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    collective: Collective = field(default_factory=Collective)
    graphs: Graphs = field(default_factory=Graphs)
    compiler: Compiler = field(default_factory=Compiler)

    def reward_normalizer(self, gamma: float) -> RewardNormalizer | None:
        """On the learner's device; None where the recipe wants none. `gamma` discounts its running return."""
        if not self.normalize.reward:
            return None
        normalizer = RewardNormalizer(self.spec.num_envs, gamma, self.normalize.reward_clip, self.collective)
        return normalizer.to(self.device)

    def memory(self) -> Memory | None:
        """A fresh one over observations, with an encoder where they want one; None where the recipe wants none."""
        network, obs = self.network, self.spec.obs
        if network.recurrent is None:
            return None
        encoder = make_encoder(obs, network)
        inputs = obs.size if encoder is None else encoder.width
        return Memory(network.recurrent, inputs, network.recurrent_hidden, encoder)

    def compiled(
        self,
        name: str,
        step: Callable[Concatenate[OwnerT, P], tuple[Tensor, ...]],
        *,
        rows_vary: bool = False,
        refusal: str | None = None,
    ) -> Compiled[OwnerT, P]:
        """A gradient step, to be compiled where the run wants it and nothing speaks against it; see `core.compiled`.

        Args:
            name: of the step, for messages.
            step: a function of the algorithm and of tensors.
            rows_vary: whether it is not always as many rows.
            refusal: what of the algorithm's own speaks against it.
        """
        facts = (self.spec.obs, self.spec.action, self.spec.mask, self.network, self.normalize)
        refusal = refusal or self._not_compiled()
        return self.compiler.compile(name, step, facts, rows_vary=rows_vary, refusal=refusal)

    def _not_compiled(self) -> str | None:
        if self.collective.world_size > 1:
            return "several learners exchange gradients"
        if self.network.recurrent is not None:
            return "network.recurrent: sequences have changing shapes"
        if convolves(self.spec.obs, self.network):
            return "network.encoder: its time goes into convolutions"
        return None

    @property
    def shared_trunk(self) -> bool:
        """Whether actor and critic have encoder and hidden layers in common; see `on_policy`."""
        network = self.network
        if network.share_trunk is None:
            return network.recurrent is None and wants_encoder(self.spec.obs, network)
        return network.share_trunk


@dataclass(frozen=True)
class Supports:
    """The action spaces that an algorithm can act in, and whether it obeys masks of legal actions."""

    discrete: bool = False
    multi_discrete: bool = False
    continuous: bool = False
    unbounded: bool = False
    masks: bool = False

    def accepts(self, action: ActionSpace) -> bool:
        """Whether `action` is one of them."""
        if isinstance(action, Box):
            return self.continuous and (action.bounded or self.unbounded)
        if isinstance(action, Discrete):
            return self.discrete
        return isinstance(action, MultiDiscrete) and self.multi_discrete

    def describe(self) -> str:
        """For messages: `Discrete, MultiDiscrete, Box`."""
        names = {
            "Discrete": self.discrete,
            "MultiDiscrete": self.multi_discrete,
            "Box" if self.unbounded else "Box with finite bounds": self.continuous,
        }
        return ", ".join(name for name, yes in names.items() if yes)


class Algorithm(ABC):
    """Owns networks, optimisers, replay and normalisers; the loop owns everything else.

    Attributes:
        Config: model of its `[algorithm]` section.
        config: the section. Schedules are read from it at each update: the loop may put another one in its place.
        supports: the action spaces it can act in.
        shares_trunk: whether actor and critic can have encoder and hidden layers in common, `network.share_trunk`.
        policy: what the workers run.
        rollout_length: T, the steps that the loop collects between updates.
        replay: what it remembers of earlier rollouts, or None; saved in parts beside its state.
    """

    Config: ClassVar[type[BaseModel]]
    config: BaseModel
    supports: ClassVar[Supports]
    shares_trunk: ClassVar[bool] = False
    policy: Policy
    rollout_length: int
    replay: Replay | None = None

    @classmethod
    @abstractmethod
    def build_policy(cls, config: Any, context: Context) -> Policy:  # noqa: ANN401 - each algorithm's own Config
        """The policy alone: what workers, the evaluator and export build before they load its state."""

    @abstractmethod
    def update(self, rollout: Rollout, progress: float, following: float | None = None) -> dict[str, float | Tensor]:
        """Learn from one rollout.

        Args:
            rollout: on the learner's device; its tensors may be reused after the call.
            progress: share of the budget done before it, in [0, 1], for schedules of learning.
            following: share done with it, for schedules of acting; None for the same as `progress`.

        Returns:
            Metrics by name; device scalars are read back later, without a sync.

        Raises:
            DivergedError: something became NaN or infinite, in this rollout or, on a GPU, in the one before.
        """

    def set_acting(self, progress: float) -> dict[str, float | Tensor]:
        """Set what the policy acts by beside its weights, such as epsilon, for steps from `progress` on.

        `update` does so for the rollout after it; the loop does at restart points, where the schedules may be others.

        Returns:
            Metrics by name.
        """
        return {}

    @abstractmethod
    def settle(self) -> None:
        """Wait until what was learnt so far is known to be finite; comes before weights are kept.

        Raises:
            DivergedError: something became NaN or infinite.
        """

    @property
    @abstractmethod
    def updates(self) -> int:
        """Gradient steps taken so far."""

    @abstractmethod
    def restart(self, seed: int) -> None:
        """A restart point: draw from `seed` from here on, and forget episodes that are still open."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs beside the policy: nested dicts of tensors and JSON values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
