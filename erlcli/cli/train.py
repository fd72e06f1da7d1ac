"""`erl train`: a recipe goes in, a run directory comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="Path of a recipe, or the name of a shipped one (erl recipes).")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key with a TOML value: algorithm.learning_rate=1e-4. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set train.seed=N.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; default: the recipe's, numbered if taken.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Directory of the run; default: runs/NAME.")] = None,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="Plain lines even on a terminal.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background and return at once.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON summary at the end.")] = False,
) -> None:
    """Train an agent from a recipe.

    The run directory holds everything: recipe, metrics, checkpoints,
    evaluations, the learning curve. Ctrl+C once saves a checkpoint and leaves,
    twice leaves at once; erl resume goes on from there. Under torchrun, every
    process is one learner of the run in --run-dir.
    """
    from erlcli.cli import session
    from erlcli.engine import torchrun

    overrides = list(assignments or [])
    if seed is not None:
        overrides.append(f"train.seed={seed}")
    if device is not None:
        overrides.append(session.on_device(device))
    member = torchrun.member()
    if member is not None:
        raise typer.Exit(session.train_together(member, recipe, overrides, run_dir, json_output=json_output))
    layout = session.create(recipe, overrides, name, run_dir)
    lock = session.claim(layout)
    raise typer.Exit(session.drive(layout, lock, plain=no_tui, detach=detach, json_output=json_output))
