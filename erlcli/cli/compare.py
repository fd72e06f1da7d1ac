"""`erl compare`: groups of runs, or tournaments, side by side."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from erlcli.cli.output import print_json
from erlcli.errors import RecipeError, unwritable

TOP = 5


class By(str, enum.Enum):
    """What makes runs a group."""

    recipe = "recipe"
    algorithm = "algorithm"


class Score(str, enum.Enum):
    """What counts of a run."""

    final = "final"
    best = "best"


def compare(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]RUN",
            help="Runs or tournaments; the others are compared with the first. NAME=RUN puts a run into a group "
            "of that name; RUN may be a quoted pattern, as in 'ppo=runs/ppo-*'.",
            show_default=False,
        ),
    ],
    target: Annotated[
        float | None, typer.Option(help="Return to be reached; default: the recipe's target.", show_default=False)
    ] = None,
    score: Annotated[
        Score, typer.Option(help="Of runs: the return of the last evaluation, or of the best.")
    ] = Score.final,
    by: Annotated[
        By, typer.Option(help="Of runs without NAME: one group for seeds of a recipe, or for an algorithm.")
    ] = By.recipe,
    top: Annotated[
        int, typer.Option(min=1, help="Of tournaments: best members whose interquartile mean is shown.")
    ] = TOP,
    out: Annotated[Path, typer.Option(help="The picture, .png or .svg.")] = Path("comparison.png"),
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Compare runs in groups, or tournaments, e.g. with a control of the same budget.

    Runs: the interquartile mean of their returns, and how likely one of a group
    is to do better than one of the first group, both with bootstrap 95% CIs.
    Tournaments: the scores of champions, on episodes that they were not chosen
    by; the area is the mean of the best champion over the env steps that all
    have.
    """
    from erlcli.cli import compare_runs, compare_tournaments
    from erlcli.cli.plot import checked

    picture = checked(out)
    tournaments = [path for path in paths if (Path(path) / "journal.jsonl").is_file()]
    _check(paths, tournaments, {"--top": top != TOP}, {"--score": score != Score.final, "--by": by != By.recipe})
    if tournaments:
        made, draw = compare_tournaments.compare([Path(path) for path in paths], target, top)
    else:
        made, draw = compare_runs.compare(paths, by.value, score.value, target)
    try:
        draw(picture)
    except OSError as error:
        raise unwritable(picture, error, expected="a writable place", remedy="another --out") from None
    made["picture"] = str(picture)
    if json_output:
        print_json(made)
    else:
        report = compare_tournaments.report if tournaments else compare_runs.report
        print("\n".join([*report(made), str(picture)]))


def _check(paths: list[str], tournaments: list[str], of_tournaments: dict[str, bool], of_runs: dict[str, bool]) -> None:
    """All of one kind, and no option of the other."""
    if tournaments and len(tournaments) < len(paths):
        other = next(path for path in paths if path not in tournaments)
        raise RecipeError(
            f"{other}: no tournament, but {tournaments[0]} is one",
            expected="tournaments alone, or runs alone",
            found="something else" if Path(other).exists() or "=" in other else "nothing there",
            remedy=f"{tournaments[0]}/members/* are runs that can be compared with runs",
        )
    kind, wrong = ("tournaments", of_runs) if tournaments else ("runs", of_tournaments)
    for option, given in wrong.items():
        if given:
            raise RecipeError(
                f"{option}: not for {kind}",
                expected="--top for tournaments, --score and --by for runs",
                found=option,
                remedy="leave it out",
            )
