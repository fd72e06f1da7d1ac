"""A worker process: steps its share of the environments and writes the transitions into shared memory.

Started by `SharedSampler` as `python -m erlcli.engine.worker RUN_DIR INDEX` and four file descriptors: connection,
rollout memory, weights memory, lifeline. INDEX counts the workers of all learners; the memory is that of one.
"""

from __future__ import annotations

import json
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from erlcli.core.policy import Policy
from erlcli.engine import build, compute
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.child import leave_now, on_orphaned, outlive_sigterm
from erlcli.engine.collector import Collector
from erlcli.engine.failures import report, run_child
from erlcli.engine.shared import Layout, SharedBlock
from erlcli.envs.config import env_config
from erlcli.envs.position import PositionLog
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import ErlError
from erlcli.recipe.load import AnyRecipe, load
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import Heartbeat


def slotted(layout: Layout, slots: int) -> Layout:
    """`layout` several times over, with the slot in front of each name."""
    return {f"{slot}:{name}": entry for slot in range(slots) for name, entry in layout.items()}


def slot(block: SharedBlock, number: int) -> dict[str, torch.Tensor]:
    """The tensors of one slot."""
    prefix = f"{number}:"
    return {k.removeprefix(prefix): v for k, v in block.tensors.items() if k.startswith(prefix)}


def weights_layout(policy: Policy) -> Layout:
    """Shapes and dtypes of a policy's state."""
    return {name: (tuple(t.shape), t.dtype) for name, t in policy.state_dict().items()}


def env_share(recipe: AnyRecipe) -> int:
    """Environments of one worker."""
    return recipe.envs_per_learner // recipe.engine.workers


def work(layout: RunLayout, index: int, connection: Connection, memory_fd: int, weights_fd: int) -> int:
    """Answer the learner's requests until it is done with us."""
    torch.set_num_threads(1)
    recipe = load(layout.recipe)
    compute.choose_products(recipe)
    beat = Heartbeat(layout, f"worker-{index}")
    share = env_share(recipe)
    threads = 1 if recipe.engine.env_threads == "auto" else recipe.engine.env_threads
    beat.progress("env make")
    position = PositionLog(layout.position(f"worker-{index}"))
    env = make_vec_env(env_config(recipe.env, share, threads), position)
    beat.progress("building")
    policy = build.policy(recipe, env.spec)
    length = recipe.algorithm.rollout_length
    slots = recipe.engine.lag + 1
    column = index % recipe.engine.workers * share
    memory = SharedBlock.attach(
        memory_fd, slotted(rollout_layout(env.spec, policy, length, recipe.envs_per_learner), slots)
    )
    buffers = [Buffers(slot(memory, i)).columns(column, column + share) for i in range(slots)]
    channel = SharedBlock.attach(weights_fd, slotted(weights_layout(policy), slots))

    def write(kind: str, message: str) -> None:
        if index % recipe.engine.workers == 0:  # all of a learner's workers compile the same
            connection.send_bytes(json.dumps({"event": kind, "message": message}).encode())

    actor = build.actor(recipe, policy, build.compiler(recipe, torch.device("cpu"), write, beat))
    collector = Collector(env, policy, length, index * share, beat.progress, actor=actor)
    while True:
        beat.progress("waiting")
        request: dict[str, Any] = json.loads(connection.recv_bytes())
        if request["do"] == "leave":
            break
        if request["do"] == "restart":
            collector.restart(request["seed"])
            continue
        policy.load_state_dict(slot(channel, request["weights"]))
        collector.collect(buffers[request["slot"]])
        timing = collector.timing
        answer = {"done": request["rollout"], "env": timing.env, "act": timing.act}
        connection.send_bytes(json.dumps(answer).encode())
    env.close()
    beat.close()
    return 0


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    root, index, *fds = arguments
    connection_fd, memory_fd, weights_fd, lifeline = map(int, fds)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outlive_sigterm()
    on_orphaned(lifeline, leave_now)
    layout, process = RunLayout(Path(root)), f"worker-{index}"
    connection = Connection(connection_fd)

    def body() -> int:
        try:
            return work(layout, int(index), connection, memory_fd, weights_fd)
        except (EOFError, BrokenPipeError):
            return 0  # the learner has left
        except ErlError as error:
            code = report(process, layout, error)
            connection.send_bytes(json.dumps({"error": error.to_json()}).encode())
            return code

    return run_child(process, layout, body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
