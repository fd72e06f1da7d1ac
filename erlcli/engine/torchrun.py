"""Learners that torchrun has started: on several machines, or with its own restarts, around one run directory.

Every process of torchrun is one learner, but for the first: that one supervises the run, with the first learner and the
evaluator as its children. A failure of any ends all; torchrun's `--max-restarts` starts them anew from the last
checkpoint.
"""

from __future__ import annotations

import os
import threading
import time

from erlcli.engine.member import Member
from erlcli.runs.jsonl import write_text
from erlcli.runs.layout import RunLayout

POLL_SECONDS = 0.5


def member() -> Member | None:
    """Which learner this process is to be; None where torchrun has not started it, or no others."""
    here = os.environ
    if "TORCHELASTIC_RUN_ID" not in here or here["WORLD_SIZE"] == "1":
        return None
    return Member(int(here["RANK"]), int(here["WORLD_SIZE"]), int(here["LOCAL_RANK"]), "env://")


def asked_for(layout: RunLayout) -> str | None:
    """The recipe that a run was asked for by a command under torchrun; None where it wasn't."""
    path = layout.asked_for
    return path.read_text() if path.exists() else None


def remember(layout: RunLayout, recipe: str) -> None:
    """Write down what was asked for, so that the same command goes on with the run."""
    write_text(layout.asked_for, recipe)


def follow(layout: RunLayout, member: Member) -> int:
    """Be a learner other than the first, in this process; the exit code.

    Args:
        layout: that the first process makes or has made, on a path that means the same to both.
        member: which one.
    """
    from erlcli.engine import learner

    reading, writing = os.pipe()
    threading.Thread(target=_close_when_orphaned, args=(writing, os.getppid()), name="parent", daemon=True).start()
    return learner.main([str(layout.root), "0", "-1", member.to_argument(), str(reading)])


def _close_when_orphaned(lifeline: int, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.close(lifeline)
