import importlib.util
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from erlcli.envs.config import ENVPOOL_IDS, EnvConfig, choose_backend, env_config, envpool_refusal


@pytest.fixture
def installed(monkeypatch):
    """Pretends that envpool is installed, or isn't."""

    def set_to(is_there):
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: (object() if is_there else None) if name == "envpool" else real(name, *rest),
        )

    return set_to


def test_auto_takes_envpool_where_it_can(installed):
    installed(True)
    assert choose_backend(EnvConfig("CartPole-v1"))[0] == "envpool"
    installed(False)
    backend, why = choose_backend(EnvConfig("CartPole-v1"))
    assert backend == "gymnasium" and ("erlcli[fast]" in why or sys.platform != "linux")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (EnvConfig("Taxi-v3"), "not known to have Taxi-v3"),
        (EnvConfig("./mine.py:Mine"), "Python class"),
        (EnvConfig("CartPole-v1", kwargs={"a": 1}), "kwargs"),
        (EnvConfig("CartPole-v1", wrappers=(("a:b", {}),)), "wrappers"),
        (EnvConfig("CartPole-v1", frame_stack=2), "frame_stack"),
    ],
)
def test_auto_takes_gymnasium_for_what_envpool_lacks(installed, config, why):
    installed(True)
    backend, reason = choose_backend(config)
    assert backend == "gymnasium" and why in reason


@pytest.mark.parametrize("name", ["Direct", "Deep", "Qualified"])
def test_auto_takes_torch_for_what_is_tensors(tmp_path, monkeypatch, name):
    (tmp_path / "mine.py").write_text(
        "raise SystemExit('it is read, not run')\n"
        "class Deep(Middle): ...\nclass Middle(Direct): ...\nclass Direct(Mixin, TorchEnv): ...\n"
        "class Qualified(erlcli.envs.torch_env.TorchEnv): ...\nclass Loop(Loop): ...\nclass Other(Env): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    for source in ("./mine.py", str(tmp_path / "mine.py"), "mine"):
        assert choose_backend(EnvConfig(f"{source}:{name}")) == ("torch", "the env is a TorchEnv")
        for other in ("Loop", "Other", "Absent"):
            assert choose_backend(EnvConfig(f"{source}:{other}"))[0] == "gymnasium"
    (tmp_path / "mine.py").write_text("def broken(:")
    assert choose_backend(EnvConfig(f"./mine.py:{name}"))[0] == "gymnasium"
    assert choose_backend(EnvConfig("torch/CartPole-v1"))[0] == "torch"


def test_a_named_backend_is_taken_at_its_word(installed):
    installed(False)
    for backend in ("gymnasium", "envpool"):
        assert choose_backend(EnvConfig("CartPole-v1", backend=backend))[0] == backend


def test_what_envpool_can_do_is_not_refused():
    assert envpool_refusal(EnvConfig("CartPole-v1", max_episode_steps=3, threads=2, num_envs=5)) is None


def test_env_section_to_config():
    @dataclass
    class Wrapper:
        path: str = "b:C"
        kwargs: dict = field(default_factory=lambda: {"x": 1})

    @dataclass
    class Section:
        id: str = "CartPole-v1"
        backend: str = "gymnasium"
        num_envs: int = 64
        kwargs: dict = field(default_factory=lambda: {"k": 2})
        wrappers: list = field(default_factory=lambda: ["a:B", Wrapper()])
        max_episode_steps: int = 9
        frame_stack: int = 4
        action_masks: str = "off"
        atari: None = None

    assert env_config(Section(), 16, threads=3) == EnvConfig(
        "CartPole-v1", "gymnasium", 16, {"k": 2}, (("a:B", {}), ("b:C", {"x": 1})), 9, 4, 3, "off"
    )


def test_it_needs_neither_torch_nor_gymnasium():
    code = (
        "import sys, erlcli.envs.config, erlcli.envs.check; sys.exit(bool({'torch', 'gymnasium'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_envpool_ids_are_registered_in_gymnasium():
    gymnasium = pytest.importorskip("gymnasium")
    assert set(gymnasium.registry) >= ENVPOOL_IDS
