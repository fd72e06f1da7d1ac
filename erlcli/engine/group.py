"""How the learners of a run find each other."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from erlcli.core.collective import ALONE, Collective
from erlcli.core.cpus import usable_cpus
from erlcli.engine.child import limit_cpus
from erlcli.engine.member import Member
from erlcli.errors import RecipeError

FILE, TORCHRUN = "file://", "env://"
POLL_SECONDS = 0.05
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
    from erlcli.core.process_group import TIMEOUT, ProcessGroup, lost

    if member.rendezvous.startswith(FILE):
        path = Path(member.rendezvous.removeprefix(FILE))
        here, interface = member.world_size, LOOPBACK  # no name of this machine has to mean anything
        store = dist.FileStore(str(path), member.world_size)
    else:
        here, interface = int(os.environ["LOCAL_WORLD_SIZE"]), os.environ.get("GLOO_SOCKET_IFNAME", "")
        try:
            store, _, _ = next(dist.rendezvous(TORCHRUN, member.rank, member.world_size, timeout=TIMEOUT))
            store = dist.PrefixStore(agree(store, member), store)
        except RuntimeError as error:
            raise lost(error) from None
    limit_cpus(max(1, usable_cpus() // here))
    return ProcessGroup(store, member.rank, member.world_size, interface)


def agree(store: Any, member: Member) -> str:  # noqa: ANN401 - a torch.distributed.Store
    """A name that no earlier group of learners has used, equal in all members.

    torchrun keeps one store for all its restarts, and what the dead have left in it looks like what the living write.
    So every follower shows a number that it has drawn, and waits for the answer to that very number; the first member
    answers whatever number it sees, which may be of the dead at first, until every follower has confirmed.
    """
    if member.rank:
        mine = secrets.token_hex(8)
        store.set(f"number/{member.rank}", mine)
        name: str = store.get(f"name/{mine}").decode()  # waits
        store.set(f"{name}/confirmed/{member.rank}", "")
        return name
    name = secrets.token_hex(8)
    missing = set(range(1, member.world_size))
    while missing:
        for rank in list(missing):
            if store.check([f"{name}/confirmed/{rank}"]):
                missing.remove(rank)
            elif store.check([f"number/{rank}"]):
                store.set(f"name/{store.get(f'number/{rank}').decode()}", name)
        time.sleep(POLL_SECONDS)
    return name
