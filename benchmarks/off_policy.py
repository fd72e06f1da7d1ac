"""Speed of off-policy learning on two CPU cores, side by side with Stable-Baselines3 and with the limit of arithmetic.

Both do the same work for each environment step: updates per step, batch, networks. Counted once learning goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import products
import torch
from products import ACTIONS, OBS, ROWS, seconds_of
from report import Settings, bench_command, by_turns, find_peer, ratio, spread, table
from torch import Tensor, nn

from erlcli.core import matmul, toolchain
from erlcli.core.compiled import Compiler
from erlcli.core.ensemble import QEnsemble
from erlcli.core.networks import mlp
from erlcli.core.optim import Optimizer

COMPILED, ROUNDED = 'engine.compile="on"', 'engine.precision="bf16"'
# What each of the peer's workloads is in ours: one update a step of 256 rows through 256 x 256; and for DQN 128 updates
# of 64 rows through 64 x 64 after each 256 steps.
WORKLOADS = {
    "sac": ("halfcheetah_sac", [COMPILED]),
    "td3": ("halfcheetah_td3", [COMPILED]),
    "dqn": (
        "cartpole_dqn",
        [
            "network.hidden=[64, 64]",
            "algorithm.batch_size=64",
            "algorithm.n_step=1",
            "algorithm.rollout_length=32",
            COMPILED,
        ],
    ),
}
WORDS = {
    "sac": "SAC on HalfCheetah, one update a step of 256 rows through 256 x 256",
    "td3": "TD3, the same",
    "dqn": "DQN on CartPole, 128 updates of 64 rows through 64 x 64 each 256 steps",
}
TITLE = "Off-policy learning"
BUDGET_SECONDS = 405.0
SECONDS = 6.0
PRODUCTS = {"sac": products.sac, "td3": products.td3}


def peer(python: Path, workload: str, settings: Settings) -> float:
    """Steps/s of `sb3_off_policy.py`."""
    script = Path(__file__).with_name("sb3_off_policy.py")
    return float(settings.run(python, script, workload, "--seconds", str(settings.seconds(SECONDS))).split()[-1])


class Critics:
    """Ten critics in one operation a layer, and their gradient step."""

    config = None

    def __init__(self, width: int, members: int) -> None:
        self.ensemble = QEnsemble(members, OBS + ACTIONS, (width, width), 1)
        self.optimizer = Optimizer({"critics": self.ensemble})

    def step(self, inputs: Tensor, target: Tensor) -> tuple[Tensor]:
        """Towards `target` (B,)."""
        loss = (self.ensemble(inputs).squeeze(-1) - target).square().mean(1).sum()
        self.optimizer.apply(loss, 3e-4)
        return (loss.detach(),)


def critics_seconds(width: int, kind: str, members: int = 10) -> float:
    """Seconds of one step of ten critics on a batch: `batched`, that `compiled`, or one after the `other`."""
    inputs, target = torch.randn(ROWS, OBS + ACTIONS), torch.randn(ROWS)
    if kind != "other":
        critics = Critics(width, members)
        step = Compiler(toolchain.libraries() if kind == "compiled" else None).compile(
            "ten critics", Critics.step, [width]
        )
        return seconds_of(lambda: step(critics, inputs, target))
    each: list[nn.Module] = [mlp(OBS + ACTIONS, (width, width), 1, activation="relu") for _ in range(members)]
    optimizers = [torch.optim.Adam(critic.parameters(), 3e-4) for critic in each]

    def loop() -> None:
        for critic, adam in zip(each, optimizers, strict=True):
            adam.zero_grad()
            (critic(inputs).squeeze(-1) - target).square().mean().backward()
            adam.step()

    return seconds_of(loop)


def section(settings: Settings) -> str:
    """See `report.section`."""

    def of(recipe: str, sets: list[str]) -> Callable[[], float]:
        return lambda: float(settings.bench(recipe, sets, SECONDS)["steps_per_second"])

    python = find_peer(settings)
    rows, workloads = [], list(WORKLOADS)[: 1 if settings.quick else None]
    for place, workload in enumerate(workloads):
        recipe, sets = WORKLOADS[workload]
        measures = {"erl": of(recipe, sets)}
        if limit := PRODUCTS.get(workload):
            library = "oneDNN" if matmul.choose(wide=True) else "default"
            measures["products"] = lambda limit=limit: 1.0 / limit()
        if workload == "sac" and matmul.rounds():
            measures["bf16"] = of(recipe, [*sets, ROUNDED])
        if python is not None:
            measures["peer"] = lambda workload=workload: peer(python, workload, settings)
        found = by_turns(measures, settings.share(len(workloads) + 1 - place if place else 2))  # SAC has most to do
        us, them = found["erl"], found.get("peer", [])
        rows.append([WORDS[workload], spread(us), spread(them), ratio(us, them), bench_command(recipe, sets)])
        if us and (limits := found.get("products")):
            share = f"{statistics.median(us) / statistics.median(limits):.0%} reached"
            rows.append([f"the matrix products of such an update alone ({library})", spread(limits), "", share, ""])
        if rounded := found.get("bf16"):
            command = bench_command(recipe, [*sets, ROUNDED])
            rows.append(["the same SAC in bf16", spread(rounded), spread(them), ratio(rounded, them), command])
    head = ["steps/s", "erl", "Stable-Baselines3", "ratio of medians", "command"]
    return "\n\n".join([table(head, rows), critics(settings), hidden(settings)])


def critics(settings: Settings) -> str:
    """Ten critics at once, as it is and compiled as in runs that are long enough, or one after the other."""
    rows = []
    for width in (64, 256)[: 1 if settings.quick else None]:
        matmul.choose(wide=width >= 256)
        compiled, batched, loop = (critics_seconds(width, kind) * 1e3 for kind in ("compiled", "batched", "other"))
        times = [f"{ms:.2f}" for ms in (batched, compiled, loop)]
        rows.append([f"{width} x {width}", *times, f"{loop / batched:.1f}", f"{loop / compiled:.1f}"])
    head = ["ten critics, ms a step", "batched", "and compiled", "own loop", "its time by batched", "by compiled"]
    return table(head, rows)


def hidden(settings: Settings) -> str:
    """What of the environments' time is hidden behind the updates, with a worker and a lag of one rollout."""
    recipe, sets = "bipedal_sac", ['env.backend="gymnasium"', "algorithm.warmup_steps=1000"]
    kinds = {
        "one process": [],
        "a worker": ["engine.workers=1"],
        "a worker, lag 1": ["engine.workers=1", "engine.lag=1"],
    }

    def of(more: list[str]) -> Callable[[], dict[str, Any]]:
        return lambda: settings.bench(recipe, sets + more, SECONDS)

    found = by_turns({name: of(more) for name, more in kinds.items()}, settings)
    rows = []
    for name, more in kinds.items():
        shares = [
            spread([row[f"share_{key}"] for row in found[name]], "{:.1%}") for key in ("env", "act", "wait", "update")
        ]
        speed = spread([row["steps_per_second"] for row in found[name]])
        rows.append([name, speed, *shares, bench_command(recipe, sets + more)])
    explained = (
        "Shares of the time of training. With lag, env and act pass during updates, and wait is what is not hidden."
    )
    head = ["SAC on BipedalWalker in gymnasium", "steps/s", "env", "act", "wait", "update", "command"]
    return f"{explained}\n\n{table(head, rows)}"
