"""What importing envpool brings along."""

import subprocess
import sys

import pytest

pytest.importorskip("envpool")

FIRST = """
import sys
from erlcli.envs import envpool_import
from erlcli.envs.config import ENVPOOL_IDS
envpool = envpool_import.load()
assert envpool_import.knows(envpool, "CartPole-v1")
assert "Acrobot-v1" in envpool.list_all_envs() and "Ant-v5" not in envpool.list_all_envs()
assert all(envpool_import.knows(envpool, env_id) for env_id in (*ENVPOOL_IDS, "Pong-v5"))
few = set(envpool.list_all_envs())
assert "envpool.entry" not in sys.modules and "matplotlib" not in sys.modules
assert envpool_import.load() is envpool

assert not envpool_import.knows(envpool, "NoSuchEnv-v0")
assert envpool_import.knows(envpool, "BigfishEasy-v0")
assert set(envpool.list_all_envs()) > few
envpool.entry
"""
LATER = """
import envpool
from erlcli.envs import envpool_import
assert envpool_import.load() is envpool
assert envpool_import.knows(envpool, "BigfishEasy-v0")
"""


@pytest.mark.parametrize("code", [FIRST, LATER], ids=["by us", "by somebody else before"])
def test_families_are_registered_when_they_are_asked_for(code):
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
