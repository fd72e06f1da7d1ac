"""From a run to a file that is known to act like the run's policy.

The file is made in a folder beside its place, checked there by its own runtime, and only then moved over whatever was
there: a failed export leaves an earlier one as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erlcli.engine.load_policy import LoadedPolicy
from erlcli.errors import ErlError, RecipeError, unwritable
from erlcli.export import parity
from erlcli.export.formats import Format
from erlcli.export.greedy import GreedyPolicy, Port, facts, inputs, outputs
from erlcli.export.parity import Parity
from erlcli.export.quiet import Chatter, quiet
from erlcli.export.safetensors import json_beside
from erlcli.runs.jsonl import read_json
from erlcli.runs.layout import RunLayout


@dataclass(frozen=True)
class Exported:
    """What came of it.

    Attributes:
        files: the file that was asked for, and others that belong to it.
        form: its format.
        size_bytes: of all files.
        parity: how far it is from the policy.
        loaded: the policy.
        inputs: what it takes, observations first.
        outputs: what it gives, actions first.
    """

    files: tuple[Path, ...]
    form: Format
    size_bytes: int
    parity: Parity
    loaded: LoadedPolicy
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def to_json(self) -> dict[str, Any]:
        """For `erl export --json`."""
        return {
            "file": str(self.files[0]),
            "files": [str(path) for path in self.files],
            "format": self.form.name,
            "bytes": self.size_bytes,
            "max_error": self.parity.max_error,
            "compared": self.parity.compared,
            "differing_actions": self.parity.differing_actions,
            "observations": self.parity.observations,
            "checkpoint": self.loaded.facts["checkpoint"],
            "checkpoint_path": str(self.loaded.source),
            "steps": self.loaded.facts["steps"],
            "ensemble": self.loaded.facts.get("ensemble"),
            "members": self.loaded.facts.get("members"),
            "inputs": [port.to_json() for port in self.inputs],
            "outputs": [port.to_json() for port in self.outputs],
        }


def export(layout: RunLayout, loaded: LoadedPolicy, form: Format, path: Path) -> Exported:
    """Write the file, check it, and move it to its place.

    Args:
        layout: the run that `loaded` is of.
        loaded: the policy.
        form: the format.
        path: the file, with the format's ending.

    Raises:
        RecipeError: the place can't be written, or the format can't express the policy.
        ErlError: the exporter or the disk failed, or the file does not act like the policy; nothing is left of it.
    """
    _check_place(path)
    greedy = GreedyPolicy(loaded.policy, loaded.spec.action)
    with _folder_beside(path) as folder:
        draft = folder / path.name
        chatter = Chatter()
        try:
            with quiet() as chatter:
                form.write(greedy, loaded.spec, facts(layout, loaded), draft)
                runtime = form.open_file(draft, loaded.spec)
                measured = parity.check(greedy, loaded.spec, runtime, str(path))
        except ErlError:
            raise
        except Exception as error:
            raise _failed(layout, form, path, error, chatter) from error
        files = _publish(folder, path)
    size = sum(file.stat().st_size for file in files)
    policy, spec = loaded.policy, loaded.spec
    return Exported(files, form, size, measured, loaded, tuple(inputs(policy, spec)), tuple(outputs(policy, spec)))


def _check_place(path: Path) -> None:
    """Only what an export made may be replaced."""
    beside = json_beside(path)
    if path.is_dir():
        raise RecipeError(f"--out {path}: is a folder", expected="a file name", found="a folder")
    if path.suffix == ".safetensors" and beside.exists() and "program" not in (read_json(beside) or {}):
        raise RecipeError(
            f"--out {path}: {beside} is in the way",
            expected=f"no {beside.name}, or one that an export made: the description goes there",
            found="a file of another kind",
            remedy="another --out",
        )


@contextlib.contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the same disk as `path`, gone afterwards."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
    except OSError as error:
        raise unwritable(
            f"--out {path}", error, expected="a file in a writable folder", remedy="another --out"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, path: Path) -> tuple[Path, ...]:
    """Move everything in `folder` beside and over `path`, which comes first."""
    drafts = sorted(folder.iterdir(), key=lambda draft: (draft.name != path.name, draft.name))
    try:
        for draft in drafts:
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        for draft in drafts:
            os.replace(draft, path.parent / draft.name)
    except OSError as error:
        raise ErlError(
            f"{path}: can't be written: {error.strerror}", found=str(error), remedy="free space, or another --out"
        ) from None
    return tuple(path.parent / draft.name for draft in drafts)


def _failed(layout: RunLayout, form: Format, path: Path, error: Exception, chatter: Chatter) -> ErlError:
    """What an exporter raised in the user's words; the rest goes to the run's `errors` folder."""
    if isinstance(error, OSError) and error.errno is not None:
        return ErlError(
            f"{path}: can't be written: {error.strerror}", found=str(error), remedy="free space, or another --out"
        )
    log = layout.output("export")
    text = "".join(traceback.format_exception(error))
    remedy = "another --format"
    with contextlib.suppress(OSError):  # a run on a read-only disk can be exported all the same
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"{chatter.text}\n{text}")
        remedy += f"; its traceback is in {log}"
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return ErlError(
        f"{path}: --format {form.name} failed",
        expected="a policy that the format can express",
        found=f"{type(error).__name__}: {first.strip()}",
        remedy=remedy,
        details={"traceback": text},
    )
