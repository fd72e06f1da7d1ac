"""Imports point one way. Every module is parsed, so that imports inside functions count too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import erlcli

ROOT = Path(erlcli.__file__).parent
ANYONE = {"erlcli", "erlcli.errors"}  # the version, and the words of failure
STANDARD = set(sys.stdlib_module_names)

# What the modules of a layer may import beside their own layer. The longest prefix of a module's name decides.
MAY_IMPORT = {
    "erlcli.errors": set(),
    "erlcli.core": set(),
    "erlcli.algorithms": {"erlcli.core"},
    "erlcli.envs": {"erlcli.core"},
    "erlcli.runs": set(),
    "erlcli.recipe": {"erlcli.core.schedule", "erlcli.algorithms.config", "erlcli.algorithms.registry"},
    "erlcli.engine": {"erlcli.core", "erlcli.envs", "erlcli.runs", "erlcli.recipe", "erlcli.algorithms"},
    "erlcli.export": {"erlcli.core", "erlcli.engine", "erlcli.runs", "erlcli.recipe"},
    "erlcli.tournament": {"erlcli.engine", "erlcli.runs", "erlcli.recipe"},
    "erlcli.tui": {"erlcli.runs"},
    "erlcli.cli": {
        "erlcli.core", "erlcli.algorithms", "erlcli.envs", "erlcli.runs", "erlcli.recipe", "erlcli.engine",
        "erlcli.export", "erlcli.tournament", "erlcli.tui",
    },
    "erlcli.__main__": {"erlcli.cli", "erlcli.engine.child"},
    "erlcli": set(),
}  # fmt: skip

# Packages from elsewhere that a layer must not touch, wherever in its modules.
FORBIDDEN = {
    "erlcli.core": {"gymnasium", "envpool", "typer", "rich", "textual"},
    "erlcli.algorithms": {"gymnasium", "envpool", "typer", "rich", "textual"},
    "erlcli.algorithms.config": {"torch", "numpy", "gymnasium"},
    "erlcli.recipe": {"torch", "numpy", "gymnasium"},
    "erlcli.engine": {"typer", "textual"},
    "erlcli.tui": {"torch", "gymnasium", "pydantic"},
}
STANDARD_ONLY = ("erlcli.runs", "erlcli.errors")


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def rule(name, rules):
    """The entry with the longest prefix of `name`, or None."""
    found = [prefix for prefix in rules if within(name, prefix)]
    return max(found, key=len) if found else None


def imports_of(name, source, is_package=False):
    """Full names of all that a module imports; for `from x import y` it is x.y where that is a module of ours."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "import_module":
            found |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return found


def wrongs(name, imported):
    """What of `imported` the module `name` must not import."""
    layer = rule(name, MAY_IMPORT)
    forbidden = {package for prefix, packages in FORBIDDEN.items() if within(name, prefix) for package in packages}
    found = set()
    for target in imported:
        if within(target, "erlcli"):
            allowed = ANYONE if name != "erlcli.errors" else {"erlcli"}
            own = layer != "erlcli" and within(target, layer)
            if target not in allowed and not own and not any(within(target, x) for x in MAY_IMPORT[layer]):
                found.add(target)
            continue
        top = target.split(".")[0]
        if top in forbidden or (name.startswith(STANDARD_ONLY) and top not in STANDARD):
            found.add(target)
    return found


@pytest.mark.parametrize("name", list(MODULES))
def test_imports_point_one_way(name):
    path = MODULES[name]
    imported = imports_of(name, path.read_text(), path.name == "__init__.py")
    assert not wrongs(name, imported), f"{path.relative_to(ROOT.parent)} must not import these"


@pytest.mark.parametrize("name", list(MODULES))
def test_every_module_belongs_to_a_layer_and_says_what_it_is(name):
    assert name in ("erlcli", "erlcli.__main__") or rule(name, MAY_IMPORT) != "erlcli", "a layer of its own: add a rule"
    assert not {"utils", "helpers", "util", "helper", "misc", "common"} & set(name.split("."))


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("erlcli.core.x", "from erlcli.envs import vecenv", {"erlcli.envs.vecenv"}),
        ("erlcli.core.x", "def f():\n    import erlcli.engine.loop", {"erlcli.engine.loop"}),
        ("erlcli.core.x", "from ..runs.jsonl import read", {"erlcli.runs.jsonl"}),
        ("erlcli.core.x", "from .. import runs", {"erlcli.runs"}),
        ("erlcli.core.x", "import importlib\nimportlib.import_module('erlcli.engine')", {"erlcli.engine"}),
        ("erlcli.core.x", "from erlcli.errors import ErlError\nfrom erlcli.core.types import Box\nimport torch", set()),
        ("erlcli.core.x", "if True:\n    import gymnasium.spaces", {"gymnasium.spaces"}),
        ("erlcli.runs.x", "import json, torch", {"torch"}),
        ("erlcli.runs.x", "from erlcli.core.types import Box", {"erlcli.core.types"}),
        ("erlcli.recipe.x", "from erlcli.core.schedule import Schedule", set()),
        ("erlcli.recipe.x", "from erlcli.core.types import Box", {"erlcli.core.types"}),
        ("erlcli.recipe.x", "from erlcli.algorithms.ppo import PPO", {"erlcli.algorithms.ppo"}),
        ("erlcli.envs.x", "from erlcli.algorithms import registry", {"erlcli.algorithms.registry"}),
        ("erlcli.algorithms.x", "from erlcli.envs import spaces", {"erlcli.envs.spaces"}),
        ("erlcli.algorithms.config.x", "import torch", {"torch"}),
        ("erlcli.engine.x", "from erlcli.cli import output", {"erlcli.cli.output"}),
        ("erlcli.tui.x", "from erlcli.engine import plan", {"erlcli.engine.plan"}),
        ("erlcli.cli.x", "from erlcli.engine import plan", set()),
        ("erlcli.errors", "from erlcli.core import types", {"erlcli.core.types"}),
    ],
)
def test_the_check_itself_finds_what_it_should(name, source, expected):
    assert wrongs(name, imports_of(name, source)) == expected


def loaded_by(statement, *packages):
    """Which of `packages` are loaded in a fresh interpreter after `statement`."""
    code = f"import sys; {statement}; print(*[p for p in {packages!r} if p in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_supervisor_and_all_it_imports_are_free_of_torch_and_environments():
    """It has to outlive whatever they do, and to start at once."""
    heavy = ("torch", "numpy", "gymnasium", "envpool", "matplotlib", "tensorboard")
    assert loaded_by("import erlcli.engine.supervisor", *heavy) == []


def test_the_command_line_answers_before_anything_heavy_is_loaded():
    heavy = ("torch", "numpy", "pydantic", "gymnasium", "textual", "matplotlib", "tomli_w")
    assert loaded_by("import erlcli.cli.app", *heavy) == []
    assert loaded_by("import erlcli.cli.app", "rich") == loaded_by("import typer", "rich")  # typer's own, at most


def test_recipes_are_checked_without_torch():
    assert loaded_by("from erlcli.recipe.load import load; load('cartpole_ppo')", "torch", "numpy", "gymnasium") == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "erlcli.tui")])
def test_the_dashboard_needs_no_engine(name):
    assert loaded_by(f"import {name}", "torch", "gymnasium", "erlcli.engine") == []
