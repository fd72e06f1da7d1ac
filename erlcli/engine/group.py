"""How the learners of a run find each other."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from erlcli.core.collective import ALONE, Collective
from erlcli.core.cpus import usable_cpus
from erlcli.engine.child import limit_cpus
from erlcli.engine.member import Member
from erlcli.errors import RecipeError

FILE, TORCHRUN = "file://", "env://"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def join(member: Member) -> Collective:
    """Meet the other learners of the run; returns once all are there. torch.distributed is imported only for several.

    Raises:
        RecipeError: this build of torch can't do it.
        PeerLostError: the others don't come.
    """
    if member.world_size == 1:
        return ALONE
    import torch.distributed

    dist: Any = torch.distributed  # its annotations leave out most of what is used here
    if not dist.is_available():
        raise RecipeError(
            "engine.learners: this build of torch has no torch.distributed",
            expected="a build with it, as for Linux",
            found=f"engine.learners = {member.world_size}",
            remedy="engine.learners = 1",
        )
    from erlcli.core.process_group import TIMEOUT, ProcessGroup

    if member.rendezvous.startswith(FILE):
        path = Path(member.rendezvous.removeprefix(FILE))
        here, interface = member.world_size, LOOPBACK  # no name of this machine has to mean anything
        store = dist.FileStore(str(path), member.world_size)
    else:
        here, interface = int(os.environ["LOCAL_WORLD_SIZE"]), os.environ.get("GLOO_SOCKET_IFNAME", "")
        store, _, _ = next(dist.rendezvous(TORCHRUN, member.rank, member.world_size, timeout=TIMEOUT))
    limit_cpus(max(1, usable_cpus() // here))
    return ProcessGroup(store, member.rank, member.world_size, interface)
