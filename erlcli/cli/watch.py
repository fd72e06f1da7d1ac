"""`erl watch`: the dashboard on a run, a tournament or a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.errors import ErlError, RecipeError

if TYPE_CHECKING:
    from erlcli.runs.layout import RunLayout

RUNS = Path("runs")


def watch(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run, a tournament or a folder of runs; default: ./runs.", show_default=False),
    ] = None,
) -> None:
    """Watch and steer runs in the dashboard, live or finished ones.

    It reads files only, so it attaches to any run, also to one that was started
    by someone else or that is over; closing it changes nothing. ? shows its keys.
    """
    from erlcli.cli import dashboard
    from erlcli.engine.child import describe_exit
    from erlcli.runs.layout import RunLayout

    path = (run or RUNS).absolute()
    _check(path, run)
    if not dashboard.is_possible():
        raise RecipeError(
            "erl watch: no terminal to draw on",
            expected="a terminal on standard input, output and error",
            found="a pipe, a file, or TERM=dumb",
            remedy="erl ps lists runs; tail -f RUN/metrics.jsonl follows one",
        )
    code = dashboard.show(path, owns=False)
    layout = RunLayout(path)
    if layout.status.exists():
        print("\n".join(parting_lines(layout)))
    if code:
        raise ErlError(f"the dashboard {describe_exit(code)}", remedy="training was not touched by it")


def parting_lines(layout: RunLayout) -> list[str]:
    """What is to be known of a run or tournament once one has stopped watching it."""
    from erlcli.cli import session, tournament
    from erlcli.runs.view import FOLLOWED_ROWS, RunView
    from erlcli.tournament.words import summary

    view = RunView(layout, FOLLOWED_ROWS)
    view.refresh()
    is_tournament = (layout.root / "journal.jsonl").exists()
    if view.is_live:
        return tournament.detached_lines(layout) if is_tournament else session.detached_lines(layout)
    error = view.status.get("error")
    failure = f"error: {error}".splitlines() if error else []
    if not is_tournament:
        return failure + session.closing_lines(view, view.state)
    row = summary(layout) | {"state": view.state, "exit_code": view.status.get("exit_code")}
    return failure + tournament.closing_lines(layout, row)


def _check(path: Path, run: Path | None) -> None:
    """A path that can be watched.

    Raises:
        RecipeError: it can't.
    """
    from erlcli.runs.layout import list_runs, open_run

    if path.is_dir():
        if (path / "recipe.toml").exists() or (path / "journal.jsonl").exists() or list_runs(path):
            return
        if run is not None and any(path.iterdir()):
            open_run(path)  # says what is there instead
        if run is None or not any(path.iterdir()):
            return  # the home screen says how to start a run
    if run is None:
        raise RecipeError(
            f"{RUNS}: no such folder here",
            expected="a folder of runs",
            remedy="erl train RECIPE makes it, or name a run: erl watch RUN",
        )
    open_run(path)
