"""Where machine code comes from and goes to; without PyTorch, so that `erl doctor` can tell without it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def cxx() -> str | None:
    """The C++ compiler that TorchInductor would take, `$CXX` or the system's usual one; None where it isn't there."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def libraries() -> Path:
    """The directory of compiled steps, for all runs of a user on this machine."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "erl" / "compiled"
