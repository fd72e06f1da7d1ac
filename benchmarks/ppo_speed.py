"""Speed of PPO with the settings that rl-zoo tuned for Stable-Baselines3, in it and in RLlib, too.

The same are envs, rollouts, batches, epochs and networks. Stable-Baselines3 steps its envs one after the other, as the
zoo does; RLlib shares them between two processes.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from report import (
    Settings,
    bench_command,
    by_turns,
    find_peer,
    find_rllib,
    flags,
    on_policy_peer,
    ratio,
    rllib_peer,
    spread,
    table,
)
from sb3_tasks import PPO_TASKS

TITLE = "Speed of PPO"
Peer = Callable[[Path, Mapping[str, Any], float, Settings], float]  # steps/s, of a task as its script takes it
BUDGET_SECONDS = 600.0
SECONDS = {"cartpole": 6.0, "lunarlander": 4.0, "bipedal": 4.0}  # and never less than a whole rollout and its updates
RECIPES = {"cartpole": "cartpole_ppo", "lunarlander": "lunarlander_continuous_ppo", "bipedal": "bipedal_ppo"}
# What else is measured: on the peer's own envs (BipedalWalker on them is in the section on workers), and with envs in
# processes of their own, which learn the same without a lag, and with it are one update behind.
GYMNASIUM = ("the same on gymnasium's envs", ['env.backend="gymnasium"'])
WORKERS = ("the same with 2 workers", ["engine.workers=2"])
LAG = ("and a lag of one rollout", ["engine.workers=2", "engine.lag=1"])
EXPLAINED = (
    "CartPole is stepped as machine code unless another backend is named: by the torch environment that has "
    "gymnasium's dynamics."
)
VARIANTS = {"cartpole": [GYMNASIUM], "lunarlander": [GYMNASIUM, WORKERS, LAG], "bipedal": [WORKERS, LAG]}


def sets(task: str) -> list[str]:
    """Overrides that make our recipe do what the peer does."""
    settings = PPO_TASKS[task]
    ppo = settings["ppo"]
    return [
        f"env.num_envs={settings['envs']}",
        f"algorithm.rollout_length={ppo['n_steps']}",
        f"algorithm.batch_size={ppo['batch_size']}",
        f"algorithm.epochs={ppo['n_epochs']}",
        f"algorithm.gamma={ppo['gamma']}",
        f"algorithm.gae_lambda={ppo['gae_lambda']}",
        f"normalize.obs={str(settings['normalize']).lower()}",
        f"normalize.reward={str(settings['normalize']).lower()}",
        "network.hidden=[64, 64]",
        'engine.compile="on"',
    ]


def peer_task(task: str) -> dict[str, Any]:
    """What the peers' scripts are told."""
    known = PPO_TASKS[task]
    normalized = [known["normalize"]] * 2
    return {"env": known["env"], "envs": known["envs"], "normalize": normalized, "options": known["ppo"]}


def section(settings: Settings) -> str:
    """See `report.section`."""
    peers = {"peer": (find_peer(settings), on_policy_peer), "rllib": (find_rllib(settings), rllib_peer)}
    rows, tasks = [], list(PPO_TASKS)[: 1 if settings.quick else None]
    for place, task in enumerate(tasks):
        found = measure(task, peers, settings.share(len(tasks) + 1 - place))
        ppo = PPO_TASKS[task]["ppo"]
        shape = f"{PPO_TASKS[task]['envs']} x {ppo['n_steps']}, batch {ppo['batch_size']}, {ppo['n_epochs']} epochs"
        ours, theirs, rllib = found["erl"], found.get("peer", []), found.get("rllib", [])
        name, command = f"{PPO_TASKS[task]['env']}, {shape}", bench_command(RECIPES[task], sets(task))
        both = [spread(theirs), ratio(ours, theirs), spread(rllib), ratio(ours, rllib)]
        rows.append([name, spread(ours), *both, command])
        for words, more in VARIANTS[task]:
            same = found[words]
            both = ["", ratio(same, theirs), "", ratio(same, rllib)]
            rows.append([words, spread(same), *both, f"and `{shlex.join(flags(more))}`"])
    head = ["steps/s", "erl", "Stable-Baselines3", "ratio of medians", "RLlib", "ratio of medians", "command"]
    return f"{EXPLAINED}\n\n{table(head, rows + shipped(settings))}"


def measure(task: str, peers: Mapping[str, tuple[Path | None, Peer]], settings: Settings) -> dict[str, list[float]]:
    """Steps/s of a task: ours, its variants, the peers."""

    def speed(more: Sequence[str] = ()) -> float:
        return float(settings.bench(RECIPES[task], [*sets(task), *more], SECONDS[task])["steps_per_second"])

    measures: dict[str, Callable[[], float]] = {"erl": speed}
    measures |= {words: functools.partial(speed, more) for words, more in VARIANTS[task]}
    for name, (python, speed_of) in peers.items():
        if python is not None:
            measures[name] = functools.partial(speed_of, python, peer_task(task), SECONDS[task], settings)
    return by_turns(measures, settings)


def shipped(settings: Settings) -> list[list[str]]:
    """BipedalWalker as it is shipped, and what its environments alone allow."""
    sets = ["algorithm.rollout_length=16"] if settings.quick else []
    found = by_turns({"it": lambda: settings.bench("bipedal_ppo", sets, 8.0)}, settings)["it"]
    command = bench_command("bipedal_ppo", sets)
    return [
        [name, spread([one[key] for one in found], form), *[""] * 4, command]
        for key, name, form in (
            ("steps_per_second", "bipedal_ppo as shipped", "{:,.0f}"),
            ("env_limit_steps_per_second", "its envs alone", "{:,.0f}"),
            ("share_of_limit", "share of that limit", "{:.0%}"),
        )
    ]
