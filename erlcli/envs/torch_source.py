"""Whether a class of the user's is a `TorchEnv`, told from its source.

The processes that choose a backend load neither torch nor environments, so nothing is imported here. Bases are followed
by name within the file; a class whose base comes from elsewhere under another name is not recognised, and is named to
the torch backend by `env.backend = "torch"`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

BASE = "TorchEnv"


def is_torch_env(reference: str) -> bool:
    """Whether `package.module:Class` or `file.py:Class` is a subclass of `TorchEnv`; False where that can't be seen."""
    source, _, name = reference.rpartition(":")
    path = Path(source) if source.endswith(".py") else _path_of(source)
    try:
        tree = ast.parse(path.read_bytes()) if path is not None else None
    except (OSError, SyntaxError, ValueError):  # whoever makes the env says what is wrong with it
        return False
    if tree is None:
        return False
    bases = {node.name: list(map(_last_name, node.bases)) for node in tree.body if isinstance(node, ast.ClassDef)}
    seen, todo = set(), [name]
    while todo:
        name = todo.pop()
        if name in bases and name not in seen:
            seen.add(name)
            if BASE in bases[name]:
                return True
            todo += bases[name]
    return False


def _last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _path_of(module: str) -> Path | None:
    """Of a module's source, in the current folder or where Python finds modules."""
    inner = Path(*module.split("."))
    for folder in (Path.cwd(), *map(Path, sys.path)):
        for path in (folder / inner.with_suffix(".py"), folder / inner / "__init__.py"):
            if path.is_file():
                return path
    return None
