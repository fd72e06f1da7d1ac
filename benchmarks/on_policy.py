"""Speed of the shipped recipes that learn from rollouts, beside Stable-Baselines3 with the very same settings."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import products
import torch
from report import Settings, bench_command, by_turns, find_peer, on_policy_peer, ratio, spread, table

from erlcli.core import matmul
from erlcli.engine import compute
from erlcli.envs import novel
from erlcli.recipe.load import AnyRecipe, load

TITLE = "Speed of the recipes that learn from rollouts"
BUDGET_SECONDS = 900.0
ACTIONS = 6  # of Pong
SECONDS = 4.0  # and never less than a whole rollout and its updates
ROUNDED = 'engine.precision="bf16"'  # of recipes with images, where the processor can
ALL_EPOCHS = "algorithm.target_kl=1e9"
COMPILED = ['engine.compile="on"']  # also where the shipped budget is too small for that to pay at a first run
EXPLAINED = (
    "The limits are what the ratio would be if acting and learning cost nothing, and if learning cost no more than its "
    "matrix products and convolutions. CartPole, MountainCarContinuous and Pendulum are stepped as machine code here, "
    "by the torch environments that have gymnasium's dynamics. The peer of recipes with a memory is sb3-contrib's, and "
    "that of MiniGrid sees the grid alone, through the same convolutions. Both take all epochs, also where a recipe "
    "has a KL that may end them: it would do so at other moments."
)
RECIPES = (
    "cartpole_a2c", "lunarlander_a2c", "bipedal_a2c", "acrobot_ppo", "mountaincar_continuous_ppo", "pendulum_ppo",
    "lunarlander_ppo", "hopper_ppo", "walker2d_ppo", "halfcheetah_ppo", "ant_ppo", "pong_ppo", "cartpole_novel_ppo",
    "pendulum_novel_ppo", "minigrid_ppo",
)  # fmt: skip
# What the peer sees of what; of MiniGrid the grid alone.
SEEN: dict[str, tuple[str, list[int] | str]] = {
    **{name: (name.replace("NoVel", ""), list(entries)) for name, entries in novel.ENTRIES.items()},
    "MiniGrid-DoorKey-5x5-v0": ("MiniGrid-DoorKey-5x5-v0", "image"),
}


def task(recipe: AnyRecipe) -> dict[str, Any]:
    """What `sb3_on_policy.py` is told so that it does what a recipe says, for as far as speed goes."""
    ours: Any = recipe.algorithm
    options = {
        "n_steps": ours.rollout_length,
        "gamma": ours.gamma,
        "gae_lambda": ours.gae_lambda,
        "learning_rate": ours.learning_rate(0.0),
        "ent_coef": ours.entropy_coef(0.0),
        "vf_coef": ours.value_coef,
        "max_grad_norm": ours.max_grad_norm,
        "normalize_advantage": ours.normalize_advantage,
    }
    if ours.std == "sde":
        options |= {"use_sde": True, "sde_sample_freq": ours.sde_interval or -1}
    if ours.name == "ppo":
        options |= {"batch_size": ours.batch_size, "n_epochs": ours.epochs}
    env, entries = SEEN.get(recipe.env.id, (recipe.env.id, None))
    return {
        "algorithm": ours.name,
        "env": env,
        "entries": entries,
        "memory": recipe.network.recurrent_hidden if recipe.network.recurrent is not None else None,
        "envs": recipe.env.num_envs,
        "normalize": [recipe.normalize.obs, recipe.normalize.reward],
        "atari": recipe.env.atari is not None,
        "hidden": list(recipe.network.hidden),
        "activation": recipe.network.activation,
        "options": options,
    }


def section(settings: Settings) -> str:
    """See `report.section`."""
    python = find_peer(settings)
    names = RECIPES[: 1 if settings.quick else None]
    rows = []
    for place, name in enumerate(names):
        part = settings.share(len(names) - place)
        recipe = load(name)
        sets = [ALL_EPOCHS] if getattr(recipe.algorithm, "target_kl", None) is not None else []
        measures: dict[str, Any] = {"erl": functools.partial(part.bench, name, [*COMPILED, *sets], SECONDS)}
        rounds = recipe.env.atari is not None and matmul.rounds()
        if rounds:
            measures["rounded"] = functools.partial(part.bench, name, [*COMPILED, *sets, ROUNDED], SECONDS)
        if python is not None:
            measures["peer"] = functools.partial(on_policy_peer, python, task(recipe), SECONDS, part)
        found = by_turns(measures, part)
        rows.append(row(name, sets, found["erl"], found.get("peer", [])))
        if rounds:
            rows.append(row(name, [*sets, ROUNDED], found["rounded"], found.get("peer", [])))
    head = [
        "steps/s", "erl", "Stable-Baselines3", "ratio of medians", "of our envs alone", "and of the products alone",
        "command",
    ]  # fmt: skip
    return f"{EXPLAINED}\n\n{table(head, rows)}"


def row(name: str, sets: list[str], ours: list[dict[str, Any]], theirs: list[float]) -> list[str]:
    """A recipe's figures, with what is set beside `COMPILED`; see `EXPLAINED`."""
    speed = [one["steps_per_second"] for one in ours]
    alone = [one["env_limit_steps_per_second"] for one in ours]
    recipe = load(name, sets)
    known = recipe.env.id not in SEEN  # products of a memory, or behind small images, are not
    learning = products_seconds(recipe) if known else 0.0
    both = [1.0 / (1.0 / limit + learning) for limit in alone] if known else []
    return [
        " ".join([name, *sets]),
        spread(speed),
        spread(theirs),
        ratio(speed, theirs),
        ratio(alone, theirs),
        ratio(both, theirs),
        bench_command(name, [*COMPILED, *sets]),
    ]


def products_seconds(recipe: AnyRecipe) -> float:
    """Seconds that the matrix products of learning take for each env step, with the threads that a run has."""
    ours: Any = recipe.algorithm
    collected = ours.rollout_length * recipe.env.num_envs
    rows, epochs = (min(ours.batch_size, collected), ours.epochs) if ours.name == "ppo" else (collected, 1)
    threads = torch.get_num_threads()
    try:
        compute.configure_cpu(recipe)
        if recipe.env.atari is not None:
            step = products.nature(recipe.env.frame_stack, ACTIONS, recipe.network.hidden, rows)
        else:
            env = gymnasium.make(recipe.env.id)
            obs, actions = (gymnasium.spaces.flatdim(space) for space in (env.observation_space, env.action_space))
            step = products.ppo(obs, actions, recipe.network.hidden, rows)
        return step * epochs / rows
    finally:
        torch.set_num_threads(threads)
        matmul.choose(wide=False)
