"""Limits that Linux sets to groups of processes: those of a container, and those of a batch system's jobs.

A limit may be on the group of this process or on any that it is in. In a container only the innermost is to be seen, as
the root. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def groups(controller: str, root: Path = ROOT, own: Path = OWN) -> list[Path]:
    """Folders of this process's group and of all around it, the root last: of version 2, then of version 1.

    Args:
        controller: `memory` or `cpu`, which has a tree of its own in version 1.
        root: where they are mounted.
        own: which ones are this process's.
    """
    path, path_1 = "", ""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            path = place
        elif controller in controllers.split(","):
            path_1 = place
    found: list[Path] = []
    for base, place in ((root, path), (root / controller, path_1)):
        parts = [part for part in place.split("/") if part]
        if ".." in parts:  # it is outside of what this process is shown
            parts = []
        found += [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def memory(root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[Path, int | None, int]]:
    """Folder, limit and use in bytes of each group around this process that tells; None where it has no limit."""
    for folder in groups("memory", root, own):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                text, taken = (folder / limit).read_text().strip(), int((folder / used).read_text())
            except (OSError, ValueError):
                continue
            yield folder, int(text) if text.isdigit() else None, taken
