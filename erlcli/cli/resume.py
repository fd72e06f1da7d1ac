"""`erl resume`: goes on where a run stopped, or proves that it can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.errors import OwnedError, RecipeError

if TYPE_CHECKING:
    from erlcli.runs.layout import RunLayout


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe: --set train.total_steps=2_000_000 trains on. Repeatable."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train one stretch again in a fresh process and compare bit for bit.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    address: Annotated[str | None, typer.Option(help="HOST:PORT of a tournament's Ray cluster, if it moved.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, max=4096, help="CPU slots of a tournament, from now on.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs of a tournament from now on, such as 0-7 or 0,2.")] = None,
    per_gpu: Annotated[int | None, typer.Option(min=1, max=64, help="Members that share a GPU, from now on.")] = None,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="Plain lines even on a terminal.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background and return at once.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value at the end.")] = False,
) -> None:
    """Continue a run from its newest whole checkpoint.

    From a planned checkpoint (checkpoint.every_steps), with an unchanged recipe,
    the run goes on bit for bit as if it had never stopped, wherever env and
    kernels are deterministic. --verify shows whether they are, and changes
    nothing in the run. The extra checkpoint that a stop saves is as good, but
    other random numbers are drawn from there.
    """
    from erlcli.cli import session
    from erlcli.engine import torchrun
    from erlcli.runs.layout import open_run

    layout = open_run(run.resolve() if run.is_symlink() else run).absolute()  # `champion` may point elsewhere tomorrow
    if (layout.root / "journal.jsonl").exists():
        from erlcli.cli import tournament

        _refuse_for_tournament(layout, verify=verify, device=device)
        code = tournament.resume(layout, assignments or [], address, slots, gpus, per_gpu,
                                 plain=no_tui, detach=detach, json_output=json_output)  # fmt: skip
        raise typer.Exit(code)
    given = {"--address": address, "--slots": slots, "--gpus": gpus, "--per-gpu": per_gpu}
    for option in [name for name, value in given.items() if value is not None]:
        raise RecipeError(f"{option}: not for a run", expected="a tournament", found=str(run),
                          remedy=f"leave {option} out")  # fmt: skip
    if verify:
        raise typer.Exit(_verify(layout, json_output=json_output))
    _refuse_for_member(layout)
    overrides = list(assignments or [])
    if device is not None:
        overrides.append(session.on_device(device))
    if (member := torchrun.member()) is not None:
        raise typer.Exit(session.resume_together(member, layout, overrides, json_output=json_output))
    lock = session.claim(layout)
    if session.nothing_left(layout, overrides, json_output=json_output):
        lock.release()
        raise typer.Exit(0)
    if overrides:
        session.change(layout, overrides)
    raise typer.Exit(session.drive(layout, lock, plain=no_tui, detach=detach, json_output=json_output))


def _refuse_for_tournament(layout: RunLayout, *, verify: bool, device: str | None) -> None:
    from erlcli.runs.text import quoted

    if verify or device is not None:
        option = "--verify" if verify else "--device"
        raise RecipeError(
            f"{option}: not for a tournament",
            expected="a run, such as one of its members",
            found="a tournament",
            remedy=f"erl resume {quoted(layout.root)}/members/ID {option}"
            if verify
            else "--slots or --gpus gives it other slots",
        )


def _refuse_for_member(layout: RunLayout) -> None:
    """A member in the race is its tournament's to train, whose journal counts its steps and ranks it.

    Raises:
        OwnedError: the tournament is running.
        RecipeError: it isn't, and may go on.
    """
    from erlcli.runs.journal import Journal
    from erlcli.runs.layout import RunLayout
    from erlcli.runs.lock import is_owned
    from erlcli.runs.text import quoted

    run = RunLayout(layout.root.resolve())
    if (owner := run.tournament) is None:
        return
    journal = Journal(owner.root)
    journal.refresh()
    member = journal.board.members.get(run.root.name)
    if member is None or member.activity == "retired":
        return
    live, name = is_owned(owner.lock), quoted(owner.root)
    raise (OwnedError if live else RecipeError)(
        f"{layout.root}: a member in the race, which its tournament trains",
        expected="a run of its own, a member that is retired, or the champion/ of a tournament",
        found=f"{member.id}, {member.activity}",
        remedy=f"erl resume {name}{' once it has ended' * live}; a copy of the folder is a run of its own",
    )


def _verify(layout: RunLayout, *, json_output: bool) -> int:
    from erlcli.cli.live import PlainView, Watcher
    from erlcli.cli.output import count, print_json
    from erlcli.engine.verify import newest_stretch, verify
    from erlcli.runs.text import plural
    from erlcli.runs.view import FOLLOWED_ROWS, RunView

    first, last = newest_stretch(layout)
    if not json_output:
        print(f"training from {count(first.steps)} to {count(last.steps)} steps again, in a fresh process")
    views: list[PlainView] = []

    def tick(again: RunLayout) -> None:
        if not views:
            views.append(PlainView(Watcher(RunView(again, FOLLOWED_ROWS)), quiet=json_output))
        views[0].tick()

    verdict = verify(layout, tick)
    if json_output:
        print_json(verdict.to_json())
        return 0 if verdict.equal else 1
    tensors, rows = verdict.differing_tensors, verdict.differing_rows
    print(f"weights  {'equal' if not tensors else 'DIFFERENT: ' + ', '.join(tensors[:5])}")
    print(f"rows     {'equal' if not rows else f'DIFFERENT from {rows[0]:,} steps on'} ({plural(verdict.rows, 'row')})")
    if verdict.equal:
        print("verified: resuming continues this run bit for bit")
        return 0
    print(f"not equal (largest difference {verdict.largest_difference:g}): env or kernels aren't deterministic here")
    return 1
