"""How the learner computes on a CPU: the cores that it shares with workers, and how exact its products are."""

import pytest
import torch

from erlcli.core import matmul
from erlcli.engine import compute
from erlcli.errors import RecipeError
from erlcli.recipe.load import load


@pytest.mark.parametrize(
    ("recipe", "sets", "threads"),
    [
        ("cartpole_ppo", [], 1),
        ("lunarlander_continuous_sac", [], 2),  # 256 rows through 128 x 128
        ("lunarlander_continuous_sac", ["algorithm.batch_size=128"], 1),
        ("bipedal_ppo", [], 1),  # 512 rows through 128 x 128, but a step of 512 for each 51 env steps
        ("halfcheetah_ppo", ["network.hidden=[256, 256]"], 2),  # 64 rows
        ("halfcheetah_ppo", ["network.hidden=[256, 256]", "algorithm.batch_size=32"], 1),
        ("halfcheetah_sac", [], 4),
        ("halfcheetah_sac", ["engine.workers=1"], 4),
        ("halfcheetah_sac", ["engine.workers=1", "engine.lag=1"], 4),
        ("halfcheetah_sac", ["engine.workers=1", "engine.lag=1", "algorithm.updates_per_step=0.01"], 3),
        ("ant_ppo", ["engine.workers=2", "engine.lag=1", "network.hidden=[256, 256]"], 2),
        ("ant_ppo", ["engine.workers=8", "engine.lag=1", "network.hidden=[256, 256]"], 1),
        ("halfcheetah_sac", ["engine.threads=3"], 3),
    ],
)
def test_large_products_take_the_cores_that_workers_leave(recipe, sets, threads, monkeypatch):
    monkeypatch.setattr(compute, "usable_cpus", lambda: 4)
    assert compute.threads(load(recipe, sets)) == threads


def test_narrower_layers_leave_a_core_to_the_evaluator(monkeypatch):
    narrow = load("lunarlander_continuous_sac", ["algorithm.batch_size=1024"])
    for cores, threads in [(1, 1), (2, 1), (3, 2), (4, 3), (64, 8)]:
        monkeypatch.setattr(compute, "usable_cpus", lambda cores=cores: cores)
        assert compute.threads(narrow) == threads
        assert not compute.takes_all_cores(narrow)


def test_where_an_evaluator_is_in_the_way(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for cores, sets, busy in [
        (4, ['train.device="cpu"'], True),
        (16, ['train.device="cpu"'], False),  # more than a learner takes
        (1, ['train.device="cpu"'], False),  # one thread waits for no other
        (4, [], False),  # it learns on a GPU
        (4, ['train.device="cpu"', "network.hidden=[64, 64]"], False),
    ]:
        monkeypatch.setattr(compute, "usable_cpus", lambda cores=cores: cores)
        assert compute.takes_all_cores(load("halfcheetah_sac", sets)) is busy


BF16 = 'engine.precision="bf16"'


@pytest.mark.parametrize(("sets", "precision"), [([], matmul.DEFAULT), ([BF16], matmul.ONEDNN)])
def test_products_are_as_exact_as_the_recipe_says(sets, precision, monkeypatch):
    monkeypatch.setattr(matmul, "rounds", lambda: True)
    monkeypatch.setattr(matmul, "_onednn_pays", lambda: False)
    try:
        compute.choose_products(load("halfcheetah_sac", sets))
        assert matmul.precision() == precision
    finally:
        matmul.choose(wide=False)


def test_rounding_is_refused_where_the_processor_can_not(monkeypatch):
    monkeypatch.setattr(matmul, "rounds", lambda: False)
    with pytest.raises(RecipeError, match=r"engine\.precision") as caught:
        compute.choose_products(load("halfcheetah_sac", [BF16]))
    assert "fp32" in caught.value.remedy
    assert matmul.precision() == matmul.DEFAULT


def test_a_gpu_has_tf32_instead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with pytest.raises(RecipeError, match="on a CPU only") as caught:
        compute.configure_cuda(load("halfcheetah_sac", [BF16]), torch.device("cuda:0"))
    assert "tf32" in caught.value.remedy
