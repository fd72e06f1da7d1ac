"""Whether a replay fits is known before it is made."""

import pytest
import torch

from erlcli.core.types import Box, Discrete, EnvSpec
from erlcli.engine import build, memory
from erlcli.errors import RecipeError
from erlcli.recipe.load import validate

CPU = torch.device("cpu")
SPEC = EnvSpec(Box((4,), "float32", (-1.0,) * 4, (1.0,) * 4), Discrete(2), 8)


def recipe_of(name="dqn", **algorithm):
    data = {"train": {"total_steps": 100_000}, "env": {"id": "Any-v0"}, "algorithm": {"name": name, **algorithm}}
    return validate(data, "test")


def need_of(recipe):
    return memory.ReplayNeed.of(recipe, SPEC, build.policy(recipe, SPEC), CPU)


def test_the_need_in_words():
    need = need_of(recipe_of(replay={"capacity": 1_000_003}))
    # 16 bytes of observation, 8 of action, 4 of reward, 1 of flags, 4 and 4 of indices.
    assert need.transitions == 1_000_000 and need.bytes == 37 * (1_000_000 + 8)
    assert str(need) == "1,000,000 transitions, 35.3 MiB of host memory"
    assert need_of(recipe_of(replay={"capacity": 1_000_003, "prioritized": True})).bytes > need.bytes + 8_000_000


def test_algorithms_without_a_replay_need_nothing():
    assert need_of(recipe_of("ppo")) is None


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100 << 20)
    build.algorithm(recipe_of(replay={"capacity": 2_000_000}), SPEC, CPU)
    with pytest.raises(RecipeError) as caught:
        build.algorithm(recipe_of(replay={"capacity": 3_000_000}), SPEC, CPU)
    error = caught.value
    assert error.exit_code == 2 and error.message.startswith("algorithm.replay.capacity")
    largest = int(error.expected.split("about ")[1].split()[0].replace(",", ""))
    build.algorithm(recipe_of(replay={"capacity": largest - 1000}), SPEC, CPU)


def cgroup(folder, limit, used, stat):
    folder.mkdir(exist_ok=True)
    for name, text in zip(("memory.max", "memory.current", "memory.stat"), (limit, used, stat), strict=True):
        (folder / name).write_text(text)
    return folder


def test_a_containers_limit_counts_and_its_file_cache_does_not(tmp_path):
    free = memory.free_bytes(CPU, tmp_path / "nowhere")
    assert free > 0
    unlimited = cgroup(tmp_path / "a", "max\n", "5000\n", "inactive_file 1\n")
    assert memory.free_bytes(CPU, unlimited) > 1 << 20
    limited = cgroup(tmp_path / "b", "9000\n", "5000\n", "anon 4000\ninactive_file 1000\n")
    assert memory.free_bytes(CPU, limited) == 5000
    full = cgroup(tmp_path / "c", "9000\n", "9900\n", "inactive_file 0\n")
    assert memory.free_bytes(CPU, full) == 0
    old = tmp_path / "d"
    old.mkdir()
    folder = cgroup(old / "memory", "max", "0", "total_inactive_file 500\n")
    (folder / "memory.max").rename(folder / "memory.limit_in_bytes")
    (folder / "memory.current").rename(folder / "memory.usage_in_bytes")
    (folder / "memory.limit_in_bytes").write_text("7000\n")
    (folder / "memory.usage_in_bytes").write_text("1000\n")
    assert memory.free_bytes(CPU, old) == 6500


def test_the_tightest_group_around_this_process_counts(tmp_path):
    """As of a batch system, whose limit is on the job while this is a step of it."""
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text("1:memory:/slurm/job_7\n0::/slurm/job_7/step_0\n")
    for name, limit in (("", "max"), ("slurm", "max"), ("slurm/job_7", "9000"), ("slurm/job_7/step_0", "max")):
        (root / name).mkdir(exist_ok=True)
        cgroup(root / name, limit, "5000", "inactive_file 0\n")
    assert memory.free_bytes(CPU, root, own) == 4000
    (root / "memory" / "slurm" / "job_7").mkdir(parents=True)
    (root / "memory" / "slurm" / "memory.limit_in_bytes").write_text("6000")
    (root / "memory" / "slurm" / "memory.usage_in_bytes").write_text("3500")
    (root / "memory" / "slurm" / "memory.stat").write_text("total_inactive_file 100\n")
    assert memory.free_bytes(CPU, root, own) == 2600
    own.write_text("0::/../elsewhere\n")
    assert memory.free_bytes(CPU, root, own) > 1 << 20
