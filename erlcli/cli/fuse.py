"""`erl fuse`: the weights of several checkpoints averaged into a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.output import count, print_json
from erlcli.errors import RecipeError
from erlcli.runs.text import quoted

if TYPE_CHECKING:
    from erlcli.tournament.fused_run import Source


def fuse(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, or checkpoints of runs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Directory of the new run.", show_default=False)],
    weights: Annotated[str | None, typer.Option(help="One number each, such as 2,1,1; default: all alike.")] = None,
    last: Annotated[
        int | None, typer.Option(min=2, help="Average the newest N restart points of one run instead.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Average the weights of checkpoints into a new run.

    Of a run the newest restart point is taken, of a tournament the champion.
    Weights, optimiser moments and normaliser statistics are merged; erl eval,
    export and resume take the result like any other run. It is a good policy
    where the checkpoints come from one start or one run: evaluate it.
    """
    given = _weights(weights)
    from erlcli.tournament.fused_run import fuse_runs

    sources = _sources(runs, last)
    if given is not None and len(given) != len(sources):
        raise RecipeError(
            f"--weights {weights}: not one for each",
            expected=f"{len(sources)} numbers, in the order of the checkpoints",
            found=str(len(given)),
            remedy="--weights " + ",".join(["1"] * len(sources)),
        )
    made = fuse_runs(sources, out, given)
    if json_output:
        print_json(made)
        return
    print(f"fused {len(sources)} checkpoints of {made['algorithm']} on {made['env'].rpartition('/')[2]} into {out}")
    for row in made["sources"]:
        print(f"  {row['weight']:5.3f}  {count(row['steps']):>7} steps  {row['checkpoint_path']}")
    print(f"next: erl eval {quoted(out)}")


def _sources(paths: Sequence[Path], last: int | None) -> list[Source]:
    from erlcli.cli.policies import find_policies, is_tournament
    from erlcli.runs.layout import open_run
    from erlcli.tournament import fused_run

    if last is not None:
        if len(paths) != 1:
            raise RecipeError(
                "--last: several runs are named",
                expected="one run, whose newest checkpoints are averaged",
                found=", ".join(map(str, paths[:3])),
                remedy="fuse each by itself first, or leave --last out",
            )
        if is_tournament(paths[0]):
            raise RecipeError(
                "--last: not of a tournament, whose champion is one checkpoint",
                expected="a run, whose newest checkpoints are averaged",
                found=str(paths[0]),
                remedy=f"name one of its members: erl fuse {quoted(paths[0] / 'members')}/ID --last {last}",
            )
        return fused_run.newest(open_run(paths[0]), last)
    sources: list[Source] = []
    for path in paths:
        [(layout, which)] = find_policies([path], "last", None).named
        inside = which != "last"
        source = fused_run.at_path(layout, Path(which)) if inside else fused_run.newest(layout, 1)[0]
        if source.path.resolve() not in {other.path.resolve() for other in sources}:
            sources.append(source)
    if len(sources) < 2:
        raise RecipeError(
            "erl fuse: one checkpoint is its own mean",
            expected="at least two different ones",
            found=str(paths[0]),
            remedy=f"name more, or average within the run: erl fuse {quoted(paths[0])} --last 3 --out DIR",
        )
    return sources


def _weights(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or any(not 0 <= value < float("inf") for value in values) or sum(values) == 0:
        raise RecipeError(
            f"--weights {text}: no weights",
            expected="numbers that are not negative, separated by commas",
            found=text or "nothing",
            remedy="--weights 2,1,1",
        )
    return values
