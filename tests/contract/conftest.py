"""Runs of tiny environments by the real engine, in this process."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from erlcli.algorithms import registry
from erlcli.engine import build
from erlcli.engine.loop import Loop
from erlcli.engine.samplers import InlineSampler
from erlcli.engine.shared_sampler import SharedSampler
from erlcli.envs.config import env_config
from erlcli.recipe.load import dump, validate
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat

TINY = Path(__file__).parent / "envs" / "tiny.py"

# What suits tiny environments, taken by every algorithm that has such a key. An algorithm for which these won't do
# gets a row of its own under its name.
SETTINGS = {
    "rollout_length": 16,
    "batch_size": 32,
    "epochs": 4,
    "learning_rate": 1e-2,
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "warmup_steps": 200,
    "updates_per_step": 0.25,
    "exploration_fraction": 0.5,
    "target_interval": 10,
    "tau": 0.5,
    "replay": {"capacity": 3000},
}
OWN_SETTINGS: dict[str, dict] = {
    "a2c": {"rollout_length": 2},
    "crossq": {"learning_rate": 3e-3, "updates_per_step": 0.5, "policy_delay": 1},
    "droq": {"policy_delay": 2},
    "redq": {"policy_delay": 2},
    "sac_discrete": {"learning_rate": 3e-3, "updates_per_step": 1.0, "alpha": 0.05, "target_entropy_share": 0.1},
}


class Run:
    """A run directory and what is built from its recipe.

    Args:
        folder: to make it in.
        algorithm: registered name.
        env: class in `envs/tiny.py`, or an env id.
        sections: keys to set, as `section={...}`.
    """

    def __init__(self, folder, algorithm, env, /, **sections):
        config = registry.configs()[algorithm]
        wanted = {**SETTINGS, **OWN_SETTINGS.get(algorithm, {}), **sections.pop("algorithm", {})}
        data = {
            "train": {"total_steps": 4096},
            "env": {"id": env if "-v" in env else f"{TINY}:{env}", "num_envs": 8, "backend": "gymnasium"},
            "algorithm": {"name": algorithm, **{k: v for k, v in wanted.items() if k in config.model_fields}},
            "network": {"hidden": [32]},
        }
        for name, values in sections.items():
            data[name] = {**data.get(name, {}), **values}
        self.recipe = validate(data, "test")
        self.layout = RunLayout(folder)
        self.layout.create()
        self.layout.recipe.write_text(dump(self.recipe))
        self.events = EventLog(self.layout, "learner", 1)

    @contextmanager
    def sampler(self):
        """The sampler that the recipe asks for, and an algorithm for its envs; closed afterwards."""
        recipe = self.recipe
        beat = Heartbeat(self.layout, "learner")

        def stop():
            return False

        if recipe.engine.workers:
            spec = SharedSampler.spec_of(recipe)
            algorithm = build.algorithm(recipe, spec, torch.device("cpu"))
            sampler = SharedSampler(self.layout, recipe, algorithm.policy, beat, self.events, stop, spec)
        else:
            config = env_config(recipe.env, recipe.env.num_envs, 1)
            sampler = InlineSampler(config, recipe.algorithm.rollout_length, beat, self.events, stop, 0)
            algorithm = build.algorithm(recipe, sampler.spec, torch.device("cpu"))
        self.beat = beat
        try:
            yield sampler, algorithm
        finally:
            sampler.close()
            beat.close()

    def train(self, saved=None):
        """Train to the end of the budget, from a checkpoint if there is one; the algorithm."""
        with self.sampler() as (sampler, algorithm):
            loop = Loop(self.layout, self.recipe, algorithm, sampler, self.beat, self.events, lambda: False, 1)
            if saved is not None:
                loop.restore(saved)
            loop.run()
        return algorithm


@pytest.fixture
def make_run(tmp_path):
    """Makes runs in folders of their own."""
    count = 0

    def make(algorithm, env, /, **sections):
        nonlocal count
        count += 1
        return Run(tmp_path / f"run{count}", algorithm, env, **sections)

    return make
