"""How many CPUs there are to use. Free of torch."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Logical CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
