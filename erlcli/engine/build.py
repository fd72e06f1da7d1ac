"""From a recipe to the objects that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from erlcli.algorithms import registry
from erlcli.core import toolchain
from erlcli.core.actor import Actor
from erlcli.core.algorithm import Algorithm, Context, NetworkConfig, NormalizeConfig
from erlcli.core.collective import ALONE, Collective
from erlcli.core.compiled import Compiler
from erlcli.core.encoders import convolves
from erlcli.core.graphs import CudaRecorder, Graphs
from erlcli.core.policy import Policy, VectorPolicy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec
from erlcli.engine.memory import ReplayNeed
from erlcli.envs.config import choose_backend, env_config
from erlcli.errors import RecipeError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.writer import EventLog, Heartbeat


def context(
    recipe: AnyRecipe,
    spec: EnvSpec,
    device: torch.device,
    collective: Collective = ALONE,
    graphs: Graphs | None = None,
    compiler: Compiler | None = None,
) -> Context:
    """What algorithms are built from; `spec` is that of one process, the context speaks of all the learner's envs."""
    normalize = recipe.normalize
    return Context(
        spec=replace(spec, num_envs=recipe.envs_per_learner),
        network=network(recipe),
        normalize=NormalizeConfig(normalize.obs, normalize.reward, normalize.obs_clip, normalize.reward_clip),
        device=device,
        seed=recipe.train.seed,
        collective=collective,
        graphs=graphs or Graphs(),
        compiler=compiler or Compiler(),
    )


def network(recipe: AnyRecipe) -> NetworkConfig:
    """The `[network]` section."""
    section = recipe.network
    return NetworkConfig(
        tuple(section.hidden),
        section.activation,
        section.layer_norm,
        section.encoder,
        section.image_layout,
        section.pixel_max,
        section.share_trunk,
        section.recurrent,
        section.recurrent_hidden,
        section.init,
    )


def algorithm(
    recipe: AnyRecipe,
    spec: EnvSpec,
    device: torch.device,
    collective: Collective = ALONE,
    graphs: Graphs | None = None,
    compiler: Compiler | None = None,
) -> Algorithm:
    """The algorithm with freshly initialised networks, which depend on the seed alone.

    Raises:
        RecipeError: the algorithm can't act in the env's action space, or its replay does not fit in memory.
    """
    found: Any = registry.implementation(recipe.algorithm.name)
    if not found.supports.accepts(spec.action):
        raise RecipeError(
            f"algorithm.name: {recipe.algorithm.name} can't act in {recipe.env.id}",
            expected=f"an action space of these kinds: {found.supports.describe()}",
            found=str(spec.action),
            remedy="another algorithm (erl recipes), or a wrapper that bounds or discretises the actions",
        )
    if recipe.network.share_trunk and recipe.network.recurrent is not None:
        raise RecipeError(
            "network.share_trunk: memories are never shared",
            expected="network.share_trunk = false or unset with network.recurrent",
            found="true",
            remedy="leave network.share_trunk out",
        )
    if recipe.network.share_trunk and not found.shares_trunk:
        raise RecipeError(
            f"network.share_trunk: {recipe.algorithm.name} can't share",
            expected="an algorithm whose actor and critic learn in one step, such as ppo",
            found=recipe.algorithm.name,
            remedy="leave network.share_trunk out: actor and critics have an encoder each",
        )
    if spec.mask and not found.supports.masks:
        raise RecipeError(
            f"algorithm.name: {recipe.algorithm.name} does not obey the masks of legal actions of {recipe.env.id}",
            expected="ppo or a2c for an env with masks",
            found=f"{recipe.algorithm.name}, and masks over {spec.mask} choices",
            remedy='env.action_masks = "off", if the env copes with illegal actions',
        )
    _check_h_term(recipe, spec)
    if (need := ReplayNeed.of(recipe, spec, policy(recipe, spec), device)) is not None:
        need.check()
    torch.manual_seed(derive(recipe.train.seed, "init"))
    made: Algorithm = found(recipe.algorithm, context(recipe, spec, device, collective, graphs, compiler))
    return made


def check_placement(recipe: AnyRecipe) -> None:
    """Whether the environments can be where the recipe puts them.

    Raises:
        RecipeError: worker processes are to step environments that are tensors on the learner's device.
    """
    if recipe.engine.workers and choose_backend(env_config(recipe.env, recipe.env.num_envs))[0] == "torch":
        raise RecipeError(
            f"engine.workers: {recipe.env.id} is stepped as tensors, by the learner itself",
            expected="engine.workers = 0 with the torch backend",
            found=str(recipe.engine.workers),
            remedy="leave engine.workers out, and raise env.num_envs",
        )


