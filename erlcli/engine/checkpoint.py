"""Checkpoints: written beside, synced, then renamed; verified by hash before anything is read from them.

A checkpoint is a folder of `policy.safetensors`, `learner.safetensors`, `state.json`, the parts of the replay where
there is one (see `replay_parts`), and `manifest.json` with size and SHA-256 of the others. There is no pickle, so
loading one executes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as save_bytes
from torch import Tensor

from erlcli.engine.replay_parts import Part
from erlcli.errors import DamagedError
from erlcli.runs.jsonl import sync_path
from erlcli.runs.layout import RunLayout

POLICY, LEARNER, STATE, MANIFEST = "policy.safetensors", "learner.safetensors", "state.json", "manifest.json"
PART = re.compile(r"replay-[0-9]{12}-[0-9]{12}\.safetensors", re.ASCII)
FORMAT = 1
MAX_JSON_BYTES = 64 << 20  # counters and a hundred returns take a few kB


@dataclass(frozen=True)
class Checkpoint:
    """What one holds.

    Attributes:
        policy: the policy's state dict.
        learner: `Algorithm.state_dict()`; empty in `best`, which can't be trained on.
        state: counters of the loop and JSON values.
        replay: the rows of the replay, the oldest first; empty where there are none.
    """

    policy: dict[str, Tensor]
    learner: dict[str, Any]
    state: dict[str, Any]
    replay: tuple[Part, ...] = ()


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that `path` is either whole or not there.

    Raises:
        OSError: the disk is full or read-only; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    aside = path.with_name(f"{temporary.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
    temporary.mkdir()
    try:
        tensors, values = flatten(checkpoint.learner)
        _save_tensors(temporary / POLICY, checkpoint.policy)
        _save_tensors(temporary / LEARNER, tensors)
        parts = [part.link_into(temporary) for part in checkpoint.replay]
        state = {"format": FORMAT, **checkpoint.state, "learner": values}
        if parts:
            state["replay"] = [part.path.name for part in parts]
        (temporary / STATE).write_text(json.dumps(state, allow_nan=False))
        files = {name: _describe(temporary / name) for name in (POLICY, LEARNER, STATE)}
        files |= {part.path.name: {"bytes": part.bytes, "sha256": part.sha256} for part in parts}  # synced already
        (temporary / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}))
        for name in (POLICY, LEARNER, STATE, MANIFEST):
            sync_path(temporary / name)
        sync_path(temporary)
        if path.exists():
            os.rename(path, aside)  # not removed: a death in the middle of that would leave half of it
        os.rename(temporary, path)
        sync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def load(path: Path) -> Checkpoint:
    """Verify a checkpoint and read it.

    Raises:
        DamagedError: a file is missing, or is not what the manifest says.
    """
    verify(path)
    try:
        state = _read_json(path / STATE)
        if state.get("format") != FORMAT:
            raise DamagedError(
                f"{path}: of another format", expected=f"format {FORMAT}", found=str(state.get("format"))
            )
        learner = unflatten(load_file(path / LEARNER), state.pop("learner"))
        files = _read_json(path / MANIFEST)["files"]
        replay = [(name, files[name]) for name in state.pop("replay", [])]
        parts = tuple(Part(path / name, row["bytes"], row["sha256"]) for name, row in replay if PART.fullmatch(name))
        if len(parts) != len(replay):
            raise ValueError("a part of the replay with a strange name")
        return Checkpoint(load_file(path / POLICY), learner, state, parts)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DamagedError(f"{path}: can't be read", found=f"{type(error).__name__}: {error}") from None


def verify(path: Path, *, replay: bool = True) -> None:
    """Check every file of a checkpoint against its manifest.

    Args:
        path: of the checkpoint.
        replay: whether to check the parts of the replay too, which may be large.

    Raises:
        DamagedError: one does not match.
    """
    try:
        manifest = _read_json(path / MANIFEST)["files"]
        expected = {name: (int(manifest[name]["bytes"]), str(manifest[name]["sha256"])) for name in manifest}
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise DamagedError(
            f"{path}: no readable manifest",
            expected=f"a checkpoint folder with {MANIFEST}",
            found="a folder" if path.is_dir() else "no folder",
            remedy="erl resume takes the newest whole checkpoint by itself",
        ) from None
    parts = [name for name in expected if replay and PART.fullmatch(name)]
    for name in (POLICY, LEARNER, STATE, *parts):
        fault = _fault(path / name, *expected.get(name, (-1, "")))
        if fault is not None:
            raise DamagedError(
                f"{path / name}: damaged",
                expected="size and SHA-256 as in the manifest",
                found=fault,
                remedy="erl resume takes the newest whole checkpoint by itself",
            )


def numbered(layout: RunLayout) -> list[Path]:
    """All restart points, the newest last, whole or not."""
    folders = (p for p in layout.checkpoints.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    return sorted(folders, key=lambda path: int(path.name))


def newest(layout: RunLayout) -> tuple[Path, Checkpoint, list[DamagedError]] | None:
    """The newest whole restart point, and what is wrong with the newer ones.

    Returns:
        None where the run has no restart point at all.

    Raises:
        DamagedError: it has some, and none is whole.
    """
    problems: list[DamagedError] = []
    for path in reversed(numbered(layout)):
        try:
            return path, load(path), problems
        except DamagedError as error:
            problems.append(error)
    if not problems:
        return None
    raise DamagedError(
        f"{layout.checkpoints}: no checkpoint is whole",
        expected="at least one",
        found="; ".join(str(problem.message) for problem in problems),
        remedy="restore one from a backup, or train anew: erl train " + str(layout.recipe),
    )


def prune(layout: RunLayout, keep: int) -> None:
    """Remove all but the newest `keep` restart points."""
    for path in numbered(layout)[:-keep]:
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
                raise
            # On NFS, a file that somebody has open stays under another name; the next call removes the rest.


def name_of(steps: int) -> str:
    """Folder or file stem for a number of steps; sorts as text like the number."""
    return f"{steps:012d}"


def save_snapshot(layout: RunLayout, policy: dict[str, Tensor], steps: int, facts: dict[str, str]) -> Path:
    """A policy for the evaluator: cheap, atomic, not synced, no restart point."""
    path = layout.snapshots / f"{name_of(steps)}.safetensors"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _save_tensors(temporary, policy, facts)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def set_best(layout: RunLayout, policy: dict[str, Tensor], state: dict[str, Any]) -> Path:
    """Make `policy` the best: a folder of its own, to which the link `best` is then moved atomically."""
    folder = layout.checkpoints / f"best-{name_of(int(state['steps']))}"
    save(folder, Checkpoint(policy, {}, state))
    link = layout.checkpoints / "best"
    temporary = layout.checkpoints / f".best.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    aside = layout.checkpoints / f"{temporary.name}.old"
    if link.is_dir() and not link.is_symlink():  # the run was copied by a tool that follows links
        os.rename(link, aside)
    os.replace(temporary, link)
    shutil.rmtree(aside, ignore_errors=True)
    for old in layout.checkpoints.glob("best-*"):
        if old != folder:
            shutil.rmtree(old)
    return folder


def _save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> None:
    # Written by ourselves, since safetensors hides the errno of a full disk and lets nobody else read its files.
    # Cloned, since it refuses tensors that share memory, such as tied weights.
    path.write_bytes(save_bytes({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, facts))


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _fault(path: Path, size: int, digest: str) -> str | None:
    """How a file differs from what the manifest says; None where it doesn't."""
    try:
        if not path.is_file():
            return "no such file"
        if path.stat().st_size != size:
            return f"{path.stat().st_size:,} bytes, not {size:,}"
        return None if _describe(path)["sha256"] == digest else "another content"
    except OSError as error:
        return str(error)  # a disk that can't give the file back is as good as a damaged file


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds no object, or is larger or deeper than any that was written here.
    """
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{path.name}: no file of at most {MAX_JSON_BYTES:,} bytes")
    try:
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError(f"{path.name}: nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: no JSON object")
    return value


def flatten(tree: dict[str, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Nested dicts to flat `a/b/c` names: the tensors, and the rest."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            inner_tensors, inner_values = flatten(value, name + "/")
            tensors |= inner_tensors
            values |= inner_values
        elif isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value
    return tensors, values


def unflatten(tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for name, value in {**tensors, **values}.items():
        *folders, leaf = name.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[leaf] = value
    return tree
