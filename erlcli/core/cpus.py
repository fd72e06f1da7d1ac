"""How many CPUs there are to use. Free of torch."""

from __future__ import annotations

import os

LIMIT = "ERL_CPUS"  # for processes that share a machine without being pinned, as those on a cluster's nodes


def usable_cpus() -> int:
    """Logical CPUs that this process may run on; at most `ERL_CPUS` of them, where that is set."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, int(os.environ.get(LIMIT) or here))
