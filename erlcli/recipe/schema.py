"""The typed recipe. Every field has a description, a range and a default; unknown keys are errors.

`erl recipes schema` prints these models as JSON Schema, which makes editors complete and check recipes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from erlcli.algorithms.config.base import AlgorithmConfig

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
Reference = Annotated[str, Field(pattern=r"^[^\s:].*:\w+$", examples=["package.module:Class", "./file.py:Class"])]
DEVICE = r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"


class Section(BaseModel):
    """Base of all sections: frozen and strict about unknown keys.

    Attributes:
        fixed: keys that checkpoints are made for, so that they can't change within a run.
    """

    fixed: ClassVar[tuple[str, ...]] = ()
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainSection(Section):
    """What is to be reached, and with what budget."""

    total_steps: int = Field(gt=0, description="Budget in env transitions, over all envs.")
    target_return: float | None = Field(
        None,
        description="Stop once the mean return of eval.episodes episodes reaches this; unset to use it all.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="All randomness of a run derives from it.")
    device: str = Field(
        "auto",
        pattern=DEVICE,
        examples=["auto", "cpu", "cuda", "cuda:0"],
        description="Where the learner computes, and environments of the torch backend are; several learners take one "
        "GPU each from this one on.",
    )


class WrapperSpec(Section):
    """A gymnasium wrapper with arguments."""

    path: Reference = Field(description="`package.module:Class`, or `./file.py:Class` beside the recipe.")
    kwargs: dict[str, Any] = Field({}, description="Keyword arguments after the env.")


class AtariSection(Section):
    """Preprocessing of an Atari game (extra `atari`); what is for training only leaves evaluation alone."""

    noop_max: int = Field(30, ge=0, le=10_000, description="Frames without action at the start of a game, at most.")
    frame_skip: int = Field(4, ge=1, le=64, description="Frames of one action; the last two are seen, as a maximum.")
    size: int = Field(84, ge=8, le=160, description="Height and width of observations in pixels.")
    grey: bool = Field(True, description="Grey instead of three colours.")
    fire: bool = Field(True, description="Press FIRE at the start of every life, where the game has it.")
    life_ends_episode: bool = Field(True, description="A lost life ends an episode; in training only.")
    clip_reward: bool = Field(True, description="Rewards are cut to -1, 0 or 1; in training only.")
    repeat_action_probability: float = Field(
        0.0, ge=0, lt=1, description="With this probability a frame repeats the last action instead (sticky actions)."
    )


class EnvSection(Section):
    """The environment, and how many of it."""

    fixed = ("id", "num_envs", "frame_stack", "action_masks", "atari")

    id: str = Field(
        pattern=r"^\S(.*\S)?$",
        examples=["CartPole-v1", "package.module:Class", "./file.py:Class", "torch/CartPole-v1"],
        description="A registered gymnasium id, `package.module:Class`, or `./file.py:Class` beside the recipe.",
    )
    backend: Literal["auto", "gymnasium", "envpool", "torch"] = Field(
        "auto",
        description="torch steps all copies as tensors on train.device: ids in torch/ and subclasses of TorchEnv, for "
        "which auto takes it; also gymnasium's CartPole-v1, MountainCarContinuous-v0 and Pendulum-v1, for which auto "
        "takes it in runs that compile acting. For others auto takes envpool where it is installed and knows the id, "
        "else gymnasium, which evaluates all ids of its own.",
    )
    num_envs: int = Field(
        8, ge=1, le=65536, description="Environments stepped together, over all learners and workers."
    )
    kwargs: dict[str, Any] = Field({}, description="Keyword arguments of the env.")
    wrappers: list[Reference | WrapperSpec] = Field(
        [],
        description="Wrappers, the innermost first; training and evaluation use the same.",
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="Time limit; unset for the env's own. Reaching it truncates."
    )
    frame_stack: int = Field(1, ge=1, le=64, description="Observations stacked along a new first axis.")
    action_masks: Literal["auto", "info", "off"] = Field(
        "auto",
        description="Masks of legal actions: auto takes them from a method action_masks() of the env or from "
        "action_mask in a Dict observation, info from info['action_mask']; off takes all actions for legal.",
    )
    atari: AtariSection | None = Field(
        None, description="Preprocessing of an Atari game; unset takes an env as gymnasium gives it."
    )


class NetworkSection(Section):
    """The networks of actor and critic."""

    fixed = (
        "hidden", "activation", "layer_norm", "encoder", "image_layout", "pixel_max", "share_trunk", "recurrent",
        "recurrent_hidden", "init",
    )  # fmt: skip

    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field(
        [64, 64], max_length=64, description="Widths of the hidden layers."
    )
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = Field(
        "tanh", description="Activation of the hidden layers."
    )
    layer_norm: bool = Field(False, description="Normalise hidden layers before the activation.")
    encoder: Literal["auto", "mlp", "nature_cnn", "impala_cnn", "small_cnn"] = Field(
        "auto",
        description="What images go through before the hidden layers; auto: nature_cnn from 36 pixels on, small_cnn "
        "below, and mlp (none) for vectors.",
    )
    image_layout: Literal["auto", "hwc", "chw"] = Field(
        "auto", description="Whether channels are the last or the first axis; auto tells it from the shape."
    )
    pixel_max: float = Field(
        255.0, gt=0, description="Pixels are divided by this; lower it where an image uses small numbers only."
    )
    share_trunk: bool | None = Field(
        None,
        description="Whether actor and critic have encoder and hidden layers in common (on-policy algorithms only); "
        "unset: where there is an encoder.",
    )
    recurrent: Literal["lstm", "gru"] | None = Field(
        None, description="A memory of the episode before the hidden layers, for actor and critic; unset for none."
    )
    recurrent_hidden: int = Field(128, ge=1, le=65536, description="Units of the memory.")
    init: Literal["orthogonal", "uniform"] = Field(
        "orthogonal",
        description="First weights of hidden and output layers: orthogonal with biases of 0, or both uniform in "
        "+-1/sqrt(inputs of the layer), as PyTorch has them. Convolutions and memories are orthogonal.",
    )


class NormalizeSection(Section):
    """Running statistics, kept with the policy and frozen at evaluation."""

    fixed = ("obs", "reward")

    obs: bool = Field(False, description="Observations to mean 0 and std 1.")
    reward: bool = Field(False, description="Rewards divided by the std of the discounted return.")
    obs_clip: float = Field(10.0, gt=0, description="Largest magnitude of a normalised observation.")
    reward_clip: float = Field(10.0, gt=0, description="Largest magnitude of a normalised reward.")


class EngineSection(Section):
    """Processes and threads."""

    learners: int = Field(
        1,
        ge=1,
        le=1024,
        description="Learner processes, each on a GPU of its own where there are GPUs; they share env.num_envs and "
        "average their gradients.",
    )
    workers: int = Field(
        0, ge=0, le=1024, description="Worker processes of each learner that step envs; 0 steps them in the learner."
    )
    lag: int = Field(
        0, ge=0, le=1, description="1 lets workers collect the next rollout during an update (needs workers)."
    )
    capture: Literal["auto", "off"] = Field(
        "auto",
        description="auto records rollouts and updates as CUDA graphs where the recipe allows it (its events tell); "
        "off launches every operation by itself. Nothing on a CPU.",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="Matrix products and convolutions of training. tf32 is faster on a GPU (nothing on a CPU) and "
        "keeps 10 bits of a mantissa's 23, bf16 keeps 7 and is faster on a CPU with AMX or AVX-512 BF16, for images "
        "and layers of 256 and more. PPO's ratios no longer start at exactly 1. Weights and sums stay fp32, as does "
        "evaluation.",
    )
    compile: Literal["auto", "on", "updates", "off"] = Field(
        "auto",
        description="Machine code on a CPU, which is several times faster for small networks: of gradient steps "
        "(updates), or of acting too (on), compiled once for a recipe on a machine. auto compiles what pays that back "
        "twice within the budget, and nothing for members of a tournament; off leaves all to PyTorch. Nothing on a "
        "GPU.",
    )
    threads: Count | Auto = Field("auto", description="CPU threads of the learner's tensor operations.")
    env_threads: Count | Auto = Field("auto", description="CPU threads of envpool, per process.")
    hang_seconds: float = Field(
        60.0, gt=0, description="A process that makes no progress for this long is taken for hung."
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="Restarts of a failed process in a row; one that gets something done starts anew.",
    )


class EvalSection(Section):
    """Evaluation: a process of its own, with the deterministic policy, on the CPU."""

    episodes: int = Field(100, ge=1, description="Episodes that crown a best policy or end the run.")
    probe_episodes: int = Field(20, ge=1, description="Episodes of the first look at a snapshot.")
    every_steps: Count | Auto = Field("auto", description="Steps between snapshots; auto is a 50th of the budget.")
    num_envs: int = Field(
        20, ge=1, le=1024, description="Environments stepped together by the evaluator; all where they are tensors."
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Of the fixed set of episodes; never shared with training.")
    keep_snapshots: bool = Field(False, description="Keep all snapshots instead of only those still to evaluate.")


class CheckpointSection(Section):
    """Restart points."""

    every_steps: Count | Auto = Field("auto", description="Steps between checkpoints; auto is a 10th of the budget.")
    keep: int = Field(3, ge=1, description="Newest checkpoints kept, beside the best policy.")


class LogSection(Section):
    """What is recorded how often."""

    every: Count | Auto = Field("auto", description="Updates between metric rows; auto keeps below 5,000 rows.")
    tensorboard: bool = Field(True, description="Write TensorBoard events to tb/.")


A = TypeVar("A", bound=AlgorithmConfig)


class Recipe(Section, Generic[A]):
    """A whole run."""

    train: TrainSection = Field(description=TrainSection.__doc__)
    env: EnvSection = Field(description=EnvSection.__doc__)
    algorithm: SerializeAsAny[A] = Field(description="The algorithm and its hyper-parameters.")
    network: NetworkSection = Field(default_factory=NetworkSection, description=NetworkSection.__doc__)
    normalize: NormalizeSection = Field(default_factory=NormalizeSection, description=NormalizeSection.__doc__)
    engine: EngineSection = Field(default_factory=EngineSection, description=EngineSection.__doc__)
    eval: EvalSection = Field(default_factory=EvalSection, description=EvalSection.__doc__)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection, description=CheckpointSection.__doc__)
    log: LogSection = Field(default_factory=LogSection, description=LogSection.__doc__)

    @property
    def steps_per_rollout(self) -> int:
        """Env transitions of one rollout, T * N; reset-only rows of envpool count here though they aren't steps."""
        return self.algorithm.rollout_length * self.env.num_envs

    @property
    def envs_per_learner(self) -> int:
        """Environments of one learner, stepped by itself or by its workers."""
        return self.env.num_envs // self.engine.learners

    def to_toml(self) -> dict[str, Any]:
        """The recipe as TOML values; what is None is left out, since TOML has no null."""
        return self.model_dump(exclude_none=True)
