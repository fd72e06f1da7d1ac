"""`erl scale`: other slots for a tournament that is running."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from erlcli.errors import ErlError, RecipeError
from erlcli.runs.text import quoted

ANSWER_SECONDS = 10.0


def scale(
    tournament: Annotated[Path, typer.Argument(help="Directory of a tournament.")],
    slots: Annotated[int | None, typer.Option(min=0, max=4096, help="So many slots.")] = None,
    gpus: Annotated[str | None, typer.Option(help="These GPUs, such as 0-3.")] = None,
    per_gpu: Annotated[int, typer.Option(min=1, max=64, help="Members that share a GPU.")] = 1,
) -> None:
    """Give slots to a running tournament, or take some away.

    Members whose slot goes are checkpointed and parked, the lowest-ranked ones
    with --slots; they go on as soon as there is room again.
    """
    from erlcli.runs import control
    from erlcli.runs.journal import Journal
    from erlcli.runs.layout import open_run
    from erlcli.runs.lock import is_owned
    from erlcli.tournament import slots as places
    from erlcli.tournament.backends.settings import RaySettings

    layout = open_run(tournament).absolute()
    journal = Journal(layout.root)
    journal.refresh()
    if not (layout.root / "journal.jsonl").exists() or not is_owned(layout.lock):
        raise RecipeError(
            f"{tournament}: no tournament that is running",
            expected="the directory of a live tournament",
            found="a run" if not (layout.root / "journal.jsonl").exists() else "one that nobody runs",
            remedy="erl ps shows what is alive; erl resume goes on with one",
        )
    if slots is None and gpus is None:
        now = len(journal.board.slots)
        raise RecipeError("erl scale: which slots?", expected="--slots N or --gpus LIST", found="neither",
                          remedy=f"there are {now} now: erl scale {quoted(tournament)} --slots N")  # fmt: skip
    board = journal.board
    here = places.gpus()
    ray = RaySettings.of(layout)
    if ray is not None and (slots is None or gpus is not None):
        raise RecipeError("--gpus: the GPUs of a cluster have no numbers", expected="--slots N",
                          found=f"--gpus {gpus}", remedy=f"erl scale {quoted(tournament)} --slots N")  # fmt: skip
    if slots is not None and gpus is None and slots < len(board.slots):
        order = {member.id: place for place, member in enumerate(board.ranking(), start=1)}
        ranks = {member.slot: order[member.id] for member in board.members.values() if member.slot is not None}
        names = places.shrink(board.slots, ranks, slots)
    elif ray is not None and slots is not None:
        names = places.more(board.slots, slots)
    elif slots is not None and gpus is None and board.slots and not board.slots[0].startswith("cpu"):
        raise RecipeError("--slots: more slots than the tournament has on its GPUs", expected="--gpus LIST --per-gpu K",
                          found=f"--slots {slots}", remedy="erl doctor shows the GPUs of this machine")  # fmt: skip
    else:
        names = places.choose(slots, gpus, per_gpu, here, len(places.cores()))
    request = control.tournament_request(layout.root, "slots", slots=names)
    _wait(layout.root, request)
    print(f"{tournament}: {len(names)} slot{'s' * (len(names) != 1)}: {', '.join(names) or 'none'}")


def _wait(root: Path, request: str) -> None:
    """Until the orchestrator has answered.

    Raises:
        ErlError: it refuses, or says nothing.
    """
    from erlcli.runs.jsonl import read

    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        for row in reversed(read(root / "journal.jsonl")[-200:]):
            if row.get("request") == request:
                if row["event"] == "refuse":
                    raise RecipeError(f"{root}: refused", expected="slots that can be", found=str(row.get("reason")))
                return
        time.sleep(0.1)
    raise ErlError(
        f"{root}: no answer within {ANSWER_SECONDS:g} s", remedy="the request stands; erl ps shows its state"
    )
