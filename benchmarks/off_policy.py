"""Speed of off-policy learning on two CPU cores, side by side with Stable-Baselines3 and with the limit of arithmetic.

    python benchmarks/off_policy.py --peer PEER_VENV/bin/python

Both do the same work for each environment step: updates per step, batch, networks. Counted once learning goes on.
Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from erlcli.core import matmul
from erlcli.core.ensemble import QEnsemble
from erlcli.core.networks import mlp
from erlcli.core.optim import Optimizer

# What each of the peer's workloads is in ours: one update a step of 256 rows through 256 x 256; and for DQN 128 updates
# of 64 rows through 64 x 64 after each 256 steps.
WORKLOADS = {
    "sac": ("halfcheetah_sac", []),
    "td3": ("halfcheetah_td3", []),
    "dqn": (
        "cartpole_dqn",
        ["network.hidden=[64, 64]", "algorithm.batch_size=64", "algorithm.n_step=1", "algorithm.rollout_length=32"],
    ),
}
OBS, ACTIONS, ROWS, WIDTH = 17, 6, 256, 256  # HalfCheetah


def ours(workload: str, seconds: float) -> float:
    """Steps/s of `erl bench`."""
    recipe, overrides = WORKLOADS[workload]
    sets = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "erlcli", "bench", recipe, "--seconds", str(seconds), "--json", *sets]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out)["steps_per_second"])


def peer(python: Path, workload: str, seconds: float) -> float:
    """Steps/s of `sb3_off_policy.py`."""
    script = Path(__file__).with_name("sb3_off_policy.py")
    command = [str(python), str(script), workload, "--seconds", str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def seconds_of(work: Callable[[], object], at_least: float = 1.0) -> float:
    """Of one call: the fastest of several groups, since anything else on the machine only adds to it."""
    work()
    start = time.perf_counter()
    work()
    count = max(1, int(at_least / 10 / (time.perf_counter() - start)))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(count):
            work()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def sac_products() -> float:
    """Seconds of the matrix products of one SAC update and nothing else: its limit on this machine.

    The actor on s' and on s; two critics on (s', a'), (s, a) and (s, a ~ pi); backwards through critics (weights, then
    inputs down to the action) and through the actor.
    """
    critic = [(torch.randn(2, i, o), torch.randn(2, ROWS, i), torch.randn(2, ROWS, o)) for i, o in _layers(1)]
    actor = [(torch.randn(i, o), torch.randn(ROWS, i), torch.randn(ROWS, o)) for i, o in _layers(2 * ACTIONS, 0)]

    def forward(layers: list[tuple[Tensor, ...]]) -> None:
        for weight, x, _ in layers:
            torch.matmul(x, weight)

    def weights(layers: list[tuple[Tensor, ...]]) -> None:
        for _, x, grad in layers:
            torch.matmul(x.mT, grad)

    def inputs(layers: list[tuple[Tensor, ...]]) -> None:
        for weight, _, grad in layers:
            torch.matmul(grad, weight.mT)

    def update() -> None:
        for layers in (actor, critic, critic, actor, critic):
            forward(layers)
        weights(critic), inputs(critic[1:])
        inputs(critic), weights(actor), inputs(actor[1:])

    with torch.inference_mode():
        return seconds_of(update)


def _layers(outputs: int, extra: int = ACTIONS) -> list[tuple[int, int]]:
    return [(OBS + extra, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs)]


def critics_seconds(width: int, batched: bool, members: int = 10) -> float:
    """Seconds of one step of ten critics of `width` on a batch: in one operation a layer, or one after the other."""
    inputs, target = torch.randn(ROWS, OBS + ACTIONS), torch.randn(ROWS)
    if batched:
        ensemble = QEnsemble(members, OBS + ACTIONS, (width, width), 1)
        optimizer = Optimizer({"critics": ensemble})
        return seconds_of(lambda: optimizer.step((ensemble(inputs).squeeze(-1) - target).square().mean(1).sum(), 3e-4))
    critics: list[nn.Module] = [mlp(OBS + ACTIONS, (width, width), 1, activation="relu") for _ in range(members)]
    optimizers = [torch.optim.Adam(critic.parameters(), 3e-4) for critic in critics]

    def loop() -> None:
        for critic, adam in zip(critics, optimizers, strict=True):
            adam.zero_grad()
            (critic(inputs).squeeze(-1) - target).square().mean().backward()
            adam.step()

    return seconds_of(loop)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({', '.join(f'{v:,.0f}' for v in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="python of a venv with stable-baselines3; without it, ours alone")
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    print("| what | erl | Stable-Baselines3 | ratio of medians |\n| --- | --- | --- | --- |")
    for workload in options.workloads:
        us, them = [], []
        for _ in range(options.repeats):  # by turns, so that whatever else the machine does hits both
            us.append(ours(workload, options.seconds))
            them += [peer(options.peer, workload, options.seconds)] if options.peer else []
        ratio = f"{statistics.median(us) / statistics.median(them):.2f}" if them else "-"
        print(f"| {workload}, steps/s | {spread(us)} | {spread(them) if them else '-'} | {ratio} |", flush=True)
        if workload == "sac":
            chosen = matmul.choose(wide=True)
            limit = 1.0 / sac_products()
            share = statistics.median(us) / limit
            library = "oneDNN" if chosen else "default"
            print(f"| sac, products alone ({library}), updates/s | {limit:,.0f} | | {share:.0%} reached |", flush=True)
    for width in (64, 256):
        matmul.choose(wide=width >= 256)
        batched, loop = (critics_seconds(width, kind) * 1e3 for kind in (True, False))
        print(
            f"| ten critics of {width}, ms a step: batched, loop | {batched:.2f} | {loop:.2f} | {loop / batched:.1f} |"
        )


if __name__ == "__main__":
    main()
