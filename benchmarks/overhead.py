"""What collecting costs beside environment and network: the collector, with an env and a policy that do nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from report import Settings, by_turns, spread, table
from torch import Tensor

from erlcli.core.policy import Policy
from erlcli.core.types import Box, EnvSpec, Step
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.collector import Collector
from erlcli.engine.episodes import EpisodeTracker

TITLE = "Overhead of rollouts"
BUDGET_SECONDS = 15.0
ENVS, LENGTH, OBS, ACTIONS = 32, 256, 24, 4  # of BipedalWalker


class NullEnv:
    """Always the same step."""

    generator = None

    def __init__(self) -> None:
        bounds = (-1.0,) * OBS, (1.0,) * OBS
        self.spec = EnvSpec(Box((OBS,), "float32", *bounds), Box((ACTIONS,), "float32", (-1.0,) * 4, (1.0,) * 4), ENVS)
        no = torch.zeros(ENVS, dtype=torch.bool)
        self.given = Step(torch.zeros(ENVS, OBS), torch.zeros(ENVS), no, no, ~no)

    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv`."""
        return self.given.obs

    def first_mask(self) -> None:
        """See `VecEnv`."""

    def step(self, action: Tensor) -> Step:
        """See `VecEnv`."""
        return self.given

    def verify(self) -> None:
        """See `VecEnv`."""

    def close(self) -> None:
        """See `VecEnv`."""


class NullPolicy(Policy):
    """Always the same action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_shape, self.action_dtype = (ACTIONS,), torch.float32
        self.extras = {"log_prob": ((), torch.float32)}
        self.given = torch.zeros(ENVS, ACTIONS), {"log_prob": torch.zeros(ENVS)}

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """See `Policy`."""
        return torch.zeros(*shape, 1)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Policy`."""
        return self.given

    def act_greedy(self, obs: Tensor) -> Tensor:
        """See `Policy`."""
        return self.given[0]


def microseconds(seconds: float) -> tuple[float, float]:
    """Of a vector step in `collect`, and of a vector step in what the loop does with the rollout before the update."""
    env, policy = NullEnv(), NullPolicy()
    layout = rollout_layout(env.spec, policy, LENGTH, ENVS)
    buffers = Buffers({name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in layout.items()})
    collector, tracker = Collector(env, policy, LENGTH, 0, lambda _: None), EpisodeTracker(ENVS)
    collector.restart(0)
    collector.collect(buffers)
    collecting = keeping = 0.0
    rollouts, clock = 0, time.perf_counter
    while collecting + keeping < seconds or rollouts == 0:
        began = clock()
        collector.collect(buffers)
        collected = clock()
        rollout = buffers.rollout(0)
        tracker.add(rollout)
        int(rollout.valid.sum())
        collecting, keeping, rollouts = collecting + collected - began, keeping + clock() - collected, rollouts + 1
    steps = rollouts * LENGTH * 1e-6
    return collecting / steps, keeping / steps


def section(settings: Settings) -> str:
    """See `report.section`."""
    torch.set_num_threads(1)
    found: Sequence[tuple[float, float]] = by_turns({"it": lambda: microseconds(settings.seconds(3.0))}, settings)["it"]
    names = ("collecting a rollout", "its episodes, counts and final observations")
    rows = [[name, spread(values, "{:.1f}")] for name, values in zip(names, zip(*found, strict=True), strict=True)]
    return table([f"microseconds a vector step of {ENVS} envs, without env and network", "erl"], rows)
