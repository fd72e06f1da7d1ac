"""Positions outlive the process that notes them."""

import os
import subprocess
import sys

import pytest

from erlcli.envs.config import EnvConfig
from erlcli.envs.position import Position, PositionLog, read_position
from erlcli.envs.vecenv import make_vec_env


def test_position_of_a_killed_process(tmp_path):
    path = tmp_path / "worker-0.position"
    code = (
        "import os, sys, pathlib; from erlcli.envs.position import PositionLog\n"
        "log = PositionLog(pathlib.Path(sys.argv[1]))\n"
        "log.note('step', 3, 2**31 - 1, 2, 15)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    position = read_position(path)
    assert position == Position("step", 3, 2**31 - 1, 2, 15)
    assert str(position) == "step of env 3 (seed 2147483647, episode 2, step 15)"
    assert position.facts() == {"env_index": 3, "seed": 2**31 - 1, "episode": 2, "step": 15}


def test_position_of_a_pool(tmp_path):
    log = PositionLog(tmp_path / "p")
    log.note("step", None, 7, None, 40)
    assert str(read_position(tmp_path / "p")) == "step of the pool (seed 7, vector step 40)"


def test_no_position(tmp_path):
    assert read_position(tmp_path / "nothing") is None
    PositionLog(tmp_path / "fresh")
    assert read_position(tmp_path / "fresh") is None
    (tmp_path / "torn").write_bytes(b"abc")
    assert read_position(tmp_path / "torn") is None
    (tmp_path / "hostile").write_bytes(os.urandom(40))
    assert read_position(tmp_path / "hostile") is None


def test_a_new_log_forgets_what_the_last_process_noted(tmp_path):
    PositionLog(tmp_path / "p").note("reset", 0, 1, 0, 0)
    PositionLog(tmp_path / "p")
    assert read_position(tmp_path / "p") is None


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_backends_note_every_call(tmp_path, backend):
    import torch

    if backend == "envpool":
        pytest.importorskip("envpool")
    path = tmp_path / "p"
    env = make_vec_env(EnvConfig("CartPole-v1", backend, num_envs=3), PositionLog(path))
    env.reset(5, 6)
    position = read_position(path)
    assert position.call == "reset" and position.env_index == (8 if backend == "gymnasium" else None)
    for _ in range(4):
        env.step(torch.zeros(3, dtype=torch.int64))
    position = read_position(path)
    assert (position.call, position.step) == ("step", 4)
    assert position.env_index == (8 if backend == "gymnasium" else None)
    env.close()
