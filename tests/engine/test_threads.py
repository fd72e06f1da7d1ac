"""How the learner shares the cores with workers."""

import pytest

from erlcli.engine import build
from erlcli.recipe.load import load


@pytest.mark.parametrize(
    ("recipe", "sets", "threads"),
    [
        ("cartpole_ppo", [], 1),
        ("halfcheetah_sac", [], 4),
        ("halfcheetah_sac", ["engine.workers=1"], 4),
        ("halfcheetah_sac", ["engine.workers=1", "engine.lag=1"], 4),
        ("halfcheetah_sac", ["engine.workers=1", "engine.lag=1", "algorithm.updates_per_step=0.01"], 3),
        ("halfcheetah_ppo", ["engine.workers=2", "engine.lag=1", "network.hidden=[256, 256]"], 2),
        ("halfcheetah_ppo", ["engine.workers=8", "engine.lag=1", "network.hidden=[256, 256]"], 1),
        ("halfcheetah_sac", ["engine.threads=3"], 3),
    ],
)
def test_wide_layers_take_the_cores_that_workers_leave(recipe, sets, threads, monkeypatch):
    monkeypatch.setattr(build, "usable_cpus", lambda: 4)
    assert build.threads(load(recipe, sets)) == threads
