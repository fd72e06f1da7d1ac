"""The kinds of files that a policy can be exported to."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erlcli.core.types import EnvSpec
from erlcli.errors import RecipeError
from erlcli.export import onnx, safetensors, torch_export
from erlcli.export.greedy import GreedyPolicy
from erlcli.export.parity import Runtime

Write = Callable[[GreedyPolicy, EnvSpec, dict[str, Any], Path], None]


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: as in `--format`.
        suffix: of its files.
        runtime: what parity is checked with.
        packages: that it needs beyond the default install.
        write: makes the file; may make others beside it.
        open_file: what runs the file.
    """

    name: str
    suffix: str
    runtime: str
    packages: tuple[str, ...]
    write: Write
    open_file: Callable[[Path, EnvSpec], Runtime]


FORMATS = {
    form.name: form
    for form in (
        Format("onnx", ".onnx", "onnxruntime", onnx.PACKAGES, onnx.write, onnx.open_file),
        Format("torch", ".pt2", "torch.export.load", (), torch_export.write, torch_export.open_file),
        Format("safetensors", ".safetensors", "numpy", (), safetensors.write, safetensors.open_file),
    )
}


def destination(default: Path, name: str | None, out: Path | None) -> tuple[Format, Path]:
    """Format and file that a user means.

    Args:
        default: the file where `out` says none, without its ending.
        name: of a format; None for that of `out`'s ending, or ONNX.
        out: the file; None for the default place.

    Raises:
        RecipeError: there is no such format, its packages are missing, or the file has another one's ending.
    """
    if name is None:
        form = next((f for f in FORMATS.values() if out is not None and out.suffix == f.suffix), FORMATS["onnx"])
    elif name in FORMATS:
        form = FORMATS[name]
    else:
        close = difflib.get_close_matches(name, FORMATS, n=1, cutoff=0.4)
        raise RecipeError(
            f"--format {name}: no such format",
            expected=", ".join(FORMATS),
            found=name,
            remedy=f"did you mean {close[0]}?" if close else "--format onnx is what most runtimes read",
        )
    path = out if out is not None else default.with_name(default.name + form.suffix)
    if path.suffix != form.suffix:
        raise RecipeError(
            f"--out {path}: not an ending of --format {form.name}",
            expected=f"a file name that ends in {form.suffix}",
            found=path.suffix or "no ending",
            remedy=f"--out {path.with_suffix(form.suffix) if path.name else 'policy' + form.suffix}",
        )
    missing = [package for package in form.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise RecipeError(
            f"--format {form.name}: packages are missing",
            expected=", ".join(form.packages),
            found=f"no {', '.join(missing)}",
            remedy="pip install 'erlcli[export]', or --format torch or safetensors",
        )
    return form, path
