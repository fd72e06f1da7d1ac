"""What names an environment. Free of torch and gymnasium, so that a backend can be chosen before either is loaded."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from typing import Any

from erlcli.envs.torch_source import is_torch_env

# Ids whose dynamics, rewards, spaces and time limits in envpool are those of gymnasium under the same name.
ENVPOOL_IDS = frozenset(
    {
        "Acrobot-v1", "Ant-v5", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CartPole-v1", "HalfCheetah-v5",
        "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5",
        "LunarLander-v3", "LunarLanderContinuous-v3", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
        "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
    }
)  # fmt: skip


TORCH_NAMESPACE = "torch/"  # of ids whose environments are tensors
# Ids whose dynamics, rewards, spaces and time limits are those of a TorchEnv, by the same name in its namespace.
TWINS = frozenset({"CartPole-v1", "MountainCarContinuous-v0", "Pendulum-v1"})
FRAMES = 108_000  # of a game, half an hour: the field's habit


@dataclass(frozen=True)
class AtariConfig:
    """The `[env.atari]` section as the backends see it; fields as in `recipe.schema.AtariSection`."""

    noop_max: int = 30
    frame_skip: int = 4
    size: int = 84
    grey: bool = True
    fire: bool = True
    life_ends_episode: bool = True
    clip_reward: bool = True
    repeat_action_probability: float = 0.0


@dataclass(frozen=True)
class EnvConfig:
    """The `[env]` section as the backends see it; fields as in `recipe.schema.EnvSection`.

    Attributes:
        wrappers: (reference, kwargs) pairs, the innermost first.
        threads: CPU threads of envpool; None for all cores.
        action_masks: where masks of legal actions are looked for: `auto`, `info` or `off`.
        atari: preprocessing of an Atari game; None for an env that is taken as it is.
        device: where environments that are tensors live; others live on the CPU.
    """

    id: str
    backend: str = "auto"
    num_envs: int = 1
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, dict[str, Any]], ...] = ()
    max_episode_steps: int | None = None
    frame_stack: int = 1
    threads: int | None = None
    action_masks: str = "auto"
    atari: AtariConfig | None = None
    device: str = "cpu"

    @property
    def limit(self) -> int | None:
        """Time limit in steps that the config sets; None leaves it to the env."""
        if self.max_episode_steps is None and self.atari is not None:
            return FRAMES // self.atari.frame_skip
        return self.max_episode_steps

    @property
    def envpool_id(self) -> str:
        """The id that envpool knows the env by: games have no prefix there."""
        return self.id.removeprefix("ALE/") if self.atari is not None else self.id

    @property
    def shows_games(self) -> bool:
        """Whether training sees other rewards or ends than the game has."""
        return self.atari is not None and (self.atari.life_ends_episode or self.atari.clip_reward)


def choose_backend(config: EnvConfig) -> tuple[str, str]:
    """The backend that `auto` means here, and why.

    Returns:
        (backend name, reason as a clause for a log line).
    """
    if config.backend != "auto":
        return config.backend, "the recipe asks for it"
    if config.id.startswith(TORCH_NAMESPACE):
        return "torch", "all copies of it are stepped at once, as tensors"
    if ":" in config.id:
        if is_torch_env(config.id):
            return "torch", "the env is a TorchEnv"
        return "gymnasium", "the env is a Python class"
    if config.id not in ENVPOOL_IDS and not (config.atari is not None and config.id.startswith("ALE/")):
        return "gymnasium", f"envpool is not known to have {config.id} as gymnasium has it"
    if reason := envpool_refusal(config):
        return "gymnasium", reason
    if importlib.util.find_spec("envpool") is None:
        if sys.platform != "linux":
            return "gymnasium", "envpool exists for Linux only"
        return (
            "gymnasium",
            "envpool is not installed (pip install 'erlcli[fast]' steps envs several times faster)",
        )
    return "envpool", "it is installed and has the id"


def envpool_refusal(config: EnvConfig) -> str | None:
    """What in `config` envpool can't do; None where it can do all."""
    if config.kwargs:
        return "env.kwargs are gymnasium's"
    if config.wrappers:
        return "env.wrappers are gymnasium's"
    if config.atari is not None:
        if not config.atari.grey:
            return "env.atari.grey = false is laid out otherwise there"
        return None if config.atari.noop_max else "env.atari.noop_max = 0 is not known there"
    if config.id.startswith("ALE/"):
        return "without [env.atari] a game is gymnasium's"
    if config.frame_stack > 1:
        return "env.frame_stack is done by gymnasium's wrapper"
    return None


def has_twin(config: EnvConfig) -> bool:
    """Whether environments that are tensors can do what the gymnasium ones in `config` do."""
    return config.id in TWINS and not config.kwargs and torch_refusal(config) is None


def torch_refusal(config: EnvConfig) -> str | None:
    """What in `config` environments that are tensors can't do; None where they can do all."""
    if config.wrappers:
        return "env.wrappers are gymnasium's"
    if config.frame_stack > 1:
        return "env.frame_stack is done by gymnasium's wrapper"
    if config.atari is not None:
        return "env.atari is for Atari games"
    if config.action_masks == "info":
        return 'env.action_masks = "info" reads what gymnasium envs tell beside an observation'
    return None


def env_config(section: Any, num_envs: int, threads: int | None = None, device: str = "cpu") -> EnvConfig:  # noqa: ANN401 - EnvSection
    """An `[env]` section (any object with its fields) with `num_envs` environments.

    Args:
        section: `recipe.schema.EnvSection`, which this layer may not import.
        num_envs: environments of this process.
        threads: CPU threads of envpool.
        device: of environments that are tensors.
    """
    wrappers = tuple((w, {}) if isinstance(w, str) else (w.path, w.kwargs) for w in section.wrappers)
    return EnvConfig(
        section.id,
        section.backend,
        num_envs,
        section.kwargs,
        wrappers,
        section.max_episode_steps,
        section.frame_stack,
        threads,
        section.action_masks,
        AtariConfig(**section.atari.model_dump()) if section.atari is not None else None,
        device,
    )
