"""Run directories made without training: random weights and statistics, saved as training saves them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from erlcli.core.types import ActionSpace, Box, EnvSpec
from erlcli.engine import build, checkpoint
from erlcli.engine.checkpoint import Checkpoint
from erlcli.engine.plan import resolve
from erlcli.recipe.load import dump, load
from erlcli.runs.jsonl import write_json
from erlcli.runs.layout import RunLayout

RECIPE = """
[train]
total_steps = 4096
[env]
id = "CartPole-v1"
num_envs = 2
[network]
hidden = [24, 16]
[algorithm]
name = "ppo"
rollout_length = 16
batch_size = 8
"""

MakeRun = Callable[..., RunLayout]


@pytest.fixture(scope="session")
def run_builder() -> MakeRun:
    """`run_builder(root, obs, action, "key=value", ...)`: a run with a restart point at 64 steps, also the best."""

    def make(root: Path, obs: Box, action: ActionSpace, *overrides: str, mask: int = 0) -> RunLayout:
        layout = RunLayout(root)
        layout.create()
        layout.recipe.write_text(RECIPE)
        recipe = resolve(load(layout.recipe, list(overrides)), "gymnasium")
        layout.recipe.write_text(dump(recipe))
        spec = EnvSpec(obs, action, 2, mask=mask)
        write_json(layout.spec, spec.to_json())
        algorithm = build.algorithm(recipe, spec, torch.device("cpu"))
        generator = torch.Generator().manual_seed(7)
        policy = algorithm.policy
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        normalizer = getattr(policy, "normalizer", None)
        if normalizer is not None:
            shape = normalizer.shift.shape
            seen = torch.randn(500, *shape, generator=generator)
            normalizer.update(seen * torch.linspace(0.5, 30.0, shape.numel()).reshape(shape) + 4.0)
        state = {"steps": 64, "version": 2}
        saved = Checkpoint(policy.state_dict(), algorithm.state_dict(), {**state, "episodes": {}})
        checkpoint.save(layout.checkpoints / checkpoint.name_of(64), saved)
        scores = {"return_mean": 12.5, "return_std": 1.5, "episodes": 10}
        checkpoint.set_best(layout, policy.state_dict(), {**state, **scores})
        return layout

    return make


@pytest.fixture
def make_run(run_builder: MakeRun, tmp_path: Path) -> MakeRun:
    """The same with a root of its own: `make_run(obs, action, "key=value", ...)`, once a test."""
    return partial(run_builder, tmp_path / "run")