def policy(recipe: AnyRecipe, spec: EnvSpec) -> Policy:
    """The policy alone, on the CPU, for processes that only act."""
    found: Any = registry.implementation(recipe.algorithm.name)
    made: Policy = found.build_policy(recipe.algorithm, context(recipe, spec, torch.device("cpu")))
    return made.eval()


def device(name: str, number: int | None = None) -> torch.device:
    """The device that `train.device` means here.

    Args:
        name: as in the recipe.
        number: of this learner among those on this machine, each of which takes a GPU; None for a single one.

    Raises:
        RecipeError: this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if number is not None and name != "cpu":
        first = int(name.partition(":")[2] or 0)
        if (mine := f"cuda:{first + number}") in devices:
            return torch.device(mine)
        raise RecipeError(
            "engine.learners: more learners than GPUs",
            expected=f"a GPU for each; there are {len(devices) - 1} here",
            found=f"learner {number + 1} on this machine, train.device {name}",
            remedy='fewer engine.learners, or train.device = "cpu"',
        )
    if name == "cuda" and len(devices) > 1:
        return torch.device("cuda:0")  # as tensors say it: with an index
    if name in devices:
        return torch.device(name)
    raise RecipeError(
        f"train.device {name}: not on this machine",
        expected=", ".join(["auto", *devices]),
        found=name,
        remedy='train.device = "auto", or see erl doctor',
    )


def _check_h_term(recipe: AnyRecipe, spec: EnvSpec) -> None:
    """It needs the density of a stored action from its observation alone."""
    h_term = getattr(recipe.algorithm, "h_term", None)
    if h_term is None or not h_term.enabled:
        return
    reasons = {
        f"network.recurrent: {recipe.network.recurrent}": recipe.network.recurrent is not None,
        f"masks over {spec.mask} choices": spec.mask > 0,
        'algorithm.std: "sde"': getattr(recipe.algorithm, "std", None) == "sde",
    }
    for found, there in reasons.items():
        if there:
            raise RecipeError(
                "algorithm.h_term: can't be used here",
                expected="a policy without memory, masks and state-dependent exploration",
                found=found,
                remedy="algorithm.h_term.enabled = false",
            )


def graphs(recipe: AnyRecipe, device: torch.device, events: EventLog) -> Graphs:
    """What captures the run's rollouts and updates, where there is a GPU to do it; events tell what became of them."""

    def tell(name: str, reason: str | None) -> None:
        message = f"captured: the {name}, as a CUDA graph" if reason is None else f"not captured: the {name}: {reason}"
        events.write("capture", message)

    wanted = device.type == "cuda" and recipe.engine.capture == "auto"
    return Graphs(CudaRecorder(device) if wanted else None, tell)


def compiler(recipe: AnyRecipe, device: torch.device, write: Callable[[str, str], object], beat: Heartbeat) -> Compiler:
    """What compiles the steps of a process, if it is to be.

    Args:
        recipe: of the run.
        device: where the steps run.
        write: told what becomes of them, as an event of a kind and its message.
        beat: told that compiling takes long, also in the midst of a rollout, so that no environment is taken for hung.
    """
    if device.type != "cpu" or recipe.engine.compile not in ("on", "updates"):  # auto is resolved before a run
        return Compiler()

    def tell(name: str, reason: str | None) -> None:
        write("compile", f"compiled: the {name}" if reason is None else f"not compiled: the {name}: {reason}")

    def begin(name: str) -> None:
        beat.progress("compiling")
        write("compile", f"compiling the {name}, once for this recipe on this machine")

    return Compiler(toolchain.libraries(), tell, begin)


def actor(recipe: AnyRecipe, policy: Policy, compiler: Compiler) -> Actor:
    """What acts for a policy on the CPU, compiled with `engine.compile = "on"`."""
    refusal = None
    if not policy.plain:
        refusal = "the policy obeys masks, or remembers"
    elif isinstance(policy, VectorPolicy) and convolves(policy.obs, network(recipe)):
        refusal = "network.encoder: its time goes into convolutions"
    wanted = compiler if recipe.engine.compile == "on" else None
    return Actor(policy, recipe.algorithm, wanted, (recipe.network, recipe.normalize), refusal)
