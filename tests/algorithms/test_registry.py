"""Algorithms are found by name, and no more of them is imported than was asked for."""

import subprocess
import sys

import pytest

from erlcli.algorithms import registry


@pytest.mark.parametrize("name", registry.configs())
def test_one_is_what_it_is_among_all(name):
    assert registry.config_of(name) is registry.configs()[name]
    assert registry.implementation(name).Config is registry.config_of(name)


@pytest.mark.parametrize("name", ["base", "on_policy", "off_policy", "PPO", "a.b", "", "../ppo"])
def test_what_is_no_algorithm(name):
    assert registry.config_of(name) is None
    with pytest.raises(KeyError):
        registry.implementation(name)


def test_the_others_are_not_imported():
    code = """
import sys
from erlcli.algorithms import registry
assert registry.config_of("ppo").__name__ == "PPOConfig"
assert "erlcli.algorithms.config.crossq" not in sys.modules
registry.config_of("double_dqn")
assert "erlcli.algorithms.config.crossq" in sys.modules and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
